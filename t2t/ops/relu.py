"""max(0, x), which keeps its result alone for the backward pass, and not x."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.custom_vjp
def relu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """As `jax.nn.relu`."""
    return jax.nn.relu(x)


relu.defvjp(
    lambda x: 2 * (relu(x),),
    lambda result, gradient: (jnp.where(result > 0, gradient, 0),),
)
