"""Equation 1 over a `KVCache`, without a copy of the cache.

The einsums read keys and values in the layout in which the cache stores them. If they needed
another layout, XLA would transpose the whole cache at each step.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t2t.model.attention import masked_softmax
from t2t.model.kv_cache import KVCache
from t2t.model.matmul import einsum
from t2t.ops.recomputed_attention import reshape_heads
from t2t.runtime.mesh import spec


def dot_product_attention(
    query: Float[Array, "B T H K"],
    key_value: KVCache,
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "*#B H T S"] | None = None,
    dropout_rate: float = 0.0,
    key: jax.Array | None = None,
    *,
    scaled: bool = True,
) -> Float[Array, "B T H U"]:
    """As `t2t.model.attention.dot_product_attention`, over a cache and without dropout."""
    assert key is None or dropout_rate == 0
    batch, length, heads, width = query.shape
    groups, size, value_width = key_value.stored_values.shape[1:]
    grouped = reshape_heads(query, batch, length, groups, heads // groups, width)
    rows = grouped.transpose(0, 2, 3, 1, 4)  # B G R T K: R query heads share a key/value head
    # In the einsums, Q = R * T queries attend to each key/value head.
    logits = einsum(
        "BGQK,BGKS->BGQS",
        reshape_heads(rows, batch, groups, -1, width, axis=1),
        key_value.stored_keys,
        preferred_element_type=jnp.float32,
    ).reshape(*rows.shape[:4], size)
    logits /= math.sqrt(width) if scaled else 1.0
    if bias is not None:
        batches = bias.shape[:-3]
        shape = *batches, groups, heads // groups, *bias.shape[-2:]
        names = *["batch"] * len(batches), "heads", None, None, None
        logits += jnp.reshape(bias, shape, out_sharding=spec(*names))
    weights = masked_softmax(logits, mask[:, :, None]).astype(key_value.stored_values.dtype)
    results = einsum(
        "BGQS,BGSU->BGQU",
        reshape_heads(weights, batch, groups, -1, size, axis=1),
        key_value.stored_values,
    ).reshape(*rows.shape[:4], value_width)
    return reshape_heads(results.transpose(0, 3, 1, 2, 4), batch, length, heads, value_width)
