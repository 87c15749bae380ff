"""Products of activations with weights, and the dtypes in which a model computes."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from t2t.model.precision import einsum
from t2t.runtime.mesh import platform

Operands = tuple[Float[Array, "..."], Float[Array, "..."]]  # activations and weights
Placement = PartitionSpec | NamedSharding | None


def compute_dtype(name: str) -> jnp.dtype:
    """Of activations: `auto` is bfloat16 where the hardware multiplies it faster."""
    if name == "auto":
        name = "float32" if platform() == "cpu" else "bfloat16"
    return jnp.dtype("float32" if name == "mixed" else name)


def product_dtype(name: str) -> jnp.dtype:
    """Of the operands of products with weights: `mixed` has them narrower than the rest."""
    return jnp.dtype("bfloat16") if name == "mixed" else compute_dtype(name)


def describe_products(name: str) -> str:
    """Dtypes and precision of all products under `model.dtype`, as runs and scores record them."""
    narrow, wide = "bfloat16 operands", "float32 operands at full precision"
    if compute_dtype(name) == jnp.bfloat16:
        return narrow
    return f"{narrow} with weights, else {wide}" if product_dtype(name) == jnp.bfloat16 else wide


def multiply(
    subscripts: str,
    x: Float[Array, "..."],
    weights: Float[Array, "..."],
    dtype: jnp.dtype,
    out_sharding: Placement = None,
) -> Float[Array, "..."]:
    """einsum(subscripts, x, weights) as wide as `x`, of operands in `dtype`; so its gradients.

    Of the letters summed over the weights have the first in the alphabet first: that is einsum's
    order, and others would be turned. Sums are float32. CPUs that multiply bfloat16 twice as fast
    do so into float32 alone, and not where one operand is wide, as in JAX's own gradient.
    """
    if x.dtype == dtype:
        return einsum(subscripts, x, weights.astype(dtype), out_sharding=out_sharding)
    return _multiply_narrow(subscripts, x, weights, dtype, out_sharding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3, 4))
def _multiply_narrow(
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
    return _sum_wide(subscripts, *operands, out_sharding), operands


def _backward(
    subscripts: str,
    dtype: jnp.dtype,
    out_sharding: Placement,
    operands: Operands,
    gradient: Float[Array, "..."],
) -> Operands:
    del out_sharding
    x, weights = operands
    of_x, of_weights, of_result = subscripts.replace("->", ",").split(",")
    narrow = gradient.astype(dtype)
    return (
        _sum_wide(f"{of_result},{of_weights}->{of_x}", narrow, weights, _placement(x)),
        _sum_wide(f"{of_x},{of_result}->{of_weights}", x, narrow, _placement(weights)),
    )


_multiply_narrow.defvjp(_forward, _backward)


def _sum_wide(
    subscripts: str, x: Float[Array, "..."], y: Float[Array, "..."], out_sharding: Placement
) -> Float[Array, "..."]:
    return einsum(subscripts, x, y, preferred_element_type=jnp.float32, out_sharding=out_sharding)


def _placement(x: Float[Array, "..."]) -> Placement:
    sharding: NamedSharding = jax.typeof(x).sharding
    return None if sharding.mesh.empty else sharding
