"""Keys and values of attention, and the caches in which decoding keeps them.

A `KVCache` stores keys as [B, G, K, S] and values as [B, G, S, U]. The matrix products of a
decoding step can read these layouts without a copy. The properties `keys` and `values` return them
in the layout of `KeyValue`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t.data.batch import PAD_ID


class KeyValue(NamedTuple):
    """Keys and values of S positions in each of B sequences."""

    keys: Float[Array, "B S G K"]
    values: Float[Array, "B S G U"]


class KVCache(NamedTuple):
    """Keys and values of one attention sub-layer, kept from one decoding step to the next.

    For cross-attention, S is the number of source positions. For the decoder's self-attention it is
    max_length * W: each step writes the keys and values of its W slots after those of the previous
    step. Entries that are written are not moved.
    """

    stored_keys: Float[Array, "B G K S"]
    stored_values: Float[Array, "B G S U"]

    @property
    def keys(self) -> Float[Array, "B S G K"]:
        """The keys in the layout of `KeyValue`."""
        return self.stored_keys.transpose(0, 3, 1, 2)

    @property
    def values(self) -> Float[Array, "B S G U"]:
        """The values in the layout of `KeyValue`."""
        return self.stored_values.transpose(0, 2, 1, 3)

    @classmethod
    def store(cls, key_value: KeyValue) -> "KVCache":
        """Creates a cache that holds these keys and values."""
        return cls(key_value.keys.transpose(0, 2, 3, 1), key_value.values.transpose(0, 2, 1, 3))

    @classmethod
    def allocate(cls, like: "KVCache", size: int) -> "KVCache":
        """Creates a cache of zeros with S = `size`, and all else (dtype, sharding) as in `like`."""
        keys = jnp.zeros_like(like.stored_keys[..., :1])
        values = jnp.zeros_like(like.stored_values[:, :, :1])
        return cls(jnp.tile(keys, (1, 1, 1, size)), jnp.tile(values, (1, 1, size, 1)))

    def write(self, start: Int[Array, ""] | int, new: KeyValue) -> "KVCache":
        """Returns the cache with these keys and values from index `start` on."""
        written = self.store(new)
        update = jax.lax.dynamic_update_slice_in_dim
        return KVCache(
            update(self.stored_keys, written.stored_keys, start, axis=3),
            update(self.stored_values, written.stored_values, start, axis=2),
        )

    def extend(self, number: int) -> "KVCache":
        """Returns the cache with room for `number` more positions."""
        padding, unpadded = (0, number), (0, 0)
        return KVCache(
            jnp.pad(self.stored_keys, (unpadded, unpadded, unpadded, padding)),
            jnp.pad(self.stored_values, (unpadded, unpadded, padding, unpadded)),
        )


class BlockCache(NamedTuple):
    """The keys and values of a block that decoding keeps from one step to the next."""

    past: KVCache  # of self-attention
    memory: KVCache | None = None  # of cross-attention

    def write(self, start: Int[Array, ""] | int, new: KeyValue) -> "BlockCache":
        """Returns the cache with these keys and values of self-attention from `start` on."""
        return self._replace(past=self.past.write(start, new))


class DecodingCache(NamedTuple):
    """The state of decoding between steps."""

    blocks: list[BlockCache]
    src: Int[Array, "B S"]
    ancestors: Int[Array, "B W L"]  # [b, w, l]: slot that, at step l, held what slot w holds now
    step: Int[Array, ""]  # steps done

    @classmethod
    def start(
        cls, blocks: list[BlockCache], src: Int[Array, "B S"], beam_size: int, max_length: int
    ) -> "DecodingCache":
        """Returns the state before the first step; `blocks` have room for `max_length` steps."""
        first_token = src[:, :1, None]  # its `zeros_like` is sharded over the batch, as `src` is
        ancestors = jnp.tile(jnp.zeros_like(first_token), (1, beam_size, max_length))
        return cls(blocks, src, ancestors, step=jnp.zeros((), jnp.int32))

    @property
    def has_prefix(self) -> bool:
        """True if the blocks' caches begin with the source; False if the source is their memory."""
        return self.blocks[0].memory is None

    def find_positions(self) -> tuple[Int[Array, "*#B W"], Int[Array, "*#B S"]]:
        """Returns the positions of this step's tokens, and of all keys in the cache.

        The key of slot w at step l has the index l * W + w, behind those of the prefix.
        """
        beam, length = self.ancestors.shape[1:]
        steps = jnp.repeat(jnp.arange(length), beam)
        if not self.has_prefix:
            return jnp.full(beam, self.step), steps
        lengths = jnp.sum(self.src != PAD_ID, axis=-1, keepdims=True)
        of_source = jnp.zeros_like(self.src) + jnp.arange(self.src.shape[1])  # sharded as it is
        positions = jnp.broadcast_to(lengths + self.step, (len(lengths), beam))
        return positions, jnp.concatenate([of_source, lengths + steps], axis=1)

    def extend(self, max_length: int) -> "DecodingCache":
        """Returns the cache with capacity for `max_length` steps."""
        beam, length = self.ancestors.shape[1:]
        more = max_length - length
        return self._replace(
            blocks=[own._replace(past=own.past.extend(beam * more)) for own in self.blocks],
            ancestors=jnp.pad(self.ancestors, ((0, 0), (0, 0), (0, more))),
        )

    def follow_parents(self, parents: Int[Array, "B W"]) -> Int[Array, "B W L"]:
        """Returns the ancestors of the hypotheses that continue those in the slots `parents`."""
        beam, length = self.ancestors.shape[1:]
        ancestors = jnp.take_along_axis(self.ancestors, parents[:, :, None], axis=1)
        # In this step each slot holds its own hypothesis.
        is_this_step = jnp.arange(length) == self.step
        return jnp.where(is_this_step, jnp.arange(beam)[:, None], ancestors)
