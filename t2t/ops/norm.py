"""Normalisation in one pass over x, which keeps its result and one number a position."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def standardize(x: Float[Array, "B T D"], *, centred: bool) -> Float[Array, "B T D"]:
    """As `t2t.model.norm.standardize`.

    The variance is mean(x^2) - mean(x)^2, so rows far from zero lose some accuracy.
    """

    @jax.custom_vjp
    def run(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return forward(x)[0]

    def forward(x: Float[Array, "B T D"]) -> tuple[Float[Array, "B T D"], tuple[Array, Array]]:
        x32 = x.astype(jnp.float32)
        mean = x32.mean(axis=-1, keepdims=True) if centred else 0.0
        # The clip is for what rounding leaves of a constant x.
        variance = jnp.square(x32).mean(axis=-1, keepdims=True) - jnp.square(mean)
        inverse = jax.lax.rsqrt(jnp.maximum(variance, 0) + 1e-6)
        standard = ((x32 - mean) * inverse).astype(x.dtype)
        return standard, (standard, inverse)

    def backward(kept: tuple[Array, Array], gradient: Float[Array, "B T D"]) -> tuple[Array]:
        standard, inverse = kept
        gradient32, standard32 = gradient.astype(jnp.float32), standard.astype(jnp.float32)
        along = gradient32 - standard32 * (standard32 * gradient32).mean(axis=-1, keepdims=True)
        mean = gradient32.mean(axis=-1, keepdims=True) if centred else 0.0
        return (((along - mean) * inverse).astype(gradient.dtype),)

    run.defvjp(forward, backward)
    return run(x)
