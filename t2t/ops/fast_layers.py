"""Faster norm, dropout, ReLU, rotary positions, and the order of gradients.

All of them keep less for the backward pass than JAX would.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, UInt32

from t2t.model.layers import draw_keep_mask
from t2t.model.position import rotary_angles, rotate_pairs


def standardize(
    x: Float[Array, "B T D"], *, centred: bool, epsilon: float = 1e-6
) -> Float[Array, "B T D"]:
    """As `t2t.model.layers.standardize`, with mean and variance in one pass over x.

    For the backward pass it keeps its result and one number per position. The variance is
    mean(x^2) - mean(x)^2, which loses accuracy if the mean is large beside the standard deviation.
    """

    @jax.custom_vjp
    def run(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return forward(x)[0]

    def forward(x: Float[Array, "B T D"]) -> tuple[Float[Array, "B T D"], tuple[Array, Array]]:
        x32 = x.astype(jnp.float32)
        mean = x32.mean(axis=-1, keepdims=True) if centred else 0.0
        variance = jnp.square(x32).mean(axis=-1, keepdims=True) - jnp.square(mean)
        # Rounding can make the variance negative if all elements are equal, so it is clipped at 0.
        inverse = jax.lax.rsqrt(jnp.maximum(variance, 0) + epsilon)
        normalized = ((x32 - mean) * inverse).astype(x.dtype)
        return normalized, (normalized, inverse)

    def backward(residuals: tuple[Array, Array], gradient: Float[Array, "B T D"]) -> tuple[Array]:
        # For y = (x - mean) * inverse: dx = (dy - y mean(y dy) - mean(dy)) * inverse. The last
        # term belongs to the mean, so it is 0 without centring.
        y, inverse = residuals
        dy32, y32 = gradient.astype(jnp.float32), y.astype(jnp.float32)
        projected = dy32 - y32 * (y32 * dy32).mean(axis=-1, keepdims=True)
        mean = dy32.mean(axis=-1, keepdims=True) if centred else 0.0
        return (((projected - mean) * inverse).astype(gradient.dtype),)

    run.defvjp(forward, backward)
    return run(x)


def dropout(x: Float[Array, "..."], rate: float, key: jax.Array | None) -> Float[Array, "..."]:
    """As `t2t.model.layers.dropout`; the backward pass computes the mask again."""
    if key is None or rate == 0:
        return x

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
    return drop(x, jax.random.key_data(key))


@jax.custom_vjp
def relu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """As `jax.nn.relu`; keeps its result instead of x for the backward pass.

    The product with W2 that follows keeps this result, too, as its operand: one array for both.
    """
    return jax.nn.relu(x)


relu.defvjp(
    lambda x: 2 * (relu(x),),  # (result, array kept for the backward pass)
    lambda result, gradient: (jnp.where(result > 0, gradient, 0),),
)


def rotate(x: Float[Array, "B T H K"], positions: Int[Array, "*#B T"]) -> Float[Array, "B T H K"]:
    """As `t2t.model.position.rotate`; computes cosines and sines once.

    XLA computes them again for each row and head, inside of the loop that multiplies with them.
    """
    angles = rotary_angles(positions, x.shape[-1])
    cos, sin = jax.lax.optimization_barrier((jnp.cos(angles), jnp.sin(angles)))
    return rotate_pairs(x, cos, sin)


def weights_first(module: nnx.Module, inputs: Any) -> tuple[nnx.Module, Any]:
    """As `t2t.model.stack.keep_order`; the backward pass computes the block's gradients early.

    They are computed before the gradients of the inputs are passed on. Otherwise XLA may compute
    them at the end of the backward pass, and has to keep the activations that they need until then.
    In a step compiled for a TPU these activations took a third of the memory.
    """
    structure, params = nnx.split(module)
    params, inputs = _join_gradients(params, inputs)
    return nnx.merge(structure, params), inputs


@jax.custom_vjp
def _join_gradients(params: Any, inputs: Any) -> tuple[Any, Any]:
    """The identity; the backward pass computes all gradients before it passes on any."""
    return params, inputs


_join_gradients.defvjp(
    lambda params, inputs: ((params, inputs), None),
    lambda _, gradients: jax.lax.optimization_barrier(gradients),
)
