"""Matrix products at full precision: float32 operands are multiplied in float32 on any device.

JAX's default precision rounds float32 operands to TF32 on GPUs and to bfloat16 on TPUs.
"""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float


def choose_precision(*operands: Float[Array, "..."]) -> jax.lax.Precision | None:
    """Returns HIGHEST for float32 operands, else None, which is JAX's default.

    HIGHEST would not change products in other dtypes, and TPU kernels raise an error for it.
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
