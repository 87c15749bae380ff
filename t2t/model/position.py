"""Section 3.5: positional encodings; `make_position` chooses the kind.

Each kind except `none` overrides one of three methods: `add` changes the embeddings (sinusoidal,
learned), `rotate` changes queries and keys (rotary), and `bias` changes the attention logits
(relative, ALiBi).
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.config.fields import ConfigError, ModelConfig
from t2t.config.variants import call_variant
from t2t.model.compute_policy import Policy
from t2t.runtime.mesh import spec


class Position(nnx.Module):
    """The interface of all kinds, and the kind `none`: the methods of this class change nothing.

    With `none`, attention does not know the order of the tokens.
    """

    def check_length(self, length: int) -> None:
        """Raises `ConfigError` if the model cannot tell so many positions apart."""

    def add(
        self, x: Float[Array, "B T D"], positions: Int[Array, "*#B T"]
    ) -> Float[Array, "B T D"]:
        """Adds encodings to the embeddings x; `positions` count from 0 in each sentence."""
        del positions
        return x

    def rotate(
        self, x: Float[Array, "B T H K"], positions: Int[Array, "*#B T"]
    ) -> Float[Array, "B T H K"]:
        """Rotates queries or keys.

        `positions` need not start again at each packed sentence, since the logits depend only on
        the difference of two positions.
        """
        del positions
        return x

    def bias(
        self, query_positions: Int[Array, "*#B T"], key_positions: Int[Array, "*#B S"]
    ) -> Float[Array, "*#B #H #T #S"] | None:
        """Returns the bias to add to the attention logits, or None."""
        del query_positions, key_positions
        return None


class Sinusoidal(Position):
    """Section 3.5, and two variants of it; see `encode_sinusoidal`."""

    def __init__(self, kind: str):
        """There are no parameters."""
        self.kind = kind

    def add(
        self, x: Float[Array, "B T D"], positions: Int[Array, "*#B T"]
    ) -> Float[Array, "B T D"]:
        """Returns x + PE(positions)."""
        encodings = encode_sinusoidal(positions, x.shape[-1], self.kind)
        return x + encodings.astype(x.dtype)


def encode_sinusoidal(
    positions: Int[Array, "*B T"], d_model: int, kind: str = "sinusoidal"
) -> Float[Array, "*B T D"]:
    """Computes PE of section 3.5 at these positions, with a(pos, i) = pos / 10000^(2i/d_model).

    sinusoidal          PE(pos, 2i) = sin(a), PE(pos, 2i+1) = cos(a)
    sinusoidal_halves   PE(pos, i) = sin(a), PE(pos, i + d_model/2) = cos(a), as in Marian
    sinusoidal_fairseq  as halves, with a = (pos + 2) / 10000^(i/(d_model/2 - 1)), as in fairseq
    """
    if kind == "sinusoidal_fairseq":
        rates = jnp.exp(jnp.arange(d_model // 2) * (-math.log(10_000) / (d_model // 2 - 1)))
        angles = (positions[..., None] + 2) * rates
    else:
        rates = jnp.exp(jnp.arange(0, d_model, 2) * (-math.log(10_000) / d_model))
        angles = positions[..., None] * rates
    sines, cosines = jnp.sin(angles), jnp.cos(angles)
    if kind != "sinusoidal":
        return jnp.concatenate([sines, cosines], axis=-1)
    return jnp.stack([sines, cosines], axis=-1).reshape(*positions.shape, d_model)


class Learned(Position):
    """A trained vector for each position (table 3, row E)."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        """Draws entries as those of the embeddings."""
        width, shape = config.reference_width, (config.max_positions, config.d_model)
        self.scale = math.sqrt(width) if config.embedding_scale else 1.0
        entries = width**-0.5 * jax.random.normal(key, shape, out_sharding=spec(None, "d_model"))
        self.table = nnx.Param(entries, kind="table")

    def check_length(self, length: int) -> None:
        """Refuses more positions than have a vector; `add` would repeat the last one."""
        if length > self.table.shape[0]:
            raise ConfigError(
                f"{length} positions exceed model.max_positions={self.table.shape[0]}; "
                "shorten the input, or train a model with a larger model.max_positions"
            )

    def add(
        self, x: Float[Array, "B T D"], positions: Int[Array, "*#B T"]
    ) -> Float[Array, "B T D"]:
        """Returns x + scale * table[positions], with the scale of the embeddings."""
        sharding = spec(None, None) if positions.ndim == 1 else spec("batch", None, None)
        rows = self.table[...].at[positions].get(out_sharding=sharding)
        return x + (self.scale * rows).astype(x.dtype)


class Rotary(Position):
    """Rotary embeddings: rotates pairs of query and key dimensions (Su et al. 2021)."""

    def __init__(self, policy: Policy):
        """`policy` chooses the implementation of `rotate`."""
        self.policy = policy

    def rotate(
        self, x: Float[Array, "B T H K"], positions: Int[Array, "*#B T"]
    ) -> Float[Array, "B T H K"]:
        """Rotates as the function `rotate` of this module."""
        return self.policy.rotate(x, positions)


def rotate(x: Float[Array, "B T H K"], positions: Int[Array, "*#B T"]) -> Float[Array, "B T H K"]:
    """Rotates dimensions i and i + K/2 by the angle position / 10000^(2i/K)."""
    angles = rotary_angles(positions, x.shape[-1])
    return rotate_pairs(x, jnp.cos(angles), jnp.sin(angles))


def rotary_angles(positions: Int[Array, "*B T"], width: int) -> Float[Array, "*B T 1 W"]:
    """Returns position / 10000^(2i/width) for each i < W = width / 2."""
    rates = jnp.exp(jnp.arange(0, width, 2) * (-math.log(10_000) / width))
    return (positions[..., None] * rates)[..., None, :]


def rotate_pairs(
    x: Float[Array, "B T H K"], cos: Float[Array, "*#B T 1 W"], sin: Float[Array, "*#B T 1 W"]
) -> Float[Array, "B T H K"]:
    """Rotates dimensions i and i + W of x by the angles with these cosines and sines; K = 2 W.

    It computes in float32. With rounded cosines, logits would depend on where in a row a sentence
    lies.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = [first * cos - second * sin, first * sin + second * cos]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


