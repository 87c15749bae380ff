"""Products of activations with weights, and sums with biases.

Float32 operands are multiplied in float32 on any device. JAX's default precision would round them
to TF32 on GPUs and to bfloat16 on TPUs.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2t.model.compute_policy import Placement


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
    out_sharding: Placement = None,
) -> Float[Array, "..."]:
    """As `jnp.einsum`, at full precision; JAX computes its gradients at the same precision."""
    return jnp.einsum(
        subscripts,
        *operands,
        precision=choose_precision(*operands),
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
    )


def multiply(
    subscripts: str,
    x: Float[Array, "..."],
    weights: Float[Array, "..."],
    dtype: jnp.dtype,
    out_sharding: Placement = None,
) -> Float[Array, "..."]:
    """Computes einsum(subscripts, x, weights) with operands cast to `dtype`.

    The result has the dtype of `x`.
    """
    return einsum(
        subscripts,
        x.astype(dtype),
        weights.astype(dtype),
        preferred_element_type=x.dtype,
        out_sharding=out_sharding,
    )


def project(
    x: Float[Array, "B T D"],
    weights: Float[Array, "D G P"],
    splits: tuple[int, ...],
    dtype: jnp.dtype,
) -> Sequence[Float[Array, "B T G _"]]:
    """Returns x times each part of the weights, which are split along P at indices `splits`.

    For self-attention the weights are [W^Q W^K W^V], and the results X W^Q, X W^K and X W^V.
    """
    return [
        multiply("BTD,DGP->BTGP", x, part, dtype) for part in jnp.split(weights, splits, axis=-1)
    ]


def add_bias(x: Float[Array, "..."], bias: Float[Array, "..."]) -> Float[Array, "..."]:
    """Adds a float32 bias in float32, and rounds the sum to the dtype of x.

    So JAX sums the bias's gradient over all positions in float32.
    """
    return (x + bias).astype(x.dtype)
