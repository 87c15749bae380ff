"""Beam search (section 6.1 of the paper), and greedy search as the beam of one.

Pure, under `jit`, and ignorant of the model: it sees a function from tokens to logits. The search
holds no cache and moves none; it says at each step which slot a slot continues.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2t.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.sharding import spec

NEVER = (PAD_ID, BOS_ID)  # stand in no sentence; the unknown word may, where data holds it


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


Slots = TypeVar("Slots", Beam, Hypotheses)
Finished = tuple[Hypotheses, ...]  # for each alpha
State = tuple[Int[Array, ""], Beam, Finished, Any]  # length, growing, finished, cache


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
    """Searches the Y with the highest log P(Y) / lp(Y): `search_with_alphas` with one of them."""
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
    """Searches the Y with the highest log P(Y) / lp(Y), for each of several length penalties.

    Of the 2W best continuations at each step, those that end in EOS are finished, and the W best
    others grow on. With W = 1 the best continuation alone counts: greedy search. A sentence is
    done when nothing that grows can still reach its R-th best finished hypothesis: log P only
    falls, so log P / lp(limit) bounds what may come. Stopping there changes no result.

    Which hypotheses grow follows from log P alone, and alpha only ranks those that are finished: so
    one search finds for each alpha what a search with that alpha would, if it goes on until it is
    done for all of them.

    Args:
        decode_step: the model.
        cache: its state before the first step.
        max_lengths: each sentence's limit in tokens, EOS included. The token at the limit can only
            be EOS, so that every hypothesis ends. A limit of 0 marks an empty row: no step for it.
        max_length: L; limits all of `max_lengths`.
        beam_size: W.
        alphas: exponents of the length penalty; 0 ranks by log P.
        n_best: R, how many hypotheses are wanted, by default W. Fewer are done sooner.
    """
    limits = jnp.minimum(max_lengths, max_length)[:, None]
    num_candidates = 2 * beam_size if beam_size > 1 else 1

    def is_searching(state: State) -> Bool[Array, ""]:
        _, beam, _, _ = state
        return jnp.any(beam.log_probs > -jnp.inf)

    def advance(state: State) -> State:
        length, beam, finished, cache = state
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
        return length + 1, beam, finished, cache

    beam, finished = _start(limits, beam_size, n_best or beam_size, max_length)
    state = jnp.zeros((), jnp.int32), beam, (finished,) * len(alphas), cache
    return jax.lax.while_loop(is_searching, advance, state)[2]


def _start(
    limits: Int[Array, "B 1"], beam_size: int, n_best: int, max_length: int
) -> tuple[Beam, Hypotheses]:
    """The empty hypothesis of each sentence in slot 0; nothing is finished."""

    def fill(shape: tuple[int, ...], value: float, dtype: jnp.dtype) -> Array:
        # From the limits, so that a row lies on the device on which its sentence does.
        first = limits.reshape(-1, *(1 for _ in shape))
        return jnp.zeros_like(first, dtype) + jnp.full(shape, value, dtype)

    integer = limits.dtype
    slots = fill((beam_size,), 0, integer) + jnp.arange(beam_size, dtype=integer)
    beam = Beam(
        tokens=fill((beam_size, max_length), PAD_ID, integer),
        last=jnp.full_like(slots, BOS_ID),
        parents=slots,
        log_probs=jnp.where((slots == 0) & (limits > 0), 0.0, -jnp.inf),
    )
    finished = Hypotheses(
        tokens=fill((n_best, max_length), PAD_ID, integer),
        lengths=fill((n_best,), 0, integer),
        scores=fill((n_best,), -jnp.inf, jnp.dtype(jnp.float32)),
        log_probs=fill((n_best,), -jnp.inf, jnp.dtype(jnp.float32)),
    )
    return beam, finished


def _extend(
    beam: Beam,
    logits: Float[Array, "B W V"],
    length: Int[Array, ""],
    only_eos: Bool[Array, "B 1"],
    num_candidates: int,
) -> Beam:
    """The most probable hypotheses that are one token longer, best first.

    A candidate's slot contributes at most `num_candidates`, so they are chosen slot by slot before
    the slots are compared; equal ones in the order of slot and token.
    """
    logits = _gather_vocabulary(logits).astype(jnp.float32)
    ids = jnp.arange(logits.shape[-1])
    banned = jnp.isin(ids, jnp.array(NEVER)) | (only_eos[..., None] & (ids != EOS_ID))
    best, tokens = jax.lax.top_k(
        jnp.where(banned, -jnp.inf, logits), min(num_candidates, logits.shape[-1])
    )
    # The banned tokens keep their share of the probability: log P is the model's own.
    totals = beam.log_probs[..., None] + best - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    flat = totals.reshape(totals.shape[0], -1)
    log_probs, order = jax.lax.top_k(flat, num_candidates)
    parents = order // best.shape[-1]
    last = jnp.take_along_axis(tokens.reshape(flat.shape), order, axis=1)
    history = jnp.take_along_axis(beam.tokens, parents[..., None], axis=1)
    here = jnp.arange(history.shape[-1]) == length
    return Beam(jnp.where(here, last[..., None], history), last, parents, log_probs)


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
