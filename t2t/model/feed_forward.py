"""Section 3.3: the position-wise feed-forward network; `make_feed_forward` chooses its kind."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2t.config.fields import ModelConfig
from t2t.config.variants import CHOICES, GATED, call_variant, check_call
from t2t.model.compute_policy import Policy
from t2t.model.initialization import init_glorot
from t2t.model.matmul import add_bias
from t2t.runtime.mesh import spec


class FeedForward(nnx.Module):
    """Equation 2: relu(x W1 + b1) W2 + b2, and variants with another activation.

    The gated kinds swiglu and geglu (Shazeer 2020) project x to two vectors of width d_ff, called
    `halves` here. The activation is applied to the first, and the result is multiplied by the
    second. Unlike Shazeer's they have biases. GELU is its approximation by tanh.
    """

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        """Initialises weights as in Glorot and Bengio (2010), biases with zeros."""
        d_model, d_ff = config.d_model, config.d_ff
        inner_key, outer_key = jax.random.split(key)
        self.policy = policy
        self.activation = config.feed_forward
        self.inner_dropout = config.feed_forward_dropout
        halves = 2 if self.activation in GATED else 1
        inner = (halves, d_model, d_ff)
        self.inner = init_glorot(inner_key, inner, d_model, d_ff, None, "d_model", "d_ff")
        self.inner_bias = nnx.Param(jnp.zeros((halves, d_ff), out_sharding=spec(None, "d_ff")))
        self.outer = init_glorot(outer_key, (d_ff, d_model), d_ff, d_model, "d_ff", "d_model")
        self.outer_bias = nnx.Param(jnp.zeros(d_model, out_sharding=spec(None)))

    def __call__(
        self, x: Float[Array, "B T D"], key: jax.Array | None = None
    ) -> Float[Array, "B T D"]:
        """Applies the network to each position."""
        halves = [
            add_bias(self.policy.multiply("BTD,DF->BTF", x, self.inner[i]), self.inner_bias[i])
            for i in range(self.inner.shape[0])
        ]
        inner = self._activate(halves)
        inner = self.policy.operations.dropout(inner, self.inner_dropout, key)
        outer = self.policy.multiply(
            "BTF,FD->BTD", inner, self.outer[...], out_sharding=spec("batch", None, None)
        )
        return add_bias(outer, self.outer_bias[...])

    def _activate(self, halves: list[Float[Array, "B T F"]]) -> Float[Array, "B T F"]:
        match self.activation:
            case "relu":
                return self.policy.operations.relu(halves[0])
            case "gelu":
                return jax.nn.gelu(halves[0])
            case "swiglu":
                return jax.nn.silu(halves[0]) * halves[1]
            case "geglu":
                return jax.nn.gelu(halves[0]) * halves[1]
            case other:
                raise ValueError(f"model.feed_forward={other!r} is unknown")


def make_feed_forward(config: ModelConfig, policy: Policy, key: jax.Array) -> nnx.Module | None:
    """Creates the feed-forward that `model.feed_forward` names, or None for "none"."""
    match config.feed_forward:
        case "none":
            return None
        case own if own in CHOICES["model.feed_forward"]:
            return FeedForward(config, policy, key)
        case other:
            variant: nnx.Module = call_variant(
                "model.feed_forward", other, config, policy, key,
                is_valid=lambda module: isinstance(module, nnx.Module) and callable(module),
            )  # fmt: skip
            check_call("model.feed_forward", other, variant, None, None)
            return variant
