"""Equation 1 whose backward pass computes the attention weights again instead of storing them.

The weights are a layer's largest array. The backward pass computes them from the logits and the
logarithm of the softmax's denominator (Dao et al. 2022), which rounds them by about 6e-8 of the
largest logit: 3e-5 at 1,000. The queries of the R heads that share a key/value head are
concatenated along T: Q = R * T queries for each of the G key/value heads. In shapes, Q is this
number; in formulas it is the matrix of queries.

Of a long row, blocks of queries are computed one after another, so that memory grows with the
length of a row and not with its square. Masks and biases [Q, S] are still whole.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t2t.model.attention import apply_mask
from t2t.model.kv_cache import KeyValue
from t2t.model.linear import einsum
from t2t.ops.fast_layers import dropout
from t2t.runtime.mesh import platform, reshard_like, spec

Grouped = Float[Array, "B G Q _"]  # queries or their results
Weights = Float[Array, "B G Q S"]
Mask = Bool[Array, "#B 1 #Q S"]

BLOCK = 2**18  # attention weights of a block for each row and head: those of 512 x 512 positions


def recomputed_attention(
    query: Float[Array, "B T H K"],
    key_value: KeyValue,
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "*#B #H #T #S"] | None = None,
    dropout_rate: float = 0.0,
    key: jax.Array | None = None,
    *,
    scaled: bool = True,
) -> Float[Array, "B T H U"]:
    """As `t2t.model.attention.dot_product_attention`."""
    groups = key_value.keys.shape[2]
    repeats = query.shape[2] // groups
    keys, values = (x.transpose(0, 2, 1, 3) for x in key_value)
    mask, bias = group_mask(mask, repeats), group_bias(bias, query, keys.shape[2], groups)
    if platform() == "cpu":
        # XLA would compute the mask inside of the softmax, whose loop it then cannot vectorise.
        mask = jax.lax.optimization_barrier(mask)
    divisor = math.sqrt(query.shape[-1]) if scaled else 1.0
    attend = _make_attend(divisor, dropout_rate)
    queries = group_queries(query, groups)
    blocks = -(-query.shape[1] * keys.shape[2] // BLOCK)
    if blocks == 1:
        results = attend(queries, keys, values, bias, mask, key)
        return ungroup_results(results, query.shape)
    split = functools.partial(_split_queries, blocks=blocks)
    masks = split(mask) if mask.shape[2] > 1 else None
    biases = None if bias is None else split(bias)
    block_keys = None if key is None else jax.random.split(key, blocks)
    # The blocks' gradients of keys and values are added up in the dtype that these have out here.
    wide = keys.astype(jnp.float32), values.astype(jnp.float32)

    def attend_block(block: tuple[Any, ...]) -> Grouped:
        queries, bias, own_mask, key = block
        own = wide[0].astype(keys.dtype), wide[1].astype(values.dtype)
        return attend(queries, *own, bias, mask if masks is None else own_mask, key)

    results = jax.lax.map(attend_block, (split(queries), biases, masks, block_keys))
    results = jnp.moveaxis(results, 0, 2)
    padded = blocks * results.shape[3]
    results = reshape_heads(results, *queries.shape[:2], padded, values.shape[3], axis=1)
    return ungroup_results(results[:, :, : queries.shape[2]], query.shape)


def _split_queries(x: Array, blocks: int) -> Array:
    """Splits [..., Q, X] into equal blocks of queries; the last is padded: [blocks, ..., _, X]."""
    size = -(-x.shape[-2] // blocks)
    padding = [(0, 0)] * (x.ndim - 2) + [(0, blocks * size - x.shape[-2]), (0, 0)]
    parts = jnp.reshape(jnp.pad(x, padding), (*x.shape[:-2], blocks, size, x.shape[-1]))
    return jnp.moveaxis(parts, -3, 0)


def group_queries(query: Float[Array, "B T H K"], groups: int) -> Grouped:
    """Concatenates the queries of the heads that share a key/value head: [B, G, Q, K]."""
    batch, length, heads, width = query.shape
    repeats = heads // groups
    rows = reshape_heads(query, batch, length, groups, repeats, width).transpose(0, 2, 3, 1, 4)
    return reshape_heads(rows, batch, groups, repeats * length, width, axis=1)


def group_mask(mask: Bool[Array, "#B 1 #T S"], repeats: int) -> Mask:
    """Repeats the mask for each of the heads that share a key/value head."""
    return jnp.tile(mask, (1, 1, repeats, 1)) if mask.shape[2] > 1 else mask


def group_bias(
    bias: Float[Array, "*#B #H #T #S"] | None,
    query: Float[Array, "B T H K"],
    num_keys: int,
    groups: int,
) -> Float[Array, "... G Q S"] | None:
    """Concatenates the biases of the heads that share a key/value head.

    The result has an axis B only if rows have different biases; other axes of size 1 are repeated.
    """
    if bias is None:
        return None
    _, length, heads, _ = query.shape
    rows = bias.shape[:-3]
    if rows == (1,):
        rows, bias = (), bias[0]
    shape, names = (*rows, heads, length, num_keys), (*["batch"] * len(rows), "heads", None, None)
    if bias.shape != shape:
        bias = jnp.broadcast_to(bias, shape, out_sharding=spec(*names))
    queries = heads // groups * length
    return jnp.reshape(bias, (*rows, groups, queries, num_keys), out_sharding=spec(*names))


def ungroup_results(results: Grouped, query_shape: tuple[int, ...]) -> Float[Array, "B T H U"]:
    """Splits results [B, G, Q, U] into heads again; the inverse of `group_queries`."""
    batch, length, heads, _ = query_shape
    groups, width = results.shape[1], results.shape[-1]
    split = results.reshape(batch, groups, heads // groups, length, width)
    return reshape_heads(split.transpose(0, 3, 1, 2, 4), batch, length, heads, width)


def reshape_heads(
    x: Float[Array, "B *widths"], *shape: int, axis: int = 2
) -> Float[Array, "B *others"]:
    """Reshapes to `shape`, in which `axis` is the dimension of heads or groups.

    The result's sharding is given, because JAX cannot infer it if there is only one head.
    """
    names: list[str | None] = ["batch", *[None] * (len(shape) - 1)]
    names[axis] = "heads"
    return jnp.reshape(x, shape, out_sharding=spec(*names))


def _make_attend(divisor: float, dropout_rate: float) -> Callable[..., Grouped]:
    """Creates the function dropout(softmax(Q K^T / divisor + bias)) V, with a custom VJP."""

    def compute_logits(query: Grouped, keys: Array, bias: Array | None, mask: Mask) -> Weights:
        logits = einsum("BGQK,BGSK->BGQS", query, keys, preferred_element_type=jnp.float32)
        logits /= divisor
        return apply_mask(logits if bias is None else logits + bias, mask)

    @jax.custom_vjp
    def attend(
        query: Grouped,
        keys: Array,
        values: Array,
        bias: Array | None,
        mask: Mask,
        key: jax.Array | None,
    ) -> Grouped:
        return forward(query, keys, values, bias, mask, key)[0]

    def forward(
        query: Grouped,
        keys: Array,
        values: Array,
        bias: Array | None,
        mask: Mask,
        key: jax.Array | None,
    ) -> tuple[Grouped, tuple[Any, ...]]:
        logits = compute_logits(query, keys, bias, mask)
        largest = logits.max(axis=-1, keepdims=True)
        exp_logits = jnp.exp(logits - largest)
        dropped = dropout(exp_logits, dropout_rate, key).astype(values.dtype)
        results = einsum("BGQS,BGSU->BGQU", dropped, values, preferred_element_type=jnp.float32)
        # A sum of inf makes the result of a query that sees no key 0. In the backward pass it makes
        # the normalizer inf, and so the query's weights 0.
        sees_key = mask.any(axis=-1, keepdims=True)
        sums = jnp.where(sees_key, _sum_rows(exp_logits, values), jnp.inf)
        results = (results / sums).astype(values.dtype)
        normalizer = largest + jnp.log(sums[..., :1])
        return results, ((query, keys, values, bias, results, normalizer), mask, key)

    def backward(residuals: tuple[Any, ...], gradient: Grouped) -> tuple[Array | None, ...]:
        # The barrier keeps XLA from storing the weights of the forward pass for reuse here.
        arrays, mask, key = residuals
        query, keys, values, bias, results, normalizer = jax.lax.optimization_barrier(arrays)
        weights = jnp.exp(compute_logits(query, keys, bias, mask) - normalizer)
        dropped = dropout(weights, dropout_rate, key).astype(values.dtype)
        value_gradient = einsum("BGQS,BGQU->BGSU", dropped, gradient)
        weight_gradient = einsum(
            "BGQU,BGSU->BGQS", gradient, values, preferred_element_type=jnp.float32
        )
        weight_gradient = dropout(weight_gradient, dropout_rate, key)
        # The softmax's gradient is P (dP - sum(P dP)), with the weights P and their gradient dP.
        # For each query the sum equals the dot product of its result and the result's gradient.
        weighted_sum = jnp.sum(gradient.astype(jnp.float32) * results, axis=-1, keepdims=True)
        logit_gradient = weights * (weight_gradient - weighted_sum)
        # The logits are Q K^T / divisor + bias: `product_gradient` is the gradient of Q K^T.
        product_gradient = (logit_gradient / divisor).astype(query.dtype)
        query_gradient = einsum("BGQS,BGSK->BGQK", product_gradient, keys)
        key_gradient = einsum("BGQS,BGQK->BGSK", product_gradient, query)
        gradients = query_gradient, key_gradient, value_gradient
        # If there is only one head, the results of the einsums are not sharded over it.
        placed = map(reshard_like, gradients, (query, keys, values))
        if bias is None:
            return *placed, None, None, None
        if bias.ndim == 3:  # the same for all rows
            logit_gradient = logit_gradient.sum(axis=0)
        return *placed, reshard_like(logit_gradient.astype(bias.dtype), bias), None, None

    attend.defvjp(forward, backward)
    return attend


def _sum_rows(exp_logits: Weights, values: Float[Array, "B G S U"]) -> Float[Array, "B G Q _"]:
    """Computes the softmax's denominators.

    On accelerators it multiplies `exp_logits` by a matrix of ones [S, U], which is faster than a
    reduction. As in the product with the values, `exp_logits` are first rounded to the dtype of the
    values. The U columns of the result are equal.
    """
    if platform() == "cpu":
        return exp_logits.sum(axis=-1, keepdims=True)
    ones = jnp.ones(values.shape[2:], values.dtype)
    rounded = exp_logits.astype(values.dtype)
    return einsum("BGQS,SU->BGQU", rounded, ones, preferred_element_type=jnp.float32)
