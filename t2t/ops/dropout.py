"""Dropout that keeps nothing for the backward pass: its mask is computed again there."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from t2t.model.dropout import draw_kept


def dropout(x: Float[Array, "..."], rate: float, key: jax.Array | None) -> Float[Array, "..."]:
    """As `t2t.model.dropout.dropout`."""
    return x if key is None or rate == 0 else _drop(x, rate, jax.random.key_data(key))


def _drop(x: Float[Array, "..."], rate: float, words: UInt32[Array, "2"]) -> Float[Array, "..."]:
    @jax.custom_vjp
    def drop(x: Float[Array, "..."], words: UInt32[Array, "2"]) -> Float[Array, "..."]:
        return jnp.where(draw_kept(x, rate, words), x / (1 - rate), 0).astype(x.dtype)

    def forward(
        x: Float[Array, "..."], words: UInt32[Array, "2"]
    ) -> tuple[Float[Array, "..."], UInt32[Array, "2"]]:
        return drop(x, words), words

    def backward(
        words: UInt32[Array, "2"], gradient: Float[Array, "..."]
    ) -> tuple[Float[Array, "..."], None]:
        # Dropout is linear in x, so it is its own transpose. The barrier keeps the compiler from
        # storing the mask of the forward pass: reading it takes longer than hashing again.
        return drop(gradient, jax.lax.optimization_barrier(words)), None

    drop.defvjp(forward, backward)
    return drop(x, words)
