"""A model whose logits a test can compute in NumPy."""

import functools
from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Int

from t2t.data.batch import PAD_ID
from t2t.decoding.beam_search import (
    DecodeStep,
    Hypotheses,
    LengthPenalty,
    continue_search,
    start_search,
)
from t2t.decoding.sampling import Sampler
from tests.decoding.reference_search import NextLogProbs

BATCH, LENGTH, VOCABULARY = 8, 6, 6  # the last: PAD, BOS, EOS, UNK and two words


def gnmt(alpha: float) -> LengthPenalty:
    return LengthPenalty("gnmt", alpha)


@jax.tree_util.register_pytree_node_class
class ToyModel:
    """Logits that depend on the sentence and on every token before, each in its place.

    The cache is the prefix itself, gathered by parents: a wrong parent gives wrong logits.
    """

    def __init__(self, seed: int, scale: float = 1.5, vocabulary: int = VOCABULARY):
        keys = jax.random.split(jax.random.key(seed), 2)
        self.start = scale * jax.random.normal(keys[0], (BATCH, vocabulary))
        self.table = scale * jax.random.normal(keys[1], (LENGTH, vocabulary, vocabulary))

    def tree_flatten(self) -> tuple[tuple[Any, Any], None]:
        """Its arrays, so that a compiled search takes any model as an argument."""
        return (self.start, self.table), None

    @classmethod
    def tree_unflatten(cls, _: None, arrays: tuple[Any, Any]) -> Self:
        model = cls.__new__(cls)
        model.start, model.table = arrays
        return model

    def init_cache(self, rows: Any, beam_size: int) -> Any:
        start = self.start[rows][:, None] + jnp.zeros((beam_size, 1))
        return start, jnp.zeros((), jnp.int32)

    def decode_step(self, tokens: Any, parents: Any, cache: Any) -> Any:
        logits, step = cache
        logits = jnp.take_along_axis(logits, parents[..., None], axis=1)
        rolled = jnp.roll(logits, 1, axis=-1) * 0.7  # order matters: no sum of independent parts
        rows = jax.nn.one_hot(tokens, self.table.shape[-1]) @ self.table[step]
        logits = jnp.where(step == 0, logits, rolled + rows)
        return logits, (logits, step + 1)

    def decode_step_divided(self, tokens: Any, parents: Any, cache: Any) -> Any:
        """The step on a mesh (data, fsdp, tensor), with rows and vocabulary divided."""
        logits, cache = self.decode_step(tokens, parents, cache)
        divided = PartitionSpec(("data", "fsdp"), None, "tensor")
        return jax.sharding.reshard(logits, divided), cache

    def next_log_probs(self, row: int) -> NextLogProbs:
        start, table = np.asarray(self.start, np.float64), np.asarray(self.table, np.float64)

        @functools.cache
        def log_probs(prefix: tuple[int, ...]) -> np.ndarray:
            logits = start[row]
            for step, token in enumerate(prefix, start=1):
                logits = np.roll(logits, 1) * 0.7 + table[step, token]
            return np.asarray(logits - np.log(np.exp(logits).sum()))

        return log_probs


def tokens_of(found: Hypotheses, row: int, rank: int) -> tuple[int, ...]:
    length = found.lengths[row, rank]
    assert (found.tokens[row, rank, length:] == PAD_ID).all()
    return tuple(int(token) for token in found.tokens[row, rank, :length])


def beam_search(
    decode_step: DecodeStep,
    cache: Any,
    *,
    max_lengths: Int[Array, "B"],
    max_length: int,
    beam_size: int,
    penalties: Sequence[LengthPenalty],
    n_best: int | None = None,
    sampler: Sampler | None = None,
    **options: Any,
) -> tuple[Hypotheses, ...]:
    """Runs a whole search; returns the hypotheses ranked by each length penalty.

    For the arguments see `start_search` and `continue_search`. `max_lengths` are limited to
    `max_length`, the cache's capacity; n_best=None means `beam_size`.
    """
    search = start_search(
        cache,
        max_lengths=jnp.minimum(max_lengths, max_length),
        capacity=max_length,
        beam_size=beam_size,
        n_best=n_best or beam_size,
        num_penalties=len(penalties),
        **options,
    )
    return continue_search(decode_step, search, penalties, sampler=sampler).finished


@functools.partial(
    jax.jit, static_argnames=("kind", "beam_size", "n_best", "max_length", "sampler")
)
def _search_toy(
    model: ToyModel, limits: Any, alphas: Sequence[Any], kind: str, beam_size: int, **options: Any
) -> tuple[Hypotheses, ...]:
    return beam_search(
        model.decode_step,
        model.init_cache(jnp.arange(BATCH), beam_size),
        max_lengths=jnp.broadcast_to(limits, BATCH),
        beam_size=beam_size,
        penalties=[LengthPenalty(kind, alpha) for alpha in alphas],
        **options,
    )


def search_toy(
    model: ToyModel,
    limits: Any = LENGTH,
    *,
    kind: str = "gnmt",
    alphas: Sequence[float] = (0.6,),
    beam_size: int = 4,
    max_length: int = LENGTH,
    **options: Any,
) -> list[Hypotheses]:
    """Searches for all sentences of the model; returns NumPy arrays for each alpha.

    `options` are those of `beam_search`.
    """
    options |= {"kind": kind, "beam_size": beam_size, "max_length": max_length}
    return [*jax.tree.map(np.asarray, _search_toy(model, limits, alphas, **options))]
