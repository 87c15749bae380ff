"""A mixture of experts that computes, for each token, only the experts that it has chosen.

As in `fast_linear.py`, the gradient of float32 weights is a float32 result of its product.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t.model.linear import choose_precision
from t2t.runtime.mesh import RULES, reshard, spec

Operands = tuple[Array, Array, Array]  # rows, weights of all groups, sizes of the groups
# Products over the rows of each group, which are gradients of its weights.
_ROWS = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])


def apply_experts(
    x: Float[Array, "B T D"],
    factors: Float[Array, "B T C"],
    chosen: Int[Array, "B T C"],
    inner: Float[Array, "E D F"],
    outer: Float[Array, "E F D"],
    *,
    dtype: jnp.dtype,
) -> Float[Array, "B T D"]:
    """As `t2t.model.experts.apply_experts`, by products with sorted copies of the tokens.

    Each token has a copy for each of its experts. The copies are sorted by expert, so that
    `jax.lax.ragged_dot` multiplies consecutive rows with the weights of one expert. On a mesh each
    device has its experts and the tokens of its rows, so tokens do not move between devices: the
    results are added up over the axis that shares out the experts.
    """
    if spec() is None:
        return _apply_own(x, factors, chosen, inner, outer, dtype=dtype, axis=None)
    rows, weights = spec("batch", None, None), spec("experts", None, None)
    inner, outer = reshard((inner, outer), "experts", None, None)
    own = functools.partial(_apply_own, dtype=dtype, axis=RULES["experts"])
    in_specs = rows, rows, rows, weights, weights
    mapped = jax.shard_map(own, in_specs=in_specs, out_specs=rows)
    return mapped(x, factors, chosen, inner, outer)


def _apply_own(
    x: Float[Array, "B T D"],
    factors: Float[Array, "B T C"],
    chosen: Int[Array, "B T C"],
    inner: Float[Array, "X D F"],
    outer: Float[Array, "X F D"],
    *,
    dtype: jnp.dtype,
    axis: tuple[str, ...] | str | None,
) -> Float[Array, "B T D"]:
    """Returns the part of the sum that belongs to the experts of one device."""
    experts, (num_rows, length, choices) = len(inner), chosen.shape
    if axis is not None:
        # JAX adds up the gradients of gathers over the axis only if it is told so.
        x, factors, chosen = jax.lax.pcast((x, factors, chosen), axis, to="varying")
        # Likewise the gradients of the weights over the rows.
        inner, outer = jax.lax.pcast((inner, outer), RULES["batch"], to="varying")
        chosen = chosen - jax.lax.axis_index(axis) * experts
    chosen = chosen.reshape(-1)
    chosen = jnp.where((chosen >= 0) & (chosen < experts), chosen, experts)  # the rest comes last
    order = jnp.argsort(chosen)
    sizes = jnp.bincount(chosen, length=experts + 1)[:experts].astype(jnp.int32)
    take = functools.partial(_permute, order)
    copies = take(jnp.repeat(x.reshape(num_rows * length, -1), choices, axis=0))
    activations = jax.nn.relu(_multiply(copies, inner, sizes, dtype))
    each = _multiply(activations, outer, sizes, dtype).astype(jnp.float32)
    each *= take(factors.reshape(-1))[:, None]
    y = _permute(jnp.argsort(order), each).reshape(num_rows, length, choices, -1).sum(axis=2)
    return (y if axis is None else jax.lax.psum(y, axis)).astype(x.dtype)


def _permute(order: Array, rows: Array) -> Array:
    return rows.at[order].get(unique_indices=True, mode="promise_in_bounds")


def _multiply(x: Array, weights: Array, sizes: Array, dtype: jnp.dtype) -> Array:
    """Multiplies rows by their group's weights, with operands in `dtype`, and gradients as well."""

    @jax.custom_vjp
    def run(x: Array, weights: Array, sizes: Array) -> Array:
        return forward(x, weights, sizes)[0]

    def forward(x: Array, weights: Array, sizes: Array) -> tuple[Array, Operands]:
        operands = x.astype(dtype), weights.astype(dtype), sizes
        return _product(*operands, x.dtype), operands

    def backward(operands: Operands, gradient: Array) -> tuple[Array, Array, None]:
        x, weights, sizes = operands
        rounded = gradient.astype(dtype)
        to_weights = jax.lax.ragged_dot_general(
            x,
            rounded,
            sizes,
            _ROWS,
            precision=choose_precision(x, rounded),
            preferred_element_type=jnp.float32,
        )
        return _product(rounded, weights.mT, sizes, gradient.dtype), to_weights, None

    run.defvjp(forward, backward)
    return run(x, weights, sizes)


def _product(x: Array, weights: Array, sizes: Array, result: jnp.dtype) -> Array:
    """Multiplies rows by their group's weights; rows of no group, other devices', become 0.

    `jax.lax.ragged_dot` leaves rows of no group undefined.
    """
    precision = choose_precision(x, weights)
    product = jax.lax.ragged_dot(
        x, weights, sizes, precision=precision, preferred_element_type=result
    )
    return jnp.where((jnp.arange(len(x)) < sizes.sum())[:, None], product, 0)
