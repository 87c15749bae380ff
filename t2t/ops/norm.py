"""Normalisation that computes mean and variance in one pass over x.

For the backward pass it keeps its result and one number per position.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def standardize(x: Float[Array, "B T D"], *, centred: bool) -> Float[Array, "B T D"]:
    """As `t2t.model.norm.standardize`.

    The variance is mean(x^2) - mean(x)^2, which loses accuracy if the mean is large beside the
    standard deviation.
    """

    @jax.custom_vjp
    def run(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return forward(x)[0]

    def forward(x: Float[Array, "B T D"]) -> tuple[Float[Array, "B T D"], tuple[Array, Array]]:
        x32 = x.astype(jnp.float32)
        mean = x32.mean(axis=-1, keepdims=True) if centred else 0.0
        variance = jnp.square(x32).mean(axis=-1, keepdims=True) - jnp.square(mean)
        # Rounding can make the variance negative if all elements are equal, so it is clipped at 0.
        inverse = jax.lax.rsqrt(jnp.maximum(variance, 0) + 1e-6)
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
