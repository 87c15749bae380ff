"""Beam search (section 6.1 of the paper); a beam of one is greedy search, or sampling.

The functions are pure, run under `jit`, and know the model only as a function from tokens to logits
(`DecodeStep`). A slot is one of the W places of a sentence's beam. The search never reorders
the slots of the model's cache: each step passes `parents`, the slot that each slot continues.
`continue_search` may pause before the search has ended, and is then called again, which changes no
result. In a pause the caller can enlarge the arrays for longer hypotheses (`extend_search`) and
drop sentences whose search has ended (`take_rows`).

Dimensions besides those in `data/batch.py`: R finished hypotheses kept, C candidates of one step.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.decoding.sampling import BANNED_TOKENS, Sampler, Stream
from t2t.runtime.mesh import reshard, spec

# Candidates for the number of groups; the one that pads V least is taken (benchmarks/LOG.md).
_GROUP_COUNTS = range(192, 384)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LengthPenalty:
    """A penalty that does not fall with the length, since alpha is at least 0.

    Alpha is an argument of compiled programs, so that another value needs no other program.
    """

    kind: str = dataclasses.field(metadata={"static": True})  # gnmt | length | none
    alpha: Any  # a number, or a scalar of a compiled program

    def __call__(self, length: Int[Array, "..."] | int) -> Float[Array, "..."] | float:
        """Computes lp(Y) from |Y|, which counts EOS."""
        match self.kind:
            case "gnmt":  # Wu et al. 2016, equation 14
                return ((5 + length) / 6) ** self.alpha
            case "length":
                return length**self.alpha
            case "none":
                return 1.0
            case other:
                raise ValueError(f"decoding.length_penalty={other!r} is unknown")


class Constraints(NamedTuple):
    """Constraints on the hypotheses of each sentence; P is the longest prefix."""

    prefixes: Any  # int B P: the first tokens of each sentence's hypotheses, then PAD
    min_length: Any  # int: least number of tokens before EOS


def constrain(
    logits: Float[Array, "B W V"], constraints: Constraints, length: Int[Array, ""]
) -> Float[Array, "B W V"]:
    """Sets the logits of tokens that may not follow `length` tokens to -inf."""
    tokens = jnp.arange(logits.shape[-1])
    forced = constraints.prefixes.at[:, length].get(mode="fill", fill_value=PAD_ID)[:, None]
    is_allowed = jnp.where(forced == PAD_ID, True, tokens == forced)
    is_allowed &= (tokens != EOS_ID) | (length >= constraints.min_length)
    return jnp.where(is_allowed[:, None], logits, -jnp.inf)


# One step of a model for all slots, as `t2t.model.interface.Model.decode_step` describes it:
# (tokens, parents, cache) -> (logits of the next token, cache for the next call). In the first step
# all tokens are BOS.
DecodeStep = Callable[
    [Int[Array, "B W"], Int[Array, "B W"], Any], tuple[Float[Array, "B W V"], Any]
]


class Hypotheses(NamedTuple):
    """The R best finished hypotheses of each sentence, best first; missing ones score -inf."""

    tokens: Int[Array, "B R L"]  # w1 ... wn EOS PAD ...
    lengths: Int[Array, "B R"]  # tokens, EOS included; 0 if missing
    scores: Float[Array, "B R"]  # log_probs / penalty(lengths)
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
    finished: tuple[Hypotheses, ...]  # one for each length penalty
    cache: Any  # the model's: scalars, and arrays with one row per sentence
    constraints: Constraints | None = None
    stream: Stream | None = None  # of a search that samples


Ranked = TypeVar("Ranked", Beam, Hypotheses)


def start_search(
    cache: Any,
    *,
    max_lengths: Int[Array, "B"],
    capacity: int,
    beam_size: int,
    n_best: int,
    num_penalties: int = 1,
    first: Int[Array, "B"] | None = None,
    constraints: Constraints | None = None,
    stream: Stream | None = None,
) -> Search:
    """The initial state: an empty hypothesis in slot 0 of each sentence, none finished.

    Args:
        cache: the model's cache before the first step, with space for `capacity` steps.
        max_lengths: each sentence's limit in tokens, EOS included. At the limit only EOS is
            allowed, so every hypothesis ends. A limit of 0 marks a row without a sentence.
        capacity: L, the number of tokens for which the arrays have space; see `extend_search`.
        beam_size: W.
        n_best: R, the number of hypotheses to return. With a smaller R the search ends sooner.
        num_penalties: the number of length penalties to rank by.
        first: the token that each sentence's first step takes; None: BOS.
        constraints: prefixes and the minimum length of the hypotheses.
        stream: names of the random numbers, for a search that samples with a beam of one.
    """
    limits = max_lengths[:, None]

    def fill(shape: tuple[int, ...], value: float, dtype: jnp.dtype) -> Array:
        # Derived from `limits`, so that the array inherits its sharding over sentences.
        per_sentence = limits.reshape(-1, *(1 for _ in shape))
        return jnp.zeros_like(per_sentence, dtype) + jnp.full(shape, value, dtype)

    integer = limits.dtype
    slots = fill((beam_size,), 0, integer) + jnp.arange(beam_size, dtype=integer)
    alive = Beam(
        tokens=fill((beam_size, capacity), PAD_ID, integer),
        last=jnp.full_like(slots, BOS_ID) if first is None else slots * 0 + first[:, None],
        parents=slots,
        log_probs=jnp.where((slots == 0) & (limits > 0), 0.0, -jnp.inf),
    )
    finished = Hypotheses(
        tokens=fill((n_best, capacity), PAD_ID, integer),
        lengths=fill((n_best,), 0, integer),
        scores=fill((n_best,), -jnp.inf, jnp.dtype(jnp.float32)),
        log_probs=fill((n_best,), -jnp.inf, jnp.dtype(jnp.float32)),
    )
    start, ranked = jnp.zeros((), jnp.int32), (finished,) * num_penalties
    return Search(start, limits, alive, ranked, cache, constraints, stream)


def continue_search(
    decode_step: DecodeStep,
    search: Search,
    penalties: Sequence[LengthPenalty],
    pause_at: Int[Array, ""] | int = 0,
    sampler: Sampler | None = None,
    until: Int[Array, ""] | None = None,
) -> Search:
    """Searches for the Y with the highest log P(Y) / lp(Y); pauses when the capacity is full.

    Each step takes the 2W most probable continuations of a sentence. At most W of them have EOS,
    one for each slot, and are finished hypotheses; the W best others stay alive. With W = 1 it
    takes only the best one (greedy), or the one that the sampler draws.

    The search of a sentence ends when no alive hypothesis can overtake its R-th best finished one.
    Further tokens cannot raise the log P of a hypothesis, which is at most 0. They can raise its
    penalty, but at most to lp(limit), since lp never decreases with the length. So log P /
    lp(limit) is an upper bound of its final score. Once this bound is no better than the R-th best
    finished score, ending the search changes no result.

    Penalties only rank finished hypotheses; log P alone decides which ones stay alive. So one
    search, continued until it ends for every penalty, finds the same as a separate search for each.

    `search` is the result of `start_search`, or of an earlier call. The search pauses once
    `pause_at` sentences, or fewer, are unfinished, or at the length `until`. With a sampler the
    beam size must be 1.
    """
    beam_size, capacity = search.alive.tokens.shape[1:]
    num_candidates = 2 * beam_size if beam_size > 1 else 1
    longest = capacity if until is None else jnp.minimum(capacity, until)

    def should_continue(search: Search) -> Bool[Array, ""]:
        return (is_unfinished(search).sum() > pause_at) & (search.length < longest)

    def advance(search: Search) -> Search:
        length = search.length + 1
        logits, cache = decode_step(search.alive.last, search.alive.parents, search.cache)
        candidates = _find_candidates(search, logits, num_candidates, sampler)
        finished = tuple(
            _finish(found, candidates, length, penalty)
            for found, penalty in zip(search.finished, penalties, strict=True)
        )
        log_probs = jnp.where(candidates.last == EOS_ID, -jnp.inf, candidates.log_probs)
        beam = _select(candidates._replace(log_probs=log_probs), log_probs, beam_size)
        best = beam.log_probs[:, :1]
        ended_by_penalty = [
            found.scores[:, -1:] >= best / penalty(search.limits)
            for found, penalty in zip(finished, penalties, strict=True)
        ]
        has_ended = functools.reduce(jnp.logical_and, ended_by_penalty)
        # -inf empties the slots, so that `is_unfinished` is False.
        beam = beam._replace(log_probs=jnp.where(has_ended, -jnp.inf, beam.log_probs))
        return search._replace(length=length, alive=beam, finished=finished, cache=cache)

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
        sharding = None if spec() is None else jax.typeof(x).sharding  # `spec()`: is there a mesh?
        return x.at[rows].get(out_sharding=sharding)

    taken: Search = jax.tree.map(lambda x: take(x) if x.ndim else x, search)
    return taken


def _find_candidates(
    search: Search,
    logits: Float[Array, "B W V"],
    num_candidates: int,
    sampler: Sampler | None,
) -> Beam:
    """The C most probable hypotheses with one more token, or the one with a drawn token.

    At its limit, a sentence's candidates are its W hypotheses, each continued by EOS.
    """
    # Each device holds the whole vocabulary for its sentences.
    logits = reshard(logits, "batch", None, None).astype(jnp.float32)
    beam, length, beam_size = search.alive, search.length, logits.shape[1]
    at_limit = length + 1 >= search.limits
    # `logits + offsets` is log P of each hypothesis with each next token. It is normalised over all
    # tokens, banned ones included, so it is the model's own probability.
    offsets = beam.log_probs - jax.nn.logsumexp(logits, axis=-1)
    padding = (0, 0), (0, num_candidates - beam_size)
    eos_log_probs = jnp.pad(offsets + logits[..., EOS_ID], padding, constant_values=-jnp.inf)
    if search.constraints is not None:
        logits = constrain(logits, search.constraints, length)
    if sampler is None:
        log_probs, parents, last = grouped_top_k(logits, offsets, num_candidates)
    else:
        assert search.stream is not None
        log_probs, parents, last = sampler.draw(logits, offsets, search.stream, length)
    log_probs = jnp.where(at_limit, eos_log_probs, log_probs)
    parents = jnp.where(at_limit, jnp.arange(num_candidates) % beam_size, parents)
    last = jnp.where(at_limit, EOS_ID, last)
    history = jnp.take_along_axis(beam.tokens, parents[..., None], axis=1)
    is_new = jnp.arange(history.shape[-1]) == length
    return Beam(jnp.where(is_new, last[..., None], history), last, parents, log_probs)


def _finish(
    finished: Hypotheses, candidates: Beam, length: Int[Array, ""], penalty: LengthPenalty
) -> Hypotheses:
    """The R best of the hypotheses finished before and of the candidates that end in EOS."""
    is_new = (candidates.last == EOS_ID) & (candidates.log_probs > -jnp.inf)
    log_probs = jnp.where(is_new, candidates.log_probs, -jnp.inf)
    new = Hypotheses(
        tokens=jnp.where(is_new[..., None], candidates.tokens, PAD_ID),
        lengths=jnp.where(is_new, length, 0),
        scores=log_probs / penalty(length),
        log_probs=log_probs,
    )
    both = Hypotheses(*(jnp.concatenate(pair, axis=1) for pair in zip(finished, new, strict=True)))
    return _select(both, both.scores, finished.scores.shape[1])


def _select(found: Ranked, values: Float[Array, "B W"], count: int) -> Ranked:
    """The `count` hypotheses with the highest values, best first; ties go to the first."""
    _, order = jax.lax.top_k(values, count)

    def take(x: Array) -> Array:
        return jnp.take_along_axis(x, order.reshape(*order.shape, *(1,) * (x.ndim - 2)), axis=1)

    return type(found)(*map(take, found))


def grouped_top_k(
    logits: Float[Array, "B W V"], offsets: Float[Array, "B W"], count: int
) -> tuple[Float[Array, "B C"], Int[Array, "B C"], Int[Array, "B C"]]:
    """The `count` largest values of logits + offsets over slots and tokens, without banned tokens.

    `offsets` holds what is added to all logits of a slot.

    Returns the values, best first, with their slots and tokens. Ties between slots go to the lower
    slot. Ties within a slot go to the lower token only if the vocabulary is too small for groups.

    So that few logits are sorted, the tokens of each slot are divided into groups. If no
    token were banned, the `count` best values would lie in the `count` groups with the largest
    maxima. A banned token may be the maximum of a group, so one more group is taken for each banned
    token of each slot.
    With n groups, group g holds the tokens g, g + n, g + 2n, ..., so the maxima of all groups are
    elementwise maxima of contiguous vectors.
    """
    batch, beam_size, vocab_size = logits.shape
    num_groups = _choose_num_groups(vocab_size)
    padding = (0, 0), (0, 0), (0, -vocab_size % num_groups)
    logits = jnp.pad(logits, padding, constant_values=-jnp.inf)
    group_size = logits.shape[-1] // num_groups
    maxima = logits.reshape(batch, beam_size, group_size, num_groups).max(axis=2)
    maxima += offsets[..., None]
    num_taken = min(count + len(BANNED_TOKENS) * beam_size, beam_size * num_groups)
    # Sorted by slot and group, because `top_k` prefers the first of equal values.
    taken = jnp.sort(jax.lax.top_k(maxima.reshape(batch, -1), num_taken)[1])
    slots, groups = (jnp.repeat(x, group_size, axis=1) for x in jnp.divmod(taken, num_groups))
    tokens = groups + jnp.tile(num_groups * jnp.arange(group_size), num_taken)
    indices = slots * logits.shape[-1] + tokens
    totals = _take(logits.reshape(batch, -1), indices) + _take(offsets, slots)
    is_banned = (tokens[..., None] == jnp.array(BANNED_TOKENS)).any(axis=-1)
    largest, order = jax.lax.top_k(jnp.where(is_banned, -jnp.inf, totals), count)
    return largest, _take(slots, order), _take(tokens, order)


def _choose_num_groups(vocab_size: int) -> int:
    """The number of groups that needs the least padding, or V if the vocabulary is small."""
    if vocab_size < 4 * _GROUP_COUNTS[0]:
        return vocab_size
    return min(_GROUP_COUNTS, key=lambda num_groups: -vocab_size % num_groups)


def _take(x: Array, indices: Int[Array, "B C"]) -> Array:
    """x[b, indices[b, c]] for each b and c; all indices must be in bounds."""
    return jnp.take_along_axis(x, indices, axis=1, mode="promise_in_bounds")
