"""A feed-forward: squared ReLU.

python -m t2t.train ... --config.plugins=examples.feed_forward
    --config.model.feed_forward=squared_relu
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from t2t.config import ModelConfig
from t2t.config.variants import register
from t2t.model.compute_policy import Policy
from t2t.model.linear import draw_linear


@register("model.feed_forward", "squared_relu")
class SquaredReLU(nnx.Module):
    """Squared ReLU (So et al. 2021): relu(x W1)^2 W2."""

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        inner_key, outer_key = jax.random.split(key)
        sizes, names = (config.d_model, config.d_ff), ("d_model", "d_ff")
        # `matrix`: dimensions of inputs and outputs. Muon, the quickstart's optimiser, updates such
        # weights, and leaves all others to Adam.
        self.inner = draw_linear(policy, "BTD,DF->BTF", inner_key, sizes, names, matrix=(0, 1))
        self.outer = draw_linear(
            policy, "BTF,FD->BTD", outer_key, sizes[::-1], names[::-1], matrix=(0, 1)
        )

    def __call__(
        self,
        x: Float[Array, "B T D"],
        key: jax.Array | None = None,
        is_token: Bool[Array, "B T"] | None = None,
    ) -> Float[Array, "B T D"]:
        """There is neither dropout inside nor a sum over tokens."""
        del key, is_token
        return self.outer(jnp.square(jax.nn.relu(self.inner(x))))
