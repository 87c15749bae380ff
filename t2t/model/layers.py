"""Embedding, feed-forward, norms: what happens at each position by itself."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.config.fields import ModelConfig
from t2t.model.dropout import dropout
from t2t.model.precision import einsum
from t2t.model.products import multiply, product_dtype
from t2t.runtime.mesh import spec


def glorot_limit(fan_in: int, fan_out: int) -> float:
    """sqrt(6 / (fan_in + fan_out)), the bound of uniform weights (Glorot and Bengio 2010)."""
    return math.sqrt(6 / (fan_in + fan_out))


def init_uniform(
    key: jax.Array,
    shape: tuple[int, ...],
    limit: float | Float[np.ndarray, "P"],
    *names: str | None,
) -> nnx.Param[jax.Array]:
    """A parameter uniform in +-limit, which may differ along the last dimension.

    `names` are the dimensions' logical names.
    """
    return nnx.Param(
        jax.random.uniform(key, shape, minval=-limit, maxval=limit, out_sharding=spec(*names))
    )


def init_glorot(
    key: jax.Array, shape: tuple[int, ...], fan_in: int, fan_out: int, *names: str | None
) -> nnx.Param[jax.Array]:
    """A parameter uniform within `glorot_limit`; `names` are the dimensions' logical names."""
    return init_uniform(key, shape, glorot_limit(fan_in, fan_out), *names)


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
        return einsum(
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
        self.product_dtype = product_dtype(config.dtype)
        self.inner_dropout = config.feed_forward_dropout
        halves = 2 if self.kind in ("swiglu", "geglu") else 1
        inner = (halves, d_model, d_ff)
        self.inner = init_glorot(inner_key, inner, d_model, d_ff, None, "d_model", "d_ff")
        self.inner_bias = nnx.Param(jnp.zeros((halves, d_ff), out_sharding=spec(None, "d_ff")))
        self.outer = init_glorot(outer_key, (d_ff, d_model), d_ff, d_model, "d_ff", "d_model")
        self.outer_bias = nnx.Param(jnp.zeros(d_model, out_sharding=spec(None)))

    def __call__(
        self, x: Float[Array, "B T D"], key: jax.Array | None = None
    ) -> Float[Array, "B T D"]:
        """The feed-forward of each position."""
        halves = [
            multiply("BTD,DF->BTF", x, weights, self.product_dtype) + bias
            for weights, bias in zip(self.inner[...], self.inner_bias.astype(x.dtype), strict=True)
        ]
        activated = dropout(self._activate(halves), self.inner_dropout, key)
        outer = multiply(
            "BTF,FD->BTD",
            activated,
            self.outer[...],
            self.product_dtype,
            out_sharding=spec("batch", None, None),
        )
        return jnp.add(outer, self.outer_bias.astype(x.dtype))

    def _activate(self, halves: list[Float[Array, "B T F"]]) -> Float[Array, "B T F"]:
        match self.kind:
            case "relu":
                return _rectify(halves[0])
            case "gelu":
                return jax.nn.gelu(halves[0])
            case "swiglu":
                return jax.nn.silu(halves[0]) * halves[1]
            case "geglu":
                return jax.nn.gelu(halves[0]) * halves[1]
            case other:
                raise ValueError(f"model.feed_forward={other!r} is unknown")


@jax.custom_vjp
def _rectify(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """max(0, x), which keeps nothing but its result for the backward pass."""
    return jax.nn.relu(x)


_rectify.defvjp(
    lambda x: 2 * (_rectify(x),),
    lambda rectified, gradient: (jnp.where(rectified > 0, gradient, 0),),
)


class Norm(nnx.Module):
    """No norm: x as it is. The base of the others."""

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """x, normalised over its last dimension."""
        return x


class LayerNorm(Norm):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, in float32 (Ba et al. 2016)."""

    def __init__(self, d_model: int):
        """Starts as plain normalisation."""
        self.scale = nnx.Param(jnp.ones(d_model, out_sharding=spec(None)))
        self.bias = nnx.Param(jnp.zeros(d_model, out_sharding=spec(None)))

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """x, normalised over its last dimension."""
        return (standardize(x, centred=True) * self.scale[...] + self.bias[...]).astype(x.dtype)


class RMSNorm(Norm):
    """x / sqrt(mean(x^2) + epsilon) * scale, in float32 (Zhang and Sennrich 2019)."""

    def __init__(self, d_model: int):
        """Starts as plain normalisation."""
        self.scale = nnx.Param(jnp.ones(d_model, out_sharding=spec(None)))

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """x, normalised over its last dimension."""
        return (standardize(x, centred=False) * self.scale[...]).astype(x.dtype)


def standardize(x: Float[Array, "B T D"], *, centred: bool) -> Float[Array, "B T D"]:
    """(x - mean) / sqrt(variance + 1e-6), over the last dimension; not `centred`: with mean 0.

    Keeps the result and 1 / sqrt(variance + 1e-6) for the backward pass, and nothing else.
    """

    @jax.custom_vjp
    def run(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return forward(x)[0]

    def forward(x: Float[Array, "B T D"]) -> tuple[Float[Array, "B T D"], tuple[Array, Array]]:
        wide = x.astype(jnp.float32)
        mean = wide.mean(axis=-1, keepdims=True) if centred else 0.0
        # One pass over x; the clip is for what rounding leaves of a constant x.
        variance = jnp.square(wide).mean(axis=-1, keepdims=True) - jnp.square(mean)
        inverse = jax.lax.rsqrt(jnp.maximum(variance, 0) + 1e-6)
        standard = ((wide - mean) * inverse).astype(x.dtype)
        return standard, (standard, inverse)

    def backward(kept: tuple[Array, Array], gradient: Float[Array, "B T D"]) -> tuple[Array]:
        standard, inverse = kept
        wide, own = gradient.astype(jnp.float32), standard.astype(jnp.float32)
        wide -= own * (own * wide).mean(axis=-1, keepdims=True)
        mean = gradient.astype(jnp.float32).mean(axis=-1, keepdims=True) if centred else 0.0
        return (((wide - mean) * inverse).astype(gradient.dtype),)

    run.defvjp(forward, backward)
    return run(x)


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
