"""Which query may look at which key. True means it may; shapes broadcast to [B, H, T, S].

A row of a batch may hold several sentences, one after the other; they do not see each other.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID

HIDDEN = -1e4  # logit of a hidden key


def number_sources(src: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """Which sentence of its row a position belongs to: each ends in EOS."""
    ends = (src == EOS_ID).astype(jnp.int32)
    return jnp.cumsum(ends, axis=1) - ends


def number_targets(tgt_in: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Which sentence of its row a position belongs to: each but the first begins with BOS."""
    begins = (tgt_in == BOS_ID) & (jnp.arange(tgt_in.shape[1]) > 0)
    return jnp.cumsum(begins.astype(jnp.int32), axis=1)


def count_positions(numbers: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """0, 1, 2 ... within each sentence."""
    index = jnp.arange(numbers.shape[1])
    is_first = numbers != jnp.pad(numbers, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return index - jax.lax.cummax(jnp.where(is_first, index, 0), axis=1)


def source_mask(numbers: Int[Array, "B T"], src: Int[Array, "B S"]) -> Bool[Array, "B 1 T S"]:
    """A query, of a sentence with this number, sees the real tokens of the same of the sources."""
    is_same = numbers[:, :, None] == number_sources(src)[:, None, :]
    return (is_same & (src != PAD_ID)[:, None, :])[:, None]


def padding_mask(ids: Int[Array, "B S"]) -> Bool[Array, "B 1 1 S"]:
    """Every query sees the real tokens of its own row."""
    return (ids != PAD_ID)[:, None, None, :]


def causal_mask(numbers: Int[Array, "B T"]) -> Bool[Array, "B 1 T T"]:
    """A target position sees itself and what is to its left (section 3.2.3) in its sentence."""
    length = numbers.shape[1]
    is_same = numbers[:, :, None] == numbers[:, None, :]
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

    So a row without any visible key has the result 0 and gradients of 0. Formulas that do not keep
    the weights do the same by an infinite denominator.
    """
    return jnp.where(mask, jax.nn.softmax(apply_mask(logits, mask), axis=-1), 0)
