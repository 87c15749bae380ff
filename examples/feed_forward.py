"""A feed-forward: squared ReLU.

python -m t2t.train ... --config.plugins=examples.feed_forward
    --config.model.feed_forward=squared_relu
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2t.config import ModelConfig
from t2t.config.variants import register
from t2t.model.compute_policy import Policy
from t2t.model.layers import init_glorot
from t2t.runtime.mesh import spec


@register("model.feed_forward", "squared_relu")
class SquaredReLU(nnx.Module):
    """Squared ReLU (So et al. 2021): relu(x W1)^2 W2."""

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        self.policy, sizes = policy, (config.d_model, config.d_ff)
        inner_key, outer_key = jax.random.split(key)
        # `matrix`: dimensions of inputs and outputs. Muon, the quickstart's optimiser, updates such
        # weights, and leaves all others to Adam.
        self.inner = init_glorot(inner_key, sizes, *sizes, "d_model", "d_ff", matrix=(0, 1))
        self.outer = init_glorot(outer_key, sizes[::-1], *sizes, "d_ff", "d_model", matrix=(0, 1))

    def __call__(
        self, x: Float[Array, "B T D"], key: jax.Array | None = None
    ) -> Float[Array, "B T D"]:
        """`policy.multiply` multiplies in the dtype that the config asks for."""
        del key  # of dropout; None in evaluation
        inner = jnp.square(jax.nn.relu(self.policy.multiply("BTD,DF->BTF", x, self.inner[...])))
        placed = spec("batch", None, None)
        return self.policy.multiply("BTF,FD->BTD", inner, self.outer[...], placed)
