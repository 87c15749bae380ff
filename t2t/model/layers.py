"""Feed-forward (section 3.3), embeddings (section 3.4), norms and dropout."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, UInt32

from t2t.config.fields import ConfigError, ModelConfig
from t2t.config.variants import CHOICES, GATED, call_variant
from t2t.model.compute_policy import Policy
from t2t.model.linear import draw_linear, einsum
from t2t.runtime.mesh import count_parts, reshard, spec


class FeedForward(nnx.Module):
    """Equation 2: relu(x W1 + b1) W2 + b2, and variants with another activation.

    The gated kinds swiglu and geglu (Shazeer 2020) project x to two vectors of width d_ff, called
    `halves` here. The activation is applied to the first, and the result is multiplied by the
    second. Unlike Shazeer's they have biases, unless model.feed_forward_bias=False. GELU is its
    approximation by tanh, except in gelu_exact; SiLU, also called Swish, is x sigmoid(x).
    """

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        """Initialises weights as in Glorot and Bengio (2010), biases with zeros."""
        if config.feed_forward not in CHOICES["model.feed_forward"]:  # that of a subclass
            raise ConfigError(
                f"model.feed_forward={config.feed_forward!r} is no activation of FeedForward; give "
                'it dataclasses.replace(config, feed_forward="relu")'
            )
        d_model, d_ff, biased = config.d_model, config.d_ff, config.feed_forward_bias
        inner_key, outer_key = jax.random.split(key)
        self.policy = policy
        self.activation = config.feed_forward
        self.inner_dropout = config.feed_forward_dropout
        self.halves = 2 if self.activation in GATED else 1
        self.inner = draw_linear(
            policy, "BTD,DF->BTF", inner_key, (self.halves, d_model, d_ff),
            (None, "d_model", "d_ff"), matrix=(1, 2), biased=biased,
        )  # fmt: skip
        self.outer = draw_linear(
            policy, "BTF,FD->BTD", outer_key, (d_ff, d_model), ("d_ff", "d_model"),
            matrix=(0, 1), biased=biased,
        )  # fmt: skip

    def __call__(
        self,
        x: Float[Array, "B T D"],
        key: jax.Array | None = None,
        is_token: Bool[Array, "B T"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Applies the network to each position, token or not."""
        del is_token
        inner = self._activate([self.inner(x, half) for half in range(self.halves)])
        return self.outer(self.policy.dropout(inner, self.inner_dropout, key))

    def _activate(self, halves: list[Float[Array, "B T F"]]) -> Float[Array, "B T F"]:
        match self.activation:
            case "relu":
                return self.policy.relu(halves[0])
            case "gelu":
                return jax.nn.gelu(halves[0])
            case "gelu_exact":
                return jax.nn.gelu(halves[0], approximate=False)
            case "silu":
                return jax.nn.silu(halves[0])
            case "swiglu":
                return jax.nn.silu(halves[0]) * halves[1]
            case "geglu":
                return jax.nn.gelu(halves[0]) * halves[1]
            case other:
                raise ValueError(f"model.feed_forward={other!r} is unknown")


def is_layer(value: Any) -> bool:
    """Returns whether a registered variant has made a module that can be called."""
    return isinstance(value, nnx.Module) and callable(value)


class Embedding(nnx.Module):
    """A table with one vector for each token of a vocabulary; also computes logits from it."""

    def __init__(
        self, config: ModelConfig, vocab_size: int, key: jax.Array, *, scaled: bool = True
    ):
        """Draws entries from a normal distribution with standard deviation d_model^-0.5.

        With model.parametrization=mup it is base_width^-0.5, and the scale is sqrt(base_width).
        """
        width, shape = config.reference_width, (vocab_size, config.d_model)
        sharding = spec("vocabulary", "d_model")
        self.scale = math.sqrt(width) if scaled else 1.0
        entries = width**-0.5 * jax.random.normal(key, shape, out_sharding=sharding)
        self.table = nnx.Param(entries, kind="table")

    def look_up(self, ids: Int[Array, "B T"], dtype: jnp.dtype) -> Float[Array, "B T D"]:
        """Returns scale * table[ids]; the scale is sqrt(d_model), or 1 if not `scaled`."""
        # With `fsdp` each device looks up its columns for the batches of several devices. It rounds
        # them before these devices exchange rows, since that sends half as many bytes.
        own = ("copy", None, "d_model") if count_parts("d_model") > 1 else ("batch", None, None)
        rows = self.table[...].at[ids].get(out_sharding=spec(*own))
        return reshard((self.scale * rows).astype(dtype), "batch", None, None)

    def compute_logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Computes the logits x table^T in float32, from operands in the dtype of `x`."""
        return einsum(
            "BTD,VD->BTV",
            x,
            self.table.astype(x.dtype),
            preferred_element_type=jnp.float32,
            out_sharding=spec("batch", None, "vocabulary"),
        )


class Identity(nnx.Module):
    """Takes the place of a norm where there is none."""

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Returns x unchanged."""
        return x


