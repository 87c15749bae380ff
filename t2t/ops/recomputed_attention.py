"""Equation 1 without its weights, the largest array of a layer, kept for the backward pass.

That pass computes them again from the logarithm of the softmax's denominator (Dao et al. 2022). The
R query heads that share a key/value head lie behind each other: Q = R T rows of one group.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t2t.model.kv_cache import KeyValue
from t2t.model.masks import apply_mask
from t2t.model.precision import einsum
from t2t.ops.dropout import dropout
from t2t.runtime.mesh import platform, reshard_like, spec

Grouped = Float[Array, "B G Q _"]  # queries or their results
Weights = Float[Array, "B G Q S"]


def dot_product_attention(
    query: Float[Array, "B T H K"],
    memory: KeyValue,
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "H T S"] | None = None,
    dropout_rate: float = 0.0,
    key: jax.Array | None = None,
    *,
    scaled: bool = True,
) -> Float[Array, "B T H V"]:
    """As `t2t.model.attention.dot_product_attention`."""

    def drop(weights: Weights) -> Weights:
        return dropout(weights, dropout_rate, key)

    groups = memory.keys.shape[2]
    repeats = query.shape[2] // groups
    keys, values = (x.transpose(0, 2, 1, 3) for x in memory)
    if mask.shape[2] > 1:
        mask = jnp.tile(mask, (1, 1, repeats, 1))
    if bias is not None:
        by_group = groups, repeats * query.shape[1], bias.shape[-1]
        bias = jnp.reshape(bias, by_group, out_sharding=spec("heads", None, None))
    divisor = math.sqrt(query.shape[-1]) if scaled else 1.0
    attend = _make_attend(mask, divisor, drop)
    return ungroup_rows(attend(group_rows(query, groups), keys, values, bias), query.shape)


def group_rows(query: Float[Array, "B T H K"], groups: int) -> Grouped:
    """The rows of all query heads that share a key/value head, behind each other."""
    batch, length, heads, width = query.shape
    repeats = heads // groups
    rows = reshape_heads(query, batch, length, groups, repeats, width).transpose(0, 2, 3, 1, 4)
    return reshape_heads(rows, batch, groups, repeats * length, width, axis=1)


def ungroup_rows(results: Grouped, query_shape: tuple[int, ...]) -> Float[Array, "B T H V"]:
    """Results of `group_rows`, in the order of the queries, whose shape is [B, T, H, K]."""
    batch, length, heads, _ = query_shape
    groups, width = results.shape[1], results.shape[-1]
    split = results.reshape(batch, groups, heads // groups, length, width)
    return reshape_heads(split.transpose(0, 3, 1, 2, 4), batch, length, heads, width)


def reshape_heads(
    x: Float[Array, "B *widths"], *shape: int, axis: int = 2
) -> Float[Array, "B *others"]:
    """Reshapes, `axis` being the heads' dimension; JAX cannot infer where a single head lies."""
    names: list[str | None] = ["batch", *[None] * (len(shape) - 1)]
    names[axis] = "heads"
    return jnp.reshape(x, shape, out_sharding=spec(*names))


def _make_attend(
    mask: Bool[Array, "#B 1 #Q S"], divisor: float, drop: Callable[[Weights], Weights]
) -> Callable[..., Grouped]:
    """Makes drop(softmax(Q K^T / divisor + bias)) V with gradients of its own."""

    def compute_logits(query: Grouped, keys: Array, bias: Array | None) -> Weights:
        logits = einsum("BGQK,BGSK->BGQS", query, keys, preferred_element_type=jnp.float32)
        logits /= divisor
        return apply_mask(logits if bias is None else logits + bias, mask)

    @jax.custom_vjp
    def attend(query: Grouped, keys: Array, values: Array, bias: Array | None) -> Grouped:
        return forward(query, keys, values, bias)[0]

    def forward(
        query: Grouped, keys: Array, values: Array, bias: Array | None
    ) -> tuple[Grouped, tuple[Any, ...]]:
        logits = compute_logits(query, keys, bias)
        largest = logits.max(axis=-1, keepdims=True)
        exp_logits = jnp.exp(logits - largest)
        dropped = drop(exp_logits).astype(values.dtype)
        heads = einsum("BGQS,BGSV->BGQV", dropped, values, preferred_element_type=jnp.float32)
        sums = jnp.where(mask.any(axis=-1, keepdims=True), _sum_rows(exp_logits, values), jnp.inf)
        heads = (heads / sums).astype(values.dtype)
        normalizer = largest + jnp.log(sums[..., :1])
        return heads, (query, keys, values, bias, heads, normalizer)

    def backward(residuals: tuple[Any, ...], gradient: Grouped) -> tuple[Array | None, ...]:
        # The barrier keeps the compiler from finding the weights of the forward pass again here.
        query, keys, values, bias, heads, normalizer = jax.lax.optimization_barrier(residuals)
        weights = jnp.exp(compute_logits(query, keys, bias) - normalizer)
        dropped = drop(weights).astype(values.dtype)
        value_gradient = einsum("BGQS,BGQV->BGSV", dropped, gradient)
        weight_gradient = drop(
            einsum("BGQV,BGSV->BGQS", gradient, values, preferred_element_type=jnp.float32)
        )
        # The softmax's gradient is P (dP - sum P dP); that sum is of the heads times theirs.
        mean = jnp.sum(gradient.astype(jnp.float32) * heads, axis=-1, keepdims=True)
        bias_gradient = weights * (weight_gradient - mean)
        logit_gradient = (bias_gradient / divisor).astype(query.dtype)
        query_gradient = einsum("BGQS,BGSK->BGQK", logit_gradient, keys)
        key_gradient = einsum("BGQS,BGQK->BGSK", logit_gradient, query)
        gradients = query_gradient, key_gradient, value_gradient
        # JAX forgets the sharding of a single head.
        placed = map(reshard_like, gradients, (query, keys, values))
        if bias is None:
            return *placed, None
        return *placed, reshard_like(bias_gradient.sum(axis=0).astype(bias.dtype), bias)

    attend.defvjp(forward, backward)
    return attend


def _sum_rows(exp_logits: Weights, values: Float[Array, "B G S V"]) -> Float[Array, "B G Q _"]:
    """The softmax's denominators.

    On accelerators by a product, which is faster, of numerators rounded as those that meet the
    values; the sum stands in every column of what it will divide.
    """
    if platform() == "cpu":
        return exp_logits.sum(axis=-1, keepdims=True)
    ones = jnp.ones(values.shape[2:], values.dtype)
    rounded = exp_logits.astype(values.dtype)
    return einsum("BGQS,SV->BGQV", rounded, ones, preferred_element_type=jnp.float32)