class Relative(Position):
    """A trained bias for each head and bucket of offsets (Raffel et al. 2020, section 2.1)."""

    buckets = 32
    max_distance = 128  # all larger distances share a bucket

    def __init__(self, config: ModelConfig, key: jax.Array, *, causal: bool):
        """Draws biases near 0; `causal`: keys never lie to the right of their query."""
        self.causal = causal
        shape = self.buckets, config.num_heads
        biases = 0.02 * jax.random.normal(key, shape, out_sharding=spec(None, "heads"))
        self.table = nnx.Param(biases, kind="scalar")

    def bias(
        self, query_positions: Int[Array, "*#B T"], key_positions: Int[Array, "*#B S"]
    ) -> Float[Array, "*#B H T S"]:
        """Returns table[bucket(key - query)].

        All layers of a stack share the table, or each has its own (`make_block_position`).
        """
        buckets = self._bucket(find_offsets(query_positions, key_positions))
        batch = ["batch"] * (buckets.ndim - 2)
        rows = self.table[...].at[buckets].get(out_sharding=spec(*batch, None, None, "heads"))
        return jnp.moveaxis(rows, -1, -3)

    def _bucket(self, offset: Int[Array, "*B T S"]) -> Int[Array, "*B T S"]:
        """Returns the bucket of each offset.

        Without `causal`, keys to the left of the query have one half of the buckets, and keys to
        its right the other half. Of the buckets of one side, the first half hold one distance each,
        and the others hold ranges of distances that grow geometrically.
        """
        count = self.buckets if self.causal else self.buckets // 2
        first = 0 if self.causal else jnp.where(offset > 0, count, 0)
        distance = jnp.maximum(-offset, 0) if self.causal else jnp.abs(offset)
        thresholds = find_thresholds(count, self.max_distance)
        return first + jnp.sum(distance[..., None] >= thresholds, axis=-1, dtype=jnp.int32)


def find_thresholds(count: int, max_distance: int) -> Int[np.ndarray, "n"]:
    """Returns the least distance of each of `count` buckets but the first, which begins at 0.

    The first half of the buckets hold one distance each. With e of them, bucket e + k begins at
    e (max_distance / e)^(k / e), rounded up. Integers decide: a rounded logarithm may be off by one
    where this is an integer.
    """
    exact = count // 2
    geometric = [
        next(d for d in itertools.count(1) if d**exact * exact**k >= max_distance**k * exact**exact)
        for k in range(1, count - exact)
    ]
    return np.array([*range(1, exact + 1), *geometric], np.int32)


class Alibi(Position):
    """Attention with linear biases: a penalty on distance for each head (Press et al. 2022)."""

    def __init__(self, config: ModelConfig):
        """Keeps the number of heads; there are no parameters."""
        self.num_heads = config.num_heads

    def bias(
        self, query_positions: Int[Array, "*#B T"], key_positions: Int[Array, "*#B S"]
    ) -> Float[Array, "*#B H T S"]:
        """Returns -slope * |key - query|, with slopes 2^(-8/h), 2^(-16/h), ..., 2^-8 by head."""
        slopes = 2.0 ** (-8 * np.arange(1, self.num_heads + 1) / self.num_heads)
        distance = jnp.abs(find_offsets(query_positions, key_positions))
        return -jnp.asarray(slopes, jnp.float32)[:, None, None] * distance[..., None, :, :]


def make_block_position(config: ModelConfig, key: jax.Array, *, causal: bool) -> Relative | None:
    """Creates the biases that a block has for itself, as in umT5; None: of the stack, if any."""
    return Relative(config, key, causal=causal) if config.position == "relative_by_layer" else None


def find_offsets(
    query_positions: Int[Array, "*#B T"], key_positions: Int[Array, "*#B S"]
) -> Int[Array, "*#B T S"]:
    """Returns key position minus query position."""
    return key_positions[..., None, :] - query_positions[..., :, None]


def make_position(config: ModelConfig, policy: Policy, key: jax.Array, *, causal: bool) -> Position:
    """Creates the positional encoding of the encoder, or with `causal` of the decoder."""
    match config.position:
        case "sinusoidal" | "sinusoidal_halves" | "sinusoidal_fairseq":
            return Sinusoidal(config.position)
        case "learned":
            return Learned(config, key)
        case "rotary":
            return Rotary(policy)
        case "relative":
            return Relative(config, key, causal=causal)
        case "alibi":
            return Alibi(config)
        case "none" | "relative_by_layer":  # `make_block_position`
            return Position()
        case other:
            position: Position = call_variant(
                "model.position", other, config, policy, key, causal,
                is_valid=lambda value: isinstance(value, Position),
            )  # fmt: skip
            return position
