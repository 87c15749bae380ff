"""Beam search (section 6.1 of the paper), and greedy search as the beam of one.

Pure, under `jit`, and ignorant of the model: it sees a function from tokens to logits. The search
reads no cache; it says at each step which slot a slot continues. It can stop before its end, so
that the caller extends the capacity for longer hypotheses and drops finished sentences.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.runtime.mesh import spec

NEVER = (PAD_ID, BOS_ID)  # stand in no sentence; the unknown word may, where data holds it

_GROUPS = range(192, 384)  # of the vocabulary, whose maxima say where its largest logits are


@runtime_checkable
class DecodeStep(Protocol):
    """One step of a model, for all slots of all sentences."""

    def __call__(
        self, tokens: Int[Array, "B W"], parents: Int[Array, "B W"], cache: Any, /
    ) -> tuple[Float[Array, "B W V"], Any]:
        """Logits of the next token, and the cache for the next call.

        `parents[b, w]` is the slot of the previous step whose hypothesis slot w continues with
        `tokens[b, w]`; in the first step every slot holds BOS and is its own parent.
        """
        ...


class Hypotheses(NamedTuple):
    """The R best finished hypotheses of each sentence, best first.

    Where a sentence has fewer than R, the others have length 0 and score -inf.
    """

    tokens: Int[Array, "B R L"]  # w1 ... wn EOS PAD ...
    lengths: Int[Array, "B R"]  # tokens, EOS included
    scores: Float[Array, "B R"]  # log_probs / length_penalty(lengths)
    log_probs: Float[Array, "B R"]  # natural logarithm of the model's probability


class Beam(NamedTuple):
    """Hypotheses of one length, the last step's additions among them."""

    tokens: Int[Array, "B W L"]
    last: Int[Array, "B W"]  # the latest token
    parents: Int[Array, "B W"]  # the slot in which the hypothesis was one step ago
    log_probs: Float[Array, "B W"]  # -inf: the slot is empty


class Search(NamedTuple):
    """A search under way; each array but the scalars has a row for each sentence."""

    length: Int[Array, ""]  # tokens of each growing hypothesis
    limits: Int[Array, "B 1"]
    growing: Beam
    finished: tuple[Hypotheses, ...]  # by each alpha
    cache: Any  # the model's; scalars, and arrays with a row for each sentence


Slots = TypeVar("Slots", Beam, Hypotheses)


def length_penalty(length: Int[Array, "..."] | int, alpha: float) -> Float[Array, "..."] | float:
    """lp(Y) = ((5 + |Y|) / 6)^alpha (Wu et al. 2016, equation 14); |Y| counts EOS."""
    return ((5 + length) / 6) ** alpha


def beam_search(
    decode_step: DecodeStep,
    cache: Any,
    *,
    max_lengths: Int[Array, "B"],
    max_length: int,
    beam_size: int,
    alpha: float,
    n_best: int | None = None,
) -> Hypotheses:
    """The whole of a search, without a pause: `search_with_alphas` with one of them."""
    [found] = search_with_alphas(
        decode_step,
        cache,
        max_lengths=max_lengths,
        max_length=max_length,
        beam_size=beam_size,
        alphas=(alpha,),
        n_best=n_best,
    )
    return found


def search_with_alphas(
    decode_step: DecodeStep,
    cache: Any,
    *,
    max_lengths: Int[Array, "B"],
    max_length: int,
    beam_size: int,
    alphas: Sequence[float],
    n_best: int | None = None,
) -> tuple[Hypotheses, ...]:
    """What a search finds with each of several alphas, without a pause.

    `max_length` limits all of `max_lengths`; the cache has that capacity. By default R is W.
    """
    search = start_search(
        cache,
        max_lengths=jnp.minimum(max_lengths, max_length),
        capacity=max_length,
        beam_size=beam_size,
        n_best=n_best or beam_size,
        num_alphas=len(alphas),
    )
    return continue_search(decode_step, search, alphas).finished


