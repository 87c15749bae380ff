"""A norm on another place: behind each sub-layer, before its result is added (Ding et al. 2021).

With model.norm_position=pre a sub-layer is then x + norm(f(norm(x))), a "sandwich".

python -m t2t.train ... --config.plugins=examples.sandwich_norm --config.model.norm_position=pre
    --config.model.attention=sandwich --config.model.feed_forward=sandwich
"""

import dataclasses
from typing import Any

import jax
from jaxtyping import Array, Float

from t2t.config import ModelConfig
from t2t.config.variants import register
from t2t.model.attention import MultiHeadAttention
from t2t.model.compute_policy import Policy
from t2t.model.layers import FeedForward, make_norm, normalize


@register("model.attention", "sandwich")
class SandwichAttention(MultiHeadAttention):
    """Multi-head attention with a norm behind W^O."""

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array, *, over_memory: bool):
        super().__init__(config, policy, key, over_memory=over_memory)
        self.norm = make_norm(config, policy)

    def __call__(self, x: Float[Array, "B T D"], *others: Any, **named: Any) -> tuple[Any, Any]:
        """Takes x, the context of the block, a cache and a key; returns the output and a cache."""
        y, cache = super().__call__(x, *others, **named)
        return normalize(self.norm, y), cache


@register("model.feed_forward", "sandwich")
class SandwichFeedForward(FeedForward):
    """Equation 2 with a norm behind W2."""

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        super().__init__(dataclasses.replace(config, feed_forward="relu"), policy, key)
        self.norm = make_norm(config, policy)

    def __call__(self, x: Float[Array, "B T D"], *others: Any) -> Float[Array, "B T D"]:
        """Takes x, a key of dropout, and which positions are tokens."""
        return normalize(self.norm, super().__call__(x, *others))
