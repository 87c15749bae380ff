"""Beam search (section 6.1 of the paper); a beam of one is greedy search.

The functions are pure, run under `jit`, and know the model only as a function from tokens to logits
(`DecodeStep`). A slot is one of the W places of a sentence's beam. The search never reorders
the slots of the model's cache: each step passes `parents`, the slot that each slot continues.
`continue_search` may pause before the search has ended, and is then called again, which changes no
result. In a pause the caller can enlarge the arrays for longer hypotheses (`extend_search`) and
drop sentences whose search has ended (`take_rows`).

Dimensions besides those in `data/batch.py`: R finished hypotheses kept, C candidates of one step.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.decoding.grouped_top_k import grouped_top_k
from t2t.runtime.mesh import spec


@runtime_checkable
class DecodeStep(Protocol):
    """One step of a model, for all slots of all sentences."""

    def __call__(
        self, tokens: Int[Array, "B W"], parents: Int[Array, "B W"], cache: Any, /
    ) -> tuple[Float[Array, "B W V"], Any]:
        """Returns the logits of the next token and the cache for the next call.

        Slot w of sentence b holds the hypothesis of slot `parents[b, w]` one step ago, extended by
        `tokens[b, w]`. In the first step all tokens are BOS and each slot is its own parent.
        """
        ...


class Hypotheses(NamedTuple):
    """The R best finished hypotheses of each sentence, best first; missing ones score -inf."""

    tokens: Int[Array, "B R L"]  # w1 ... wn EOS PAD ...
    lengths: Int[Array, "B R"]  # tokens, EOS included; 0 if missing
    scores: Float[Array, "B R"]  # log_probs / length_penalty(lengths)
    log_probs: Float[Array, "B R"]  # natural logarithm of the model's probability


class Beam(NamedTuple):
    """Hypotheses of equal length: those in the W slots of a sentence, or its C candidates."""

    tokens: Int[Array, "B W L"]
    last: Int[Array, "B W"]  # the latest token; BOS before the first step
    parents: Int[Array, "B W"]  # the slot of each hypothesis one step ago
    log_probs: Float[Array, "B W"]  # -inf: the slot is empty


class Search(NamedTuple):
    """The state of a search; every array except scalars has one row per sentence."""

    length: Int[Array, ""]  # number of tokens of every unfinished hypothesis
    limits: Int[Array, "B 1"]  # largest number of tokens of a hypothesis, EOS included
    alive: Beam  # unfinished hypotheses
    finished: tuple[Hypotheses, ...]  # one for each alpha
    cache: Any  # the model's: scalars, and arrays with one row per sentence


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
    """Runs a whole search; for the arguments see `start_search` and `continue_search`.

    `max_lengths` are limited to `max_length`, the cache's capacity; n_best=None means `beam_size`.
    """
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
    """Runs one search for several alphas; returns the hypotheses ranked by each."""
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
    """The initial state: an empty hypothesis in slot 0 of each sentence, none finished.

    Args:
        cache: the model's cache before the first step, with space for `capacity` steps.
        max_lengths: each sentence's limit in tokens, EOS included. At the limit only EOS is
            allowed, so every hypothesis ends. A limit of 0 marks a row without a sentence.
        capacity: L, the number of tokens for which the arrays have space; see `extend_search`.
        beam_size: W.
        n_best: R, the number of hypotheses to return. With a smaller R the search ends sooner.
        num_alphas: the number of length penalties to rank by.
    """
    limits = max_lengths[:, None]

    def fill(shape: tuple[int, ...], value: float, dtype: jnp.dtype) -> Array:
        # Derived from `limits`, so that the array inherits its sharding over sentences.
        first = limits.reshape(-1, *(1 for _ in shape))
        return jnp.zeros_like(first, dtype) + jnp.full(shape, value, dtype)

    integer = limits.dtype
    slots = fill((beam_size,), 0, integer) + jnp.arange(beam_size, dtype=integer)
    alive = Beam(
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
    return Search(jnp.zeros((), jnp.int32), limits, alive, (finished,) * num_alphas, cache)


def continue_search(
    decode_step: DecodeStep,
    search: Search,
    alphas: Sequence[float],
    pause_at: Int[Array, ""] | int = 0,
) -> Search:
    """Searches for the Y with the highest log P(Y) / lp(Y); pauses when the capacity is full.

    Each step takes the 2W most probable continuations of a sentence. Those with EOS are finished
    hypotheses; the W best others stay alive. With W = 1 it takes only the best one (greedy).

    The search of a sentence ends when no alive hypothesis can overtake its R-th best finished one.
    log P is at most 0, and no token raises it; no hypothesis is longer than the limit; alpha >= 0.
    So no continuation of an alive hypothesis can score more than its log P / lp(limit). Once this
    bound is no better than the R-th best finished score, ending the search changes no result.

    Alpha only ranks finished hypotheses; log P alone decides which ones stay alive. So one search,
    continued until it ends for every alpha, finds the same as a separate search for each.

    Args:
        decode_step: the model.
        search: the result of `start_search`, or of an earlier call.
        alphas: exponents of the length penalty, at least 0; 0 ranks by log P.
        pause_at: the search pauses once this many sentences, or fewer, are unfinished.
    """
    beam_size, capacity = search.alive.tokens.shape[1:]
    num_candidates = 2 * beam_size if beam_size > 1 else 1

    def should_continue(search: Search) -> Bool[Array, ""]:
        return (is_unfinished(search).sum() > pause_at) & (search.length < capacity)

    def advance(search: Search) -> Search:
        length, limits, beam, finished, cache = search
        logits, cache = decode_step(beam.last, beam.parents, cache)
        candidates = _find_candidates(beam, logits, length, length + 1 >= limits, num_candidates)
        finished = tuple(
            _finish(found, candidates, length + 1, alpha)
            for found, alpha in zip(finished, alphas, strict=True)
        )
        log_probs = jnp.where(candidates.last == EOS_ID, -jnp.inf, candidates.log_probs)
        beam = _select(candidates._replace(log_probs=log_probs), log_probs, beam_size)
        best = beam.log_probs[:, :1]
        ended_by_alpha = [
            found.scores[:, -1:] >= best / length_penalty(limits, alpha)
            for found, alpha in zip(finished, alphas, strict=True)
        ]
        has_ended = functools.reduce(jnp.logical_and, ended_by_alpha)
        beam = beam._replace(log_probs=jnp.where(has_ended, -jnp.inf, beam.log_probs))
        return Search(length + 1, limits, beam, finished, cache)

    return jax.lax.while_loop(should_continue, advance, search)


def is_unfinished(search: Search) -> Bool[Array, "B"]:
    """Returns whether each sentence has an alive hypothesis."""
    return jnp.any(search.alive.log_probs > -jnp.inf, axis=1)


def extend_search(search: Search, cache: Any, capacity: int) -> Search:
    """Extends the capacity to `capacity` tokens; `cache` is `search.cache`, already extended."""

    def extend(tokens: Int[Array, "B W _"]) -> Int[Array, "B W L"]:
        added = capacity - tokens.shape[-1]
        return jnp.pad(tokens, ((0, 0), (0, 0), (0, added)), constant_values=PAD_ID)

    return search._replace(
        alive=search.alive._replace(tokens=extend(search.alive.tokens)),
        finished=tuple(x._replace(tokens=extend(x.tokens)) for x in search.finished),
        cache=cache,
    )


def take_rows(search: Search, rows: Int[Array, "_"]) -> Search:
    """Keeps the sentences in these rows and drops the others."""

    def take(x: Array) -> Array:
        sharding = None if spec("batch") is None else jax.typeof(x).sharding
        return x.at[rows].get(out_sharding=sharding)

    taken: Search = jax.tree.map(lambda x: take(x) if x.ndim else x, search)
    return taken


def _find_candidates(
    beam: Beam,
    logits: Float[Array, "B W V"],
    length: Int[Array, ""],
    at_limit: Bool[Array, "B 1"],
    num_candidates: int,
) -> Beam:
    """The C most probable hypotheses with one more token.

    At its limit, a sentence's candidates are its W hypotheses, each continued by EOS.
    """
    logits = _gather_vocabulary(logits).astype(jnp.float32)
    beam_size = logits.shape[1]
    # Normalised over all tokens, banned ones included: log P is the model's own probability.
    offsets = beam.log_probs - jax.nn.logsumexp(logits, axis=-1)
    log_probs, parents, last = grouped_top_k(logits, offsets, num_candidates)
    padding = (0, 0), (0, num_candidates - beam_size)
    eos_log_probs = jnp.pad(offsets + logits[..., EOS_ID], padding, constant_values=-jnp.inf)
    log_probs = jnp.where(at_limit, eos_log_probs, log_probs)
    parents = jnp.where(at_limit, jnp.arange(num_candidates) % beam_size, parents)
    last = jnp.where(at_limit, EOS_ID, last)
    history = jnp.take_along_axis(beam.tokens, parents[..., None], axis=1)
    is_new = jnp.arange(history.shape[-1]) == length
    return Beam(jnp.where(is_new, last[..., None], history), last, parents, log_probs)


def _gather_vocabulary(logits: Float[Array, "B W V"]) -> Float[Array, "B W V"]:
    """Reshards logits so that each device holds the whole vocabulary for its sentences."""
    whole = spec("batch", None, None)
    return logits if whole is None else jax.sharding.reshard(logits, whole)


def _finish(
    finished: Hypotheses, candidates: Beam, length: Int[Array, ""], alpha: float
) -> Hypotheses:
    """The R best of the hypotheses finished before and of the candidates that end in EOS."""
    is_new = (candidates.last == EOS_ID) & (candidates.log_probs > -jnp.inf)
    log_probs = jnp.where(is_new, candidates.log_probs, -jnp.inf)
    new = Hypotheses(
        tokens=jnp.where(is_new[..., None], candidates.tokens, PAD_ID),
        lengths=jnp.where(is_new, length, 0),
        scores=log_probs / length_penalty(length, alpha),
        log_probs=log_probs,
    )
    both = Hypotheses(*(jnp.concatenate(pair, axis=1) for pair in zip(finished, new, strict=True)))
    return _select(both, both.scores, finished.scores.shape[1])


def _select(slots: Slots, values: Float[Array, "B W"], count: int) -> Slots:
    """The `count` slots with the highest values, best first; ties go to the lower slot."""
    _, order = jax.lax.top_k(values, count)

    def take(x: Array) -> Array:
        return jnp.take_along_axis(x, order.reshape(*order.shape, *(1,) * (x.ndim - 2)), axis=1)

    return type(slots)(*map(take, slots))