def start_search(
    cache: Any,
    *,
    max_lengths: Int[Array, "B"],
    capacity: int,
    beam_size: int,
    n_best: int,
    num_alphas: int = 1,
) -> Search:
    """The empty hypothesis of each sentence in slot 0; nothing is finished.

    Args:
        cache: the model's state before the first step, of the same capacity.
        max_lengths: each sentence's limit in tokens, EOS included. The token at the limit can only
            be EOS, so that every hypothesis ends. A limit of 0 marks an empty row: no step for it.
        capacity: L, tokens that a hypothesis can have before `extend_search`.
        beam_size: W.
        n_best: R, how many hypotheses are wanted. Fewer are done sooner.
        num_alphas: for how many length penalties.
    """
    limits = max_lengths[:, None]

    def fill(shape: tuple[int, ...], value: float, dtype: jnp.dtype) -> Array:
        # From the limits, so that a row lies on the device on which its sentence does.
        first = limits.reshape(-1, *(1 for _ in shape))
        return jnp.zeros_like(first, dtype) + jnp.full(shape, value, dtype)

    integer = limits.dtype
    slots = fill((beam_size,), 0, integer) + jnp.arange(beam_size, dtype=integer)
    growing = Beam(
        tokens=fill((beam_size, capacity), PAD_ID, integer),
        last=jnp.full_like(slots, BOS_ID),
        parents=slots,
        log_probs=jnp.where((slots == 0) & (limits > 0), 0.0, -jnp.inf),
    )
    finished = Hypotheses(
        tokens=fill((n_best, capacity), PAD_ID, integer),
        lengths=fill((n_best,), 0, integer),
        scores=fill((n_best,), -jnp.inf, jnp.dtype(jnp.float32)),
        log_probs=fill((n_best,), -jnp.inf, jnp.dtype(jnp.float32)),
    )
    return Search(jnp.zeros((), jnp.int32), limits, growing, (finished,) * num_alphas, cache)


def continue_search(
    decode_step: DecodeStep,
    search: Search,
    alphas: Sequence[float],
    min_alive: Int[Array, ""] | int = 0,
) -> Search:
    """Searches the Y with the highest log P(Y) / lp(Y), until all are done or at capacity.

    Of the 2W best continuations at each step, those that end in EOS are finished, and the W best
    others grow on. With W = 1 the best continuation alone counts: greedy search. A sentence is
    done when nothing that grows can still reach its R-th best finished hypothesis: log P only
    falls, so log P / lp(limit) bounds what may come. Stopping there changes no result.

    Which hypotheses grow follows from log P alone, and alpha only ranks those that are finished: so
    one search finds for each alpha what a search with that alpha would, if it goes on until it is
    done for all of them.

    Args:
        decode_step: the model.
        search: as it was started, or continued before.
        alphas: exponents of the length penalty; 0 ranks by log P.
        min_alive: return to the host once at most this many sentences are unfinished.
    """
    beam_size, capacity = search.growing.tokens.shape[1:]
    num_candidates = 2 * beam_size if beam_size > 1 else 1

    def goes_on(search: Search) -> Bool[Array, ""]:
        return (is_growing(search).sum() > min_alive) & (search.length < capacity)

    def advance(search: Search) -> Search:
        length, limits, beam, finished, cache = search
        logits, cache = decode_step(beam.last, beam.parents, cache)
        candidates = _extend(beam, logits, length, length + 1 >= limits, num_candidates)
        finished = tuple(
            _finish(found, candidates, length + 1, alpha)
            for found, alpha in zip(finished, alphas, strict=True)
        )
        growing = jnp.where(candidates.last == EOS_ID, -jnp.inf, candidates.log_probs)
        beam = _select(candidates._replace(log_probs=growing), growing, beam_size)
        best = beam.log_probs[:, :1]
        is_done = [
            found.scores[:, -1:] >= best / length_penalty(limits, alpha)
            for found, alpha in zip(finished, alphas, strict=True)
        ]
        all_are_done = functools.reduce(jnp.logical_and, is_done)
        beam = beam._replace(log_probs=jnp.where(all_are_done, -jnp.inf, beam.log_probs))
        return Search(length + 1, limits, beam, finished, cache)

    return jax.lax.while_loop(goes_on, advance, search)


def is_growing(search: Search) -> Bool[Array, "B"]:
    """Whether a sentence has more to come."""
    return jnp.any(search.growing.log_probs > -jnp.inf, axis=1)


def extend_search(search: Search, cache: Any, capacity: int) -> Search:
    """The same search with a larger capacity; `cache` is its own, extended by the model."""

    def extend(tokens: Int[Array, "B W _"]) -> Int[Array, "B W L"]:
        more = capacity - tokens.shape[-1]
        return jnp.pad(tokens, ((0, 0), (0, 0), (0, more)), constant_values=PAD_ID)

    return search._replace(
        growing=search.growing._replace(tokens=extend(search.growing.tokens)),
        finished=tuple(x._replace(tokens=extend(x.tokens)) for x in search.finished),
        cache=cache,
    )


def take_rows(search: Search, rows: Int[Array, "_"]) -> Search:
    """The search of these sentences alone, in this order."""

    def take(x: Array) -> Array:
        own = None if spec("batch") is None else jax.typeof(x).sharding
        return x.at[rows].get(out_sharding=own)

    taken: Search = jax.tree.map(lambda x: take(x) if x.ndim else x, search)
    return taken


