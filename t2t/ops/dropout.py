"""Dropout whose backward pass computes the mask again instead of reading it from memory."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from t2t.model.dropout import draw_keep_mask


def dropout(x: Float[Array, "..."], rate: float, key: jax.Array | None) -> Float[Array, "..."]:
    """As `t2t.model.dropout.dropout`."""
    return x if key is None or rate == 0 else _drop(x, rate, jax.random.key_data(key))


def _drop(x: Float[Array, "..."], rate: float, key_data: UInt32[Array, "2"]) -> Float[Array, "..."]:
    @jax.custom_vjp
    def drop(x: Float[Array, "..."], key_data: UInt32[Array, "2"]) -> Float[Array, "..."]:
        scaled = x.astype(jnp.float32) / (1 - rate)
        return jnp.where(draw_keep_mask(x, rate, key_data), scaled, 0).astype(x.dtype)

    def forward(
        x: Float[Array, "..."], key_data: UInt32[Array, "2"]
    ) -> tuple[Float[Array, "..."], UInt32[Array, "2"]]:
        return drop(x, key_data), key_data

    def backward(
        key_data: UInt32[Array, "2"], gradient: Float[Array, "..."]
    ) -> tuple[Float[Array, "..."], None]:
        # Dropout is linear, and its own transpose. The barrier keeps XLA from storing the mask
        # of the forward pass: reading it from memory takes longer than computing the hash again.
        return drop(gradient, jax.lax.optimization_barrier(key_data)), None

    drop.defvjp(forward, backward)
    return drop(x, key_data)