class LayerNorm(nnx.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias (Ba et al. 2016).

    `standardize` computes the quotient in float32 and rounds it to the dtype of x; scale and bias
    are applied in float32.
    """

    def __init__(self, d_model: int, policy: Policy, epsilon: float = 1e-6):
        """Initialises the scale with ones and the bias with zeros."""
        self.policy = policy
        self.epsilon = epsilon
        self.scale = nnx.Param(jnp.ones(d_model, out_sharding=spec(None)))
        self.bias = nnx.Param(jnp.zeros(d_model, out_sharding=spec(None)))

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Normalises x over its last dimension."""
        normalized = self.policy.standardize(x, centred=True, epsilon=self.epsilon)
        return (normalized * self.scale[...] + self.bias[...]).astype(x.dtype)


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + epsilon) * scale (Zhang, Sennrich 2019), rounded as in `LayerNorm`."""

    def __init__(self, d_model: int, policy: Policy, epsilon: float = 1e-6):
        """Initialises the scale with ones."""
        self.policy = policy
        self.epsilon = epsilon
        self.scale = nnx.Param(jnp.ones(d_model, out_sharding=spec(None)))

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Normalises x over its last dimension."""
        normalized = self.policy.standardize(x, centred=False, epsilon=self.epsilon)
        return (normalized * self.scale[...]).astype(x.dtype)


def standardize(
    x: Float[Array, "B T D"], *, centred: bool, epsilon: float = 1e-6
) -> Float[Array, "B T D"]:
    """Computes (x - mean) / sqrt(variance + epsilon) over the last dimension.

    With `centred=False` it computes x / sqrt(mean(x^2) + epsilon). It computes in float32, and
    rounds the result to the dtype of x.
    """
    x32 = x.astype(jnp.float32)
    if centred:
        x32 -= x32.mean(axis=-1, keepdims=True)
    mean_square = jnp.square(x32).mean(axis=-1, keepdims=True)
    return (x32 * jax.lax.rsqrt(mean_square + epsilon)).astype(x.dtype)


Norm = Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]]


def make_norm(config: ModelConfig, policy: Policy) -> Norm:
    """Creates the norm that `model.norm` names."""
    match config.norm:
        case "layer":
            return LayerNorm(config.d_model, policy, config.norm_epsilon)
        case "rms":
            return RMSNorm(config.d_model, policy, config.norm_epsilon)
        case "none":
            return Identity()
        case other:
            norm: Norm = call_variant("model.norm", other, config, policy, is_valid=is_layer)
            return norm


def normalize(norm: Norm, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Returns norm(x) in the dtype of x, which the float32 parameters of a variant may change."""
    return norm(x).astype(x.dtype)


def dropout(x: Float[Array, "..."], rate: float, key: jax.Array | None) -> Float[Array, "..."]:
    """Sets each element to 0 with probability `rate`, else to x / (1 - rate).

    Without a key (evaluation) it returns x unchanged.
    """
    if key is None or rate == 0:
        return x
    keep = draw_keep_mask(x, rate, jax.random.key_data(key))
    # In bfloat16 the divisor would be rounded: each layer would scale its input by up to 0.2%.
    return jnp.where(keep, x.astype(jnp.float32) / (1 - rate), 0).astype(x.dtype)


def draw_keep_mask(
    x: Float[Array, "..."], rate: float, key_data: UInt32[Array, "2"]
) -> Bool[Array, "..."]:
    """Draws a mask with the shape and sharding of `x`, True with probability 1 - rate."""
    return is_kept(hash_indices(x, key_data), rate)


def is_kept(bits: UInt32[Array, "..."], rate: float) -> Bool[Array, "..."]:
    """Returns which elements dropout keeps; `bits` are 32 random bits for each."""
    return bits < jnp.uint32(min(round((1 - rate) * 2**32), 2**32 - 1))


def split(key: jax.Array | None, number: int) -> list[jax.Array | None]:
    """Splits a key into `number` keys; for key=None each of them is None.

    A model splits its key once, for all of its layers: on a GPU each call takes three kernels.
    """
    if key is None:
        return [None] * number
    parts = jax.random.split(key, number)
    return [parts[i] for i in range(number)]


def hash_indices(x: Float[Array, "..."], key_data: UInt32[Array, "2"]) -> UInt32[Array, "..."]:
    """Returns 32 random bits for each element of `x`, of which only shape and sharding are used.

    They are those of `hash_index` for the indices in the flattened array, modulo 2^32.
    """
    # `spec()` is None without a mesh.
    sharding = None if spec() is None else jax.typeof(x).sharding.spec
    flat_index = jnp.zeros((), jnp.uint32)
    for axis in range(x.ndim):
        stride = math.prod(x.shape[axis + 1 :]) % 2**32
        index = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis, out_sharding=sharding)
        flat_index = flat_index + index * jnp.uint32(stride)
    return hash_index(flat_index, key_data[0], key_data[1])


def hash_index(
    index: UInt32[Array, "..."], k0: UInt32[Array, ""], k1: UInt32[Array, ""]
) -> UInt32[Array, "..."]:
    """Returns the 32 bits mix(((2 k1 + 1) * index) xor k0), for a key with the data (k0, k1).

    The factor 2 k1 + 1 depends on the key. With a constant factor, two keys could give the same
    sequence of bits, shifted by a constant number of elements.
    """
    h: jax.Array = index * (2 * k1 + 1) ^ k0
    # mix: the finaliser of MurmurHash3 (Appleby) with the constants "lowbias32" of Wellons (2018).
    # It is a bijection of 32-bit integers, and flipping an input bit flips each output bit with
    # probability about 1/2.
    h = (h ^ (h >> 16)) * jnp.uint32(0x7FEB352D)
    h = (h ^ (h >> 15)) * jnp.uint32(0x846CA68B)
    h ^= h >> 16
    return h
