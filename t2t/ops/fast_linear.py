"""Products of activations with weights; their gradients multiply operands of the same dtype."""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from t2t.model.compute_policy import Placement
from t2t.model.linear import add_bias, einsum, repeat_operand

Operands = tuple[Float[Array, "..."], Float[Array, "..."]]  # activations and weights


def multiply(
    subscripts: str,
    x: Float[Array, "..."],
    weights: Float[Array, "..."],
    out_sharding: Placement = None,
    *,
    dtype: jnp.dtype,
) -> Float[Array, "..."]:
    """As `t2t.model.linear.multiply`, for float32 weights; their gradient is float32, too.

    Both gradients multiply operands in `dtype`. JAX's own gradient of the weights would be rounded
    to bfloat16 on each device, before the devices add up theirs. If x is float32, JAX would
    multiply with a float32 cotangent. CPUs multiply bfloat16 fast only if both operands are
    bfloat16 and the result is float32.
    """
    return _multiply(subscripts, x, weights, out_sharding, dtype, x.dtype)


def affine(
    subscripts: str,
    x: Float[Array, "..."],
    weights: Float[Array, "..."],
    bias: Float[Array, "..."],
    out_sharding: Placement = None,
    *,
    dtype: jnp.dtype,
) -> Float[Array, "..."]:
    """As `t2t.model.linear.affine`, with the gradients of `multiply`."""
    return add_bias(multiply(subscripts, x, weights, out_sharding, dtype=dtype), bias)


def affine_on_gpu(
    subscripts: str,
    x: Float[Array, "..."],
    weights: Float[Array, "..."],
    bias: Float[Array, "..."],
    out_sharding: Placement = None,
    *,
    dtype: jnp.dtype,
) -> Float[Array, "..."]:
    """As `affine`, but rounded once, after the bias, instead of before and after it.

    So XLA adds the bias in the kernel that multiplies, and a ReLU that follows is computed there,
    too. The bias stays float32: with one in bfloat16 XLA would call cuBLASLt's sum with a bias,
    into which versions of it folded a later factor wrongly (github.com/openxla/xla/issues/46110).
    """
    product = _multiply(subscripts, x, weights, out_sharding, dtype, jnp.dtype("float32"))
    return add_bias(product, bias).astype(x.dtype)


def _multiply(
    subscripts: str,
    x: Float[Array, "..."],
    weights: Float[Array, "..."],
    out_sharding: Placement,
    dtype: jnp.dtype,
    result_dtype: jnp.dtype,
) -> Float[Array, "..."]:
    """As `multiply`, with a result in `result_dtype`."""
    x_dtype = x.dtype

    def compute(x: Float[Array, "..."], weights: Float[Array, "..."]) -> Float[Array, "..."]:
        operands = x.astype(dtype), weights.astype(dtype)
        return einsum(
            subscripts, *operands, preferred_element_type=result_dtype, out_sharding=out_sharding
        )

    if dtype == jnp.float32:
        return compute(x, weights)
    x_axes, weight_axes, result_axes = subscripts.replace("->", ",").split(",")

    def forward(
        x: Float[Array, "..."], weights: Float[Array, "..."]
    ) -> tuple[Float[Array, "..."], Operands]:
        return compute(x, weights), (x.astype(dtype), weights.astype(dtype))

    def backward(operands: Operands, gradient: Float[Array, "..."]) -> Operands:
        x, weights = operands
        rounded = gradient.astype(dtype)
        x_gradient = einsum(
            f"{result_axes},{weight_axes}->{x_axes}",
            rounded,
            weights,
            preferred_element_type=x_dtype,
            out_sharding=_placement(x),
        )
        weight_gradient = einsum(
            f"{x_axes},{result_axes}->{weight_axes}",
            x,
            rounded,
            preferred_element_type=jnp.float32,
            out_sharding=_placement(weights),
        )
        return x_gradient, weight_gradient

    run = jax.custom_vjp(compute)
    run.defvjp(forward, backward)
    return run(x, weights)


def multiply_parts(
    x: Float[Array, "B T D"] | Sequence[Float[Array, "B T D"]],
    weights: Float[Array, "D G P"],
    splits: Sequence[int],
    *,
    dtype: jnp.dtype,
) -> Sequence[Float[Array, "B T G _"]]:
    """As `t2t.model.linear.multiply_parts`.

    Splitting an array copies it. In training x has many positions (B * T), so this function splits
    the weights. In a decoding step x has few, so it splits the product of x with all weights. The
    threshold, G * P positions, has not been tuned.
    """
    split = functools.partial(jnp.split, indices_or_sections=splits, axis=-1)
    product = functools.partial(multiply, "BTD,DGP->BTGP", dtype=dtype)
    operands = repeat_operand(x, len(splits) + 1)
    if math.prod(operands[0].shape[:2]) < math.prod(weights.shape[1:]):
        return list(split(product(operands[0], weights)))
    return [product(*each) for each in zip(operands, split(weights), strict=True)]


def _placement(x: Float[Array, "..."]) -> Placement:
    """The sharding of the gradient of x."""
    sharding: NamedSharding = jax.typeof(x).sharding
    if sharding.mesh.empty:
        return None
    spec = sharding.spec
    return sharding.update(spec=PartitionSpec(*spec.partitions, unreduced=spec.reduced))
