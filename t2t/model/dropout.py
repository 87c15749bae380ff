"""Dropout (section 5.4), and the cheap random numbers that it takes.

The numbers are a hash of an element's place and of the key: each device computes those of its part,
and they are the same on any mesh.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt32

from t2t.runtime.mesh import spec


def dropout(x: Float[Array, "..."], rate: float, key: jax.Array | None) -> Float[Array, "..."]:
    """Section 5.4: each element is 0 with probability `rate`, else x / (1 - rate).

    Without a key this is evaluation: x unchanged.
    """
    if key is None or rate == 0:
        return x
    kept = draw_kept(x, rate, jax.random.key_data(key))
    return jnp.where(kept, x / (1 - rate), 0).astype(x.dtype)


def draw_kept(x: Float[Array, "..."], rate: float, words: UInt32[Array, "2"]) -> Bool[Array, "..."]:
    """True, with probability 1 - rate, for each element of `x`; `words` are a key's data."""
    limit = jnp.uint32(min(round((1 - rate) * 2**32), 2**32 - 1))
    kept: jax.Array = hash_places(x, words) < limit
    return kept


def fold(key: jax.Array | None, number: int) -> jax.Array | None:
    """The key of one place in the model; no key stays no key (evaluation)."""
    return None if key is None else jax.random.fold_in(key, number)


def hash_places(x: Float[Array, "..."], words: UInt32[Array, "2"]) -> UInt32[Array, "..."]:
    """32 random bits for each element: mix(place * (2 words[1] + 1) xor words[0]).

    Each key walks through the hash's arguments with a step of its own, so that no two have the same
    numbers at places a distance apart.
    """
    own = None if spec() is None else jax.typeof(x).sharding.spec  # each device makes its part
    place = jnp.zeros((), jnp.uint32)
    for axis in range(x.ndim):
        stride = math.prod(x.shape[axis + 1 :]) % 2**32
        index = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis, out_sharding=own)
        place = place + index * jnp.uint32(stride)
    h: jax.Array = place * (2 * words[1] + 1) ^ words[0]
    # A bijection of 32 bits in which each bit in changes each bit out with probability 1/2: the
    # finaliser of MurmurHash3 (Appleby) with the constants that Wellons (2018) found to have the
    # least bias, "lowbias32".
    h = (h ^ (h >> 16)) * jnp.uint32(0x7FEB352D)
    h = (h ^ (h >> 15)) * jnp.uint32(0x846CA68B)
    h ^= h >> 16
    return h
