"""Dropout (section 5.4) with random bits from a cheap hash.

The bits of an element are a hash of its flat index and of the key. So each device computes the bits
of its own shard, and the mask does not depend on the mesh.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt32

from t2t.runtime.mesh import spec


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
    limit = jnp.uint32(min(round((1 - rate) * 2**32), 2**32 - 1))
    keep: jax.Array = hash_indices(x, key_data) < limit
    return keep


def split(key: jax.Array | None, number: int) -> list[jax.Array | None]:
    """Splits a key into `number` keys; for key=None each of them is None.

    A model splits its key once, for all of its layers: on a GPU each call takes three kernels.
    """
    if key is None:
        return [None] * number
    keys = jax.random.split(key, number)
    return [keys[i] for i in range(number)]


def hash_indices(x: Float[Array, "..."], key_data: UInt32[Array, "2"]) -> UInt32[Array, "..."]:
    """Returns 32 random bits for each element of `x`, of which only shape and sharding are used.

    The bits are mix(((2 k1 + 1) * index) xor k0), where (k0, k1) = key_data, and `index` is the
    index in the flattened array. The factor 2 k1 + 1 depends on the key. With a constant factor,
    two keys could give the same sequence of bits, shifted by a constant number of elements.
    """
    # `spec()` is None without a mesh.
    sharding = None if spec() is None else jax.typeof(x).sharding.spec
    flat_index = jnp.zeros((), jnp.uint32)
    for axis in range(x.ndim):
        stride = math.prod(x.shape[axis + 1 :]) % 2**32
        index = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis, out_sharding=sharding)
        flat_index = flat_index + index * jnp.uint32(stride)
    h: jax.Array = flat_index * (2 * key_data[1] + 1) ^ key_data[0]
    # mix: the finaliser of MurmurHash3 (Appleby) with the constants "lowbias32" of Wellons (2018).
    # It is a bijection of 32-bit integers, and flipping an input bit flips each output bit with
    # probability about 1/2.
    h = (h ^ (h >> 16)) * jnp.uint32(0x7FEB352D)
    h = (h ^ (h >> 15)) * jnp.uint32(0x846CA68B)
    h ^= h >> 16
    return h
