"""Products of activations with weights; their gradients multiply operands of the same dtype."""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from t2t.model.compute_policy import Placement
from t2t.model.matmul import einsum

Operands = tuple[Float[Array, "..."], Float[Array, "..."]]  # activations and weights


def multiply(
    subscripts: str,
    x: Float[Array, "..."],
    weights: Float[Array, "..."],
    dtype: jnp.dtype,
    out_sharding: Placement = None,
) -> Float[Array, "..."]:
    """As `t2t.model.matmul.multiply`, for float32 weights, whose gradient is a float32 result.

    The gradients are products of operands in `dtype`, too. With bfloat16, JAX's own gradient of the
    weights would be rounded to bfloat16 on each device, before the devices add up theirs. And if x
    is float32, JAX would multiply with a float32 cotangent. CPUs multiply bfloat16 fast only if
    both operands are bfloat16 and the result is float32.
    """
    if dtype == jnp.float32:
        return einsum(subscripts, x, weights, out_sharding=out_sharding)
    return _multiply_rounded(subscripts, x, weights, dtype, out_sharding)


def project(
    x: Float[Array, "B T D"],
    weights: Float[Array, "D G P"],
    splits: tuple[int, ...],
    dtype: jnp.dtype,
) -> Sequence[Float[Array, "B T G _"]]:
    """As `t2t.model.matmul.project`.

    Splitting an array copies it. In training x has many positions (B * T), so this function splits
    the weights. In a decoding step x has few, so it splits the product of x with all weights. The
    threshold, G * P positions, has not been tuned.
    """
    split = functools.partial(jnp.split, indices_or_sections=splits, axis=-1)
    product = functools.partial(multiply, "BTD,DGP->BTGP", x, dtype=dtype)
    if math.prod(x.shape[:2]) < math.prod(weights.shape[1:]):
        return list(split(product(weights)))
    return [product(part) for part in split(weights)]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3, 4))
def _multiply_rounded(
    subscripts: str,
    x: Float[Array, "..."],
    weights: Float[Array, "..."],
    dtype: jnp.dtype,
    out_sharding: Placement,
) -> Float[Array, "..."]:
    return _forward(subscripts, x, weights, dtype, out_sharding)[0]


def _forward(
    subscripts: str,
    x: Float[Array, "..."],
    weights: Float[Array, "..."],
    dtype: jnp.dtype,
    out_sharding: Placement,
) -> tuple[Float[Array, "..."], Operands]:
    operands = x.astype(dtype), weights.astype(dtype)
    return _multiply(subscripts, *operands, x.dtype, out_sharding), operands


def _backward(
    subscripts: str,
    dtype: jnp.dtype,
    out_sharding: Placement,
    operands: Operands,
    gradient: Float[Array, "..."],
) -> Operands:
    del out_sharding
    x, weights = operands
    x_axes, weight_axes, result_axes = subscripts.replace("->", ",").split(",")
    rounded = gradient.astype(dtype)
    to_x = f"{result_axes},{weight_axes}->{x_axes}"
    to_weights = f"{x_axes},{result_axes}->{weight_axes}"
    return (
        _multiply(to_x, rounded, weights, gradient.dtype, _placement(x)),
        _multiply(to_weights, x, rounded, jnp.dtype("float32"), _placement(weights)),
    )


_multiply_rounded.defvjp(_forward, _backward)


def _multiply(
    subscripts: str,
    x: Float[Array, "..."],
    y: Float[Array, "..."],
    result_dtype: jnp.dtype,
    out_sharding: Placement,
) -> Float[Array, "..."]:
    return einsum(subscripts, x, y, preferred_element_type=result_dtype, out_sharding=out_sharding)


def _placement(x: Float[Array, "..."]) -> Placement:
    """The sharding of the gradient of x."""
    sharding: NamedSharding = jax.typeof(x).sharding
    if sharding.mesh.empty:
        return None
    spec = sharding.spec
    return sharding.update(spec=PartitionSpec(*spec.partitions, unreduced=spec.reduced))
