"""Equation 1 over a `KVCache`, without a copy of the cache.

The einsums read keys and values in the layout in which the cache stores them. If they needed
another layout, XLA would transpose the whole cache at each step. Q is the number of queries for
each key/value head, as in `recomputed_attention.py`.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t2t.model.attention import masked_softmax
from t2t.model.kv_cache import KVCache
from t2t.model.linear import einsum
from t2t.ops.recomputed_attention import (
    group_bias,
    group_mask,
    group_queries,
    ungroup_results,
)


def cached_attention(
    query: Float[Array, "B T H K"],
    key_value: KVCache,
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "*#B #H #T #S"] | None = None,
    dropout_rate: float = 0.0,
    key: jax.Array | None = None,
    *,
    scaled: bool = True,
) -> Float[Array, "B T H U"]:
    """As `t2t.model.attention.dot_product_attention`, over a cache and without dropout."""
    assert key is None or dropout_rate == 0
    groups = key_value.stored_values.shape[1]
    bias = group_bias(bias, query, mask.shape[3], groups)
    mask = group_mask(mask, query.shape[2] // groups)
    logits = einsum(
        "BGQK,BGKS->BGQS",
        group_queries(query, groups),
        key_value.stored_keys,
        preferred_element_type=jnp.float32,
    )
    logits /= math.sqrt(query.shape[-1]) if scaled else 1.0
    weights = masked_softmax(logits if bias is None else logits + bias, mask)
    weights = weights.astype(key_value.stored_values.dtype)
    results = einsum("BGQS,BGSU->BGQU", weights, key_value.stored_values)
    return ungroup_results(results, query.shape)