def _extend(
    beam: Beam,
    logits: Float[Array, "B W V"],
    length: Int[Array, ""],
    only_eos: Bool[Array, "B 1"],
    num_candidates: int,
) -> Beam:
    """The most probable hypotheses that are one token longer, or those that end, one a slot."""
    logits = _gather_vocabulary(logits).astype(jnp.float32)
    # The banned tokens keep their share of the probability: log P is the model's own.
    before = beam.log_probs - jax.nn.logsumexp(logits, axis=-1)
    log_probs, parents, last = _find_best(logits, before, num_candidates)
    more = (0, 0), (0, num_candidates - before.shape[1])
    ends = jnp.pad(before + logits[..., EOS_ID], more, constant_values=-jnp.inf)
    log_probs = jnp.where(only_eos, ends, log_probs)
    parents = jnp.where(only_eos, jnp.arange(num_candidates) % before.shape[1], parents)
    last = jnp.where(only_eos, EOS_ID, last)
    history = jnp.take_along_axis(beam.tokens, parents[..., None], axis=1)
    here = jnp.arange(history.shape[-1]) == length
    return Beam(jnp.where(here, last[..., None], history), last, parents, log_probs)


def _find_best(
    logits: Float[Array, "B W V"], before: Float[Array, "B W"], count: int
) -> tuple[Float[Array, "B C"], Int[Array, "B C"], Int[Array, "B C"]]:
    """The `count` largest of logit + before, but of banned tokens, with their slots and tokens.

    Best first; of equals the lower slot, and of a small vocabulary the lower token. Logits are read
    once and not sorted: as many groups of them as are wanted, and as may be lost to a ban, are
    those with the largest maxima, and only these are sorted. A group is every n-th token, so that
    the maxima are taken over whole vectors.
    """
    batch, beam_size, size = logits.shape
    groups = _choose_groups(size)
    more = (0, 0), (0, 0), (0, -size % groups)
    logits = jnp.pad(logits, more, constant_values=-jnp.inf)
    per_group = logits.shape[-1] // groups
    maxima = logits.reshape(batch, beam_size, per_group, groups).max(axis=2) + before[..., None]
    enough = min(count + len(NEVER) * beam_size, beam_size * groups)
    best = jnp.sort(jax.lax.top_k(maxima.reshape(batch, -1), enough)[1])
    slots, first = (jnp.repeat(x, per_group, axis=1) for x in jnp.divmod(best, groups))
    tokens = first + jnp.tile(groups * jnp.arange(per_group), enough)
    places = slots * logits.shape[-1] + tokens
    totals = _take(logits.reshape(batch, -1), places) + _take(before, slots)
    is_banned = (tokens[..., None] == jnp.array(NEVER)).any(axis=-1)
    largest, order = jax.lax.top_k(jnp.where(is_banned, -jnp.inf, totals), count)
    return largest, _take(slots, order), _take(tokens, order)


def _choose_groups(size: int) -> int:
    """About 256 that divide the vocabulary, or nearly; a small one is not grouped."""
    if size < 4 * _GROUPS[0]:
        return size
    return min(_GROUPS, key=lambda groups: -size % groups)


def _take(x: Array, places: Int[Array, "B C"]) -> Array:
    """Of each row the places, all of which it has."""
    return jnp.take_along_axis(x, places, axis=1, mode="promise_in_bounds")


def _gather_vocabulary(logits: Float[Array, "B W V"]) -> Float[Array, "B W V"]:
    """Logits with the vocabulary whole on each device."""
    whole = spec("batch", None, None)
    return logits if whole is None else jax.sharding.reshard(logits, whole)


def _finish(
    finished: Hypotheses, candidates: Beam, length: Int[Array, ""], alpha: float
) -> Hypotheses:
    """The best of what was finished before and of the candidates that end in EOS."""
    ends = (candidates.last == EOS_ID) & (candidates.log_probs > -jnp.inf)
    log_probs = jnp.where(ends, candidates.log_probs, -jnp.inf)
    new = Hypotheses(
        tokens=jnp.where(ends[..., None], candidates.tokens, PAD_ID),
        lengths=jnp.where(ends, length, 0),
        scores=log_probs / length_penalty(length, alpha),
        log_probs=log_probs,
    )
    both = Hypotheses(*(jnp.concatenate(pair, axis=1) for pair in zip(finished, new, strict=True)))
    return _select(both, both.scores, finished.scores.shape[1])


def _select(slots: Slots, ranks: Float[Array, "B W"], count: int) -> Slots:
    """The slots of the `count` highest ranks, best first; of equal ones the first."""
    _, order = jax.lax.top_k(ranks, count)

    def take(x: Array) -> Array:
        return jnp.take_along_axis(x, order.reshape(*order.shape, *(1,) * (x.ndim - 2)), axis=1)

    return type(slots)(*map(take, slots))
