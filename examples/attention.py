"""Attention of one's own: as a function, with parameters, and as the whole sub-layer.

python -m t2t.train ... --config.plugins=examples.attention --config.model.attention=cosine
    (or learned_temperature, or gated)
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from t2t.config import ModelConfig
from t2t.config.variants import register
from t2t.model.attention import (
    MultiHeadAttention,
    dot_product_attention,
    masked_softmax,
    repeat_heads,
)
from t2t.model.compute_policy import Policy
from t2t.model.kv_cache import KeyValue, KVCache
from t2t.model.layers import dropout, init_glorot
from t2t.model.matmul import einsum
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


@register("model.attention", "gated")
class GatedAttention(MultiHeadAttention):
    """A gate from x on the result of each head, sigmoid(x W^G) (Qiu et al. 2025, position G1)."""

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array, *, over_memory: bool):
        super().__init__(config, policy, key, over_memory=over_memory)
        shape = config.d_model, config.num_heads, config.value_width
        fans, names = (config.d_model, shape[1] * shape[2]), ("d_model", "heads", None)
        key = jax.random.fold_in(
            key, 5
        )  # the sub-layer's own weights are drawn from the key itself
        self.gate = init_glorot(key, shape, *fans, *names, matrix=(0, 2))

    def __call__(self, x: Float[Array, "B T D"], *others: Any, **named: Any) -> tuple[Any, Any]:
        """Takes x, the context of the block, a cache and a key; returns the output and a cache."""
        heads, cache = self.find_heads(x, *others, **named)
        placed = spec("batch", None, "heads", None)
        gate = self.policy.multiply("BTD,DHU->BTHU", x, self.gate[...], placed)
        return self.join(heads * jax.nn.sigmoid(gate)), cache
