"""Masks of attention: True where a query sees a key; shapes broadcast to [B, H, T, S].

A row of a batch may hold several sentences, one after the other; they do not see each other.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID

HIDDEN = -1e4  # logit of a hidden key


def source_segment_ids(src: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """The number of each position's sentence in its row, from 0; a sentence ends in EOS."""
    ends = (src == EOS_ID).astype(jnp.int32)
    return jnp.cumsum(ends, axis=1) - ends


def target_segment_ids(tgt_in: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """The number of each position's sentence in its row, from 0; each begins with BOS."""
    begins = (tgt_in == BOS_ID) & (jnp.arange(tgt_in.shape[1]) > 0)
    return jnp.cumsum(begins.astype(jnp.int32), axis=1)


def count_positions(segments: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """0, 1, 2 ... within each sentence."""
    index = jnp.arange(segments.shape[1])
    is_first = segments != jnp.pad(segments, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return index - jax.lax.cummax(jnp.where(is_first, index, 0), axis=1)


def source_mask(segments: Int[Array, "B T"], src: Int[Array, "B S"]) -> Bool[Array, "B 1 T S"]:
    """A query sees the real tokens of the source sentence that has its own sentence's number."""
    is_same = segments[:, :, None] == source_segment_ids(src)[:, None, :]
    return (is_same & (src != PAD_ID)[:, None, :])[:, None]


def padding_mask(ids: Int[Array, "B S"]) -> Bool[Array, "B 1 1 S"]:
    """Every query sees the real tokens of its own row."""
    return (ids != PAD_ID)[:, None, None, :]


def causal_mask(segments: Int[Array, "B T"]) -> Bool[Array, "B 1 T T"]:
    """A target position sees itself and what is to its left (section 3.2.3) in its sentence."""
    length = segments.shape[1]
    is_same = segments[:, :, None] == segments[:, None, :]
    return (is_same & jnp.tril(jnp.ones((length, length), bool)))[:, None]


def ancestor_mask(ancestors: Int[Array, "B W L"], step: Int[Array, ""]) -> Bool[Array, "B 1 W L*W"]:
    """In beam search, slot w sees at each step l <= `step` only the slot that it descends from.

    Keys lie in the cache in the order in which they were made, [L, W] flattened, and are never
    moved; instead each live hypothesis knows the slots of its own past.
    """
    batch, beam, length = ancestors.shape
    own = ancestors[..., None] == jnp.arange(beam)
    past = jnp.arange(length) <= step
    return (own & past[:, None]).reshape(batch, beam, length * beam)[:, None]


def apply_mask(logits: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, "..."]:
    """Logits in which hidden keys are so low that exp gives 0 beside any visible one."""
    return jnp.where(mask, logits, HIDDEN)


def masked_softmax(logits: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, "..."]:
    """The softmax over the visible keys; weights of hidden ones are 0, also where all are hidden.

    So attention of a row without any visible key is 0, and so are its gradients.
    """
    return jnp.where(mask, jax.nn.softmax(apply_mask(logits, mask), axis=-1), 0)
