"""Embedding, feed-forward, norms, dropout: what happens at each position by itself."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.config import ModelConfig
from t2t.sharding import spec


def init_glorot(
    key: jax.Array, shape: tuple[int, ...], fan_in: int, fan_out: int, *names: str | None
) -> nnx.Param[jax.Array]:
    """Uniform in +-sqrt(6 / (fan_in + fan_out)); `names` are the dimensions' logical names."""
    limit = math.sqrt(6 / (fan_in + fan_out))
    return nnx.Param(
        jax.random.uniform(key, shape, minval=-limit, maxval=limit, out_sharding=spec(*names))
    )


def dropout(x: Float[Array, "..."], rate: float, key: jax.Array | None) -> Float[Array, "..."]:
    """Section 5.4. Without a key this is evaluation: x unchanged.

    Two 16-bit draws come from each 32-bit random word, so the rate is exact to 2^-17 and x is
    scaled by the share that is really kept.
    """
    if key is None or rate == 0:
        return x
    kept = min(round((1 - rate) * 2**16), 2**16 - 1)
    own = None if spec() is None else jax.typeof(x).sharding.spec  # each device draws its part
    if x.shape[-1] % 2:
        draws = jax.random.bits(key, x.shape, jnp.uint16, out_sharding=own)
    else:
        half = (*x.shape[:-1], x.shape[-1] // 2)
        words = jax.random.bits(key, half, jnp.uint32, out_sharding=own)
        draws = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(x.shape)
    return jnp.where(draws < kept, x * (2**16 / kept), 0).astype(x.dtype)


class Embedding(nnx.Module):
    """Section 3.4: the table that looks words up and, where it is tied, gives their logits."""

    def __init__(self, vocab_size: int, d_model: int, key: jax.Array):
        """Entries are normal with standard deviation d_model^-0.5."""
        names = spec("vocabulary", "d_model")
        self.table = nnx.Param(
            d_model**-0.5 * jax.random.normal(key, (vocab_size, d_model), out_sharding=names)
        )

    def look_up(self, ids: Int[Array, "B T"], dtype: jnp.dtype) -> Float[Array, "B T D"]:
        """sqrt(d_model) * table[ids]."""
        rows = self.table[...].at[ids].get(out_sharding=spec("batch", None, None))
        return (math.sqrt(rows.shape[-1]) * rows).astype(dtype)

    def project(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Logits in float32: x table^T."""
        return jnp.einsum(
            "BTD,VD->BTV",
            x,
            self.table.astype(x.dtype),
            preferred_element_type=jnp.float32,
            out_sharding=spec("batch", None, "vocabulary"),
        )


class FeedForward(nnx.Module):
    """Section 3.3, equation 2: relu(x W1 + b1) W2 + b2, and its gated successors.

    GLU variants (Shazeer 2020) gate one half of a twice as wide inner layer with the other.
    """

    def __init__(self, config: ModelConfig, key: jax.Array):
        """Weights as in Glorot and Bengio (2010), biases zero."""
        d_model, d_ff = config.d_model, config.d_ff
        inner_key, outer_key = jax.random.split(key)
        self.kind = config.feed_forward
        self.inner_dropout = config.feed_forward_dropout
        halves = 2 if self.kind in ("swiglu", "geglu") else 1
        inner = (d_model, halves, d_ff)
        self.inner = init_glorot(inner_key, inner, d_model, d_ff, "d_model", None, "d_ff")
        self.inner_bias = nnx.Param(jnp.zeros(inner[1:], out_sharding=spec(None, "d_ff")))
        self.outer = init_glorot(outer_key, (d_ff, d_model), d_ff, d_model, "d_ff", "d_model")
        self.outer_bias = nnx.Param(jnp.zeros(d_model, out_sharding=spec(None)))

    def __call__(
        self, x: Float[Array, "B T D"], key: jax.Array | None = None
    ) -> Float[Array, "B T D"]:
        """The feed-forward of each position."""
        inner = jnp.einsum("BTD,DXF->BTXF", x, self.inner.astype(x.dtype))
        inner += self.inner_bias.astype(x.dtype)
        activated = dropout(self._activate(inner), self.inner_dropout, key)
        outer = jnp.einsum(
            "BTF,FD->BTD",
            activated,
            self.outer.astype(x.dtype),
            out_sharding=spec("batch", None, None),
        )
        return jnp.add(outer, self.outer_bias.astype(x.dtype))

    def _activate(self, inner: Float[Array, "B T X F"]) -> Float[Array, "B T F"]:
        match self.kind:
            case "relu":
                return jax.nn.relu(inner[:, :, 0])
            case "gelu":
                return jax.nn.gelu(inner[:, :, 0])
            case "swiglu":
                return jax.nn.silu(inner[:, :, 0]) * inner[:, :, 1]
            case "geglu":
                return jax.nn.gelu(inner[:, :, 0]) * inner[:, :, 1]
            case other:
                raise ValueError(f"model.feed_forward={other!r} is unknown")


class Norm(nnx.Module):
    """No norm: x as it is. The base of the others."""

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """x, normalised over its last dimension."""
        return x


class LayerNorm(Norm):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, in float32 (Ba et al. 2016)."""

    epsilon = 1e-6

    def __init__(self, d_model: int):
        """Starts as plain normalisation."""
        self.scale = nnx.Param(jnp.ones(d_model, out_sharding=spec(None)))
        self.bias = nnx.Param(jnp.zeros(d_model, out_sharding=spec(None)))

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """x, normalised over its last dimension."""
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        variance = jnp.square(centred).mean(axis=-1, keepdims=True)
        normal = centred * jax.lax.rsqrt(variance + self.epsilon)
        return (normal * self.scale[...] + self.bias[...]).astype(x.dtype)


class RMSNorm(Norm):
    """x / sqrt(mean(x^2) + epsilon) * scale, in float32 (Zhang and Sennrich 2019)."""

    epsilon = 1e-6

    def __init__(self, d_model: int):
        """Starts as plain normalisation."""
        self.scale = nnx.Param(jnp.ones(d_model, out_sharding=spec(None)))

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """x, normalised over its last dimension."""
        wide = x.astype(jnp.float32)
        square = jnp.square(wide).mean(axis=-1, keepdims=True)
        return (wide * jax.lax.rsqrt(square + self.epsilon) * self.scale[...]).astype(x.dtype)


def make_norm(config: ModelConfig) -> Norm:
    """The norm that `model.norm` names."""
    match config.norm:
        case "layer":
            return LayerNorm(config.d_model)
        case "rms":
            return RMSNorm(config.d_model)
        case "none":
            return Norm()
        case other:
            raise ValueError(f"model.norm={other!r} is unknown")
