"""Which query may look at which key. True means it may; shapes broadcast to [B, H, T, S]."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from t2t.batch import PAD_ID


def padding_mask(ids: Int[Array, "B S"]) -> Bool[Array, "B 1 1 S"]:
    """Every query sees the real tokens of its own row."""
    return (ids != PAD_ID)[:, None, None, :]


def causal_mask(length: int) -> Bool[Array, "1 1 T T"]:
    """A target position sees itself and what is to its left (section 3.2.3)."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def ancestor_mask(ancestors: Int[Array, "B W L"], step: Int[Array, ""]) -> Bool[Array, "B 1 W L*W"]:
    """In beam search, slot w sees at each step l <= `step` only the slot that it descends from.

    Keys lie in the cache in the order in which they were made, [L, W] flattened, and are never
    moved; instead each live hypothesis knows the slots of its own past.
    """
    batch, beam, length = ancestors.shape
    own = ancestors[..., None] == jnp.arange(beam)
    past = jnp.arange(length) <= step
    return (own & past[:, None]).reshape(batch, beam, length * beam)[:, None]


def apply_mask(logits: jax.Array, mask: jax.Array) -> jax.Array:
    """Hides keys from the softmax; a row without any visible key stays finite (uniform)."""
    return jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
