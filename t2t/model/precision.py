"""Products at the precision of their operands' dtype: what says float32 is float32 on any device.

JAX's default rounds float32 operands to TF32 on GPUs and to bfloat16 on TPUs.
"""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float


def choose_precision(*operands: Float[Array, "..."]) -> jax.lax.Precision | None:
    """HIGHEST for float32 operands.

    For others None, JAX's default: HIGHEST changes nothing for them, and kernels for TPUs refuse
    it.
    """
    return jax.lax.Precision.HIGHEST if jnp.result_type(*operands) == jnp.float32 else None


def einsum(
    subscripts: str,
    *operands: Float[Array, "..."],
    preferred_element_type: DTypeLike | None = None,
    out_sharding: PartitionSpec | NamedSharding | None = None,
) -> Float[Array, "..."]:
    """`jnp.einsum` at the precision of its operands' dtype; its gradients are, too."""
    return jnp.einsum(
        subscripts,
        *operands,
        precision=choose_precision(*operands),
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
    )
