"""Attention with parameters: a learned temperature for each head.

python -m t2t.train ... --config.plugins=examples.attention
    --config.model.attention=learned_temperature
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2t.config import ModelConfig
from t2t.config.variants import register
from t2t.model.attention import dot_product_attention
from t2t.model.compute_policy import Policy
from t2t.runtime.mesh import spec


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
