"""Matrix products at full precision: float32 operands are multiplied in float32 on any device.

JAX's default precision rounds float32 operands to TF32 on GPUs and to bfloat16 on TPUs.
"""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float


def choose_precision(*operands: Float[Array, "..."]) -> jax.lax.Precision | None:
    """Returns HIGHEST if the operands' common dtype is float32, else None (JAX's default).

    HIGHEST has no effect on operands in bfloat16, and Pallas kernels for TPUs do not accept it
    for them.
    """
    return jax.lax.Precision.HIGHEST if jnp.result_type(*operands) == jnp.float32 else None


def einsum(
    subscripts: str,
    *operands: Float[Array, "..."],
    preferred_element_type: DTypeLike | None = None,
    out_sharding: PartitionSpec | NamedSharding | None = None,
) -> Float[Array, "..."]:
    """As `jnp.einsum`, at full precision; JAX computes its gradients at the same precision."""
    return jnp.einsum(
        subscripts,
        *operands,
        precision=choose_precision(*operands),
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
    )
