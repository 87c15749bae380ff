"""Keys and values: those of one sequence, and the cache of them that decoding keeps.

The cache lies in memory as its products read it, [B, G, K, S] and [B, G, S, V]; `keys` and `values`
show it as equation 1 has it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class KeyValue(NamedTuple):
    """The keys and values that a query attends to."""

    keys: Float[Array, "B S G K"]
    values: Float[Array, "B S G V"]


class KVCache(NamedTuple):
    """Keys and values that the queries of many steps attend to.

    Of the source, S positions; of a layer's own past, W slots a step, in the order in which they
    were made and never moved.
    """

    stored_keys: Float[Array, "B G K S"]
    stored_values: Float[Array, "B G S V"]

    @property
    def keys(self) -> Float[Array, "B S G K"]:
        """The keys as equation 1 has them."""
        return self.stored_keys.transpose(0, 3, 1, 2)

    @property
    def values(self) -> Float[Array, "B S G V"]:
        """The values as equation 1 has them."""
        return self.stored_values.transpose(0, 2, 1, 3)

    @classmethod
    def store(cls, memory: KeyValue) -> "KVCache":
        """A cache that holds these keys and values."""
        return cls(memory.keys.transpose(0, 2, 3, 1), memory.values.transpose(0, 2, 1, 3))

    @classmethod
    def allocate(cls, like: "KVCache", size: int) -> "KVCache":
        """An empty cache of `size` slots; heads, dtype and devices are those of `like`."""
        keys = jnp.zeros_like(like.stored_keys[..., :1])
        values = jnp.zeros_like(like.stored_values[:, :, :1])
        return cls(jnp.tile(keys, (1, 1, 1, size)), jnp.tile(values, (1, 1, size, 1)))

    def write(self, step: Int[Array, ""], new: KeyValue) -> "KVCache":
        """The cache with the W slots of this step."""
        start, more = step * new.keys.shape[1], self.store(new)
        update = jax.lax.dynamic_update_slice_in_dim
        return KVCache(
            update(self.stored_keys, more.stored_keys, start, axis=3),
            update(self.stored_values, more.stored_values, start, axis=2),
        )

    def extend(self, size: int) -> "KVCache":
        """The cache with capacity for `size` slots."""
        more, none = (0, size - self.stored_keys.shape[3]), (0, 0)
        return KVCache(
            jnp.pad(self.stored_keys, (none, none, none, more)),
            jnp.pad(self.stored_values, (none, none, more, none)),
        )
