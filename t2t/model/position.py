"""How the model knows the order of words; `make_position` is the only place that chooses.

Three hooks cover every kind: `add` to the embeddings (sinusoidal, learned), `rotate` queries and
keys (rotary), or a `bias` on the attention logits (relative, ALiBi). Each kind overrides one.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.config.fields import ConfigError, ModelConfig
from t2t.runtime.mesh import spec


class Position(nnx.Module):
    """The interface of all kinds; each overrides one of the hooks, which change nothing here."""

    def add(
        self, x: Float[Array, "B T D"], positions: Int[Array, "*#B T"]
    ) -> Float[Array, "B T D"]:
        """Embeddings with their positions in the sentence, which may begin anywhere in the row."""
        del positions
        return x

    def rotate(
        self, x: Float[Array, "B T H K"], positions: Int[Array, "T"]
    ) -> Float[Array, "B T H K"]:
        """Queries or keys, turned by their positions in the row: only differences will count."""
        del positions
        return x

    def bias(self, query: Int[Array, "T"], key: Int[Array, "S"]) -> Float[Array, "H T S"] | None:
        """What is added to the attention logits for positions `query` and `key`."""
        del query, key
        return None


class NoPosition(Position):
    """No positions: a bag of words."""


class Sinusoidal(Position):
    """Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(the same)."""

    def add(
        self, x: Float[Array, "B T D"], positions: Int[Array, "*#B T"]
    ) -> Float[Array, "B T D"]:
        """x + PE(positions)."""
        return x + encode_sinusoidal(positions, x.shape[-1]).astype(x.dtype)


def encode_sinusoidal(positions: Int[Array, "*B T"], d_model: int) -> Float[Array, "*B T D"]:
    """The table PE of section 3.5 at these positions, sine and cosine interleaved."""
    rates = jnp.exp(jnp.arange(0, d_model, 2) * (-math.log(10_000) / d_model))
    angles = positions[..., None] * rates
    both = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return both.reshape(*positions.shape, d_model)


class Learned(Position):
    """A trained vector for each position (table 3, row E)."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        """Entries are normal with standard deviation d_model^-0.5, as the embeddings."""
        self.table = nnx.Param(
            config.d_model**-0.5
            * jax.random.normal(
                key, (config.max_positions, config.d_model), out_sharding=spec(None, "d_model")
            )
        )

    def add(
        self, x: Float[Array, "B T D"], positions: Int[Array, "*#B T"]
    ) -> Float[Array, "B T D"]:
        """x + sqrt(d_model) * table[positions]: on the scale of the scaled embeddings."""
        if x.shape[1] > self.table.shape[0]:
            raise ConfigError(
                f"{x.shape[1]} positions do not fit model.max_positions={self.table.shape[0]}; "
                "shorten the input or raise model.max_positions and train again"
            )
        own = spec(None, None) if positions.ndim == 1 else spec("batch", None, None)
        rows = self.table[...].at[positions].get(out_sharding=own)
        return x + (math.sqrt(x.shape[-1]) * rows).astype(x.dtype)


class Rotary(Position):
    """Pairs of query and key dimensions turn with the position (Su et al. 2021)."""

    def rotate(
        self, x: Float[Array, "B T H K"], positions: Int[Array, "T"]
    ) -> Float[Array, "B T H K"]:
        """Pair i turns by the angle position / 10000^(2i/d_k)."""
        width = x.shape[-1]
        rates = jnp.exp(jnp.arange(0, width, 2) * (-math.log(10_000) / width))
        angles = (positions[:, None] * rates)[:, None, :]  # T 1 K/2
        cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
        even, odd = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([even * cos - odd * sin, even * sin + odd * cos], axis=-1)


class Relative(Position):
    """A trained bias for each head and bucket of distances (Raffel et al. 2020, section 2.1)."""

    buckets = 32
    max_distance = 128  # beyond it all distances share a bucket

    def __init__(self, config: ModelConfig, key: jax.Array, *, causal: bool):
        """Every bias starts at about zero: no preference for any distance."""
        self.causal = causal
        self.table = nnx.Param(
            0.02
            * jax.random.normal(
                key, (self.buckets, config.num_heads), out_sharding=spec(None, "heads")
            )
        )

    def bias(self, query: Int[Array, "T"], key: Int[Array, "S"]) -> Float[Array, "H T S"]:
        """table[bucket(key - query)], one table for all layers of a stack."""
        rows = self.table[...].at[self._bucket(key - query[:, None])]
        return jnp.moveaxis(rows.get(out_sharding=spec(None, None, "heads")), -1, 0)

    def _bucket(self, offset: Int[Array, "T S"]) -> Int[Array, "T S"]:
        """Half of the buckets are single distances, the other half grow geometrically."""
        count = self.buckets if self.causal else self.buckets // 2
        direction = 0 if self.causal else jnp.where(offset > 0, count, 0)
        distance = jnp.maximum(-offset, 0) if self.causal else jnp.abs(offset)
        exact = count // 2
        growth = (count - exact) / math.log(self.max_distance / exact)
        far = exact + (jnp.log(jnp.maximum(distance, 1) / exact) * growth).astype(jnp.int32)
        return direction + jnp.where(distance < exact, distance, jnp.minimum(far, count - 1))


class Alibi(Position):
    """A fixed penalty on distance, steeper in each next head (Press et al. 2022)."""

    def __init__(self, config: ModelConfig):
        """Slopes are the geometric sequence 2^(-8/h), 2^(-16/h), ... 2^-8."""
        self.num_heads = config.num_heads

    def bias(self, query: Int[Array, "T"], key: Int[Array, "S"]) -> Float[Array, "H T S"]:
        """-slope * |key - query|, symmetric in the encoder."""
        slopes = 2.0 ** (-8 * np.arange(1, self.num_heads + 1) / self.num_heads)
        distance = jnp.abs(key - query[:, None])
        return -jnp.asarray(slopes, jnp.float32)[:, None, None] * distance


def make_position(config: ModelConfig, key: jax.Array, *, causal: bool) -> Position:
    """The positions of one stack; `causal` says that keys never lie to the right of a query."""
    match config.position:
        case "sinusoidal":
            return Sinusoidal()
        case "learned":
            return Learned(config, key)
        case "rotary":
            return Rotary()
        case "relative":
            return Relative(config, key, causal=causal)
        case "alibi":
            return Alibi(config)
        case "none":
            return NoPosition()
        case other:
            raise ValueError(f"model.position={other!r} is unknown")
