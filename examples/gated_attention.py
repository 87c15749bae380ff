"""The whole sub-layer of attention: a gate from its input on the result of each head.

python -m t2t.train ... --config.plugins=examples.gated_attention --config.model.attention=gated
"""

from typing import Any

import jax
from jaxtyping import Array, Float

from t2t.config import ModelConfig
from t2t.config.variants import register
from t2t.model.attention import MultiHeadAttention
from t2t.model.compute_policy import Policy
from t2t.model.linear import draw_linear


@register("model.attention", "gated")
class GatedAttention(MultiHeadAttention):
    """head_i * sigmoid(x W^G_i), then W^O (Qiu et al. 2025, position G1)."""

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array, *, over_memory: bool):
        super().__init__(config, policy, key, over_memory=over_memory)
        shape = config.d_model, config.num_heads, config.value_width
        # The sub-layer's own weights are drawn from the key itself.
        self.gate = draw_linear(
            policy, "BTD,DHU->BTHU", jax.random.fold_in(key, 5), shape,
            ("d_model", "heads", None), matrix=(0, 2),
        )  # fmt: skip

    def __call__(self, x: Float[Array, "B T D"], *others: Any, **named: Any) -> tuple[Any, Any]:
        """Takes x, the context of the block, a cache and a key; returns the output and a cache."""
        heads, cache = self.find_heads(x, *others, **named)
        return self.join(heads * jax.nn.sigmoid(self.gate(x))), cache
