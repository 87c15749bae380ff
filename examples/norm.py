"""A norm: ScaleNorm.

python -m t2t.train ... --config.plugins=examples.norm --config.model.norm=scale
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2t.config import ModelConfig
from t2t.config.variants import register
from t2t.model.compute_policy import Policy


@register("model.norm", "scale")
class ScaleNorm(nnx.Module):
    """ScaleNorm (Nguyen and Salazar 2019): g x / |x|, with one trained g."""

    def __init__(self, config: ModelConfig, policy: Policy):
        del policy
        self.scale = nnx.Param(jnp.full((), config.d_model**0.5, jnp.float32))

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Normalises each position, in float32 even if x is in bfloat16."""
        x32 = x.astype(jnp.float32)
        norm = jnp.sqrt(jnp.square(x32).sum(axis=-1, keepdims=True) + 1e-6)
        return (self.scale[...] * x32 / norm).astype(x.dtype)
