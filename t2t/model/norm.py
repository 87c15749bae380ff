"""Normalisation over the features of each position; `make_norm` chooses the kind."""

from abc import abstractmethod

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2t.config.fields import ModelConfig
from t2t.model.compute_policy import Policy
from t2t.runtime.mesh import spec


class Norm(nnx.Module):
    """The interface of all norms."""

    @abstractmethod
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Normalises x over its last dimension."""


class Identity(Norm):
    """Takes the place of a norm where there is none."""

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Returns x unchanged."""
        return x


class LayerNorm(Norm):
    """(x - mean) / sqrt(variance + 1e-6) * scale + bias (Ba et al. 2016).

    `standardize` computes the quotient in float32 and rounds it to the dtype of x; scale and bias
    are applied in float32.
    """

    def __init__(self, d_model: int, policy: Policy):
        """Initialises the scale with ones and the bias with zeros."""
        self.policy = policy
        self.scale = nnx.Param(jnp.ones(d_model, out_sharding=spec(None)))
        self.bias = nnx.Param(jnp.zeros(d_model, out_sharding=spec(None)))

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Normalises x over its last dimension."""
        normalized = self.policy.operations.standardize(x, centred=True)
        return (normalized * self.scale[...] + self.bias[...]).astype(x.dtype)


class RMSNorm(Norm):
    """x / sqrt(mean(x^2) + 1e-6) * scale (Zhang and Sennrich 2019), rounded as in `LayerNorm`."""

    def __init__(self, d_model: int, policy: Policy):
        """Initialises the scale with ones."""
        self.policy = policy
        self.scale = nnx.Param(jnp.ones(d_model, out_sharding=spec(None)))

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Normalises x over its last dimension."""
        normalized = self.policy.operations.standardize(x, centred=False)
        return (normalized * self.scale[...]).astype(x.dtype)


def standardize(x: Float[Array, "B T D"], *, centred: bool) -> Float[Array, "B T D"]:
    """Computes (x - mean) / sqrt(variance + 1e-6) over the last dimension.

    With `centred=False` it computes x / sqrt(mean(x^2) + 1e-6). It computes in float32, and rounds
    the result to the dtype of x.
    """
    x32 = x.astype(jnp.float32)
    if centred:
        x32 -= x32.mean(axis=-1, keepdims=True)
    mean_square = jnp.square(x32).mean(axis=-1, keepdims=True)
    return (x32 * jax.lax.rsqrt(mean_square + 1e-6)).astype(x.dtype)


def make_norm(config: ModelConfig, policy: Policy) -> Norm:
    """Creates the norm that `model.norm` names."""
    match config.norm:
        case "layer":
            return LayerNorm(config.d_model, policy)
        case "rms":
            return RMSNorm(config.d_model, policy)
        case "none":
            return Identity()
        case other:
            raise ValueError(f"model.norm={other!r} is unknown")
