"""Attention of one's own: as a function, and as a class with parameters.

python -m t2t.train ... --config.plugins=examples.attention --config.model.attention=cosine
    (or learned_temperature)
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from t2t.config import ModelConfig
from t2t.config.variants import register
from t2t.model.attention import dot_product_attention, masked_softmax, repeat_heads
from t2t.model.compute_policy import Policy
from t2t.model.kv_cache import KeyValue, KVCache
from t2t.model.layers import dropout
from t2t.model.linear import einsum
from t2t.runtime.mesh import spec


@register("model.attention", "cosine")
def attend_by_cosine(
    query: Float[Array, "B T H K"],
    key_value: KeyValue | KVCache,
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "*#B #H #T #S"] | None = None,
    dropout_rate: float = 0.0,
    key: jax.Array | None = None,
    *,
    scaled: bool = True,
) -> Float[Array, "B T H U"]:
    """Ten times the cosine of query and key is the logit (Henry et al. 2020, with a fixed factor).

    `scaled` has no effect, since cosines do not grow with d_k. With model.dtype=bfloat16 queries,
    keys and values are in bfloat16; cosines and the softmax are computed in float32.
    """
    del scaled
    # With fewer key/value heads than heads (model.num_kv_heads), several heads share one.
    keys, values = (repeat_heads(x, query.shape[2]) for x in (key_value.keys, key_value.values))
    query, keys = (normalize(x.astype(jnp.float32)) for x in (query, keys))
    logits = 10 * einsum("BTHK,BSHK->BHTS", query, keys)
    if bias is not None:  # of relative positions, for example
        logits += bias
    weights = dropout(masked_softmax(logits, mask), dropout_rate, key)
    return einsum("BHTS,BSHU->BTHU", weights.astype(values.dtype), values)


def normalize(x: Float[Array, "B T H K"]) -> Float[Array, "B T H K"]:
    """Divides vectors by their length."""
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)


@register("model.attention", "learned_temperature")
class LearnedTemperature(nnx.Module):
    """Equation 1 with a trained factor on the logits of each head, in each layer."""

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        del policy, key
        # The mesh divides the heads among devices; `spec` says so.
        self.factor = nnx.Param(jnp.ones(config.num_heads, out_sharding=spec("heads")))

    def __call__(self, query: Float[Array, "B T H K"], *others: Any, **named: Any) -> jax.Array:
        """Scales the queries, and leaves the rest to the library's attention."""
        scaled = query * self.factor[...][:, None].astype(query.dtype)
        return dot_product_attention(scaled, *others, **named)
