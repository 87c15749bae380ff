"""Attention masks: True where a query sees a key; shapes broadcast to [B, H, T, S].

A row of a batch may hold several sentences ("packing"). A sentence in it is a segment, and queries
see only keys of their own segment.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID


def source_segment_ids(src: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """Returns the segment of each source position, from 0; a segment ends with EOS."""
    ends = (src == EOS_ID).astype(jnp.int32)
    return jnp.cumsum(ends, axis=1) - ends


def target_segment_ids(tgt_in: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Returns the segment of each target position, from 0; a segment begins with BOS."""
    # The BOS at position 0 begins segment 0, so it does not count.
    begins = (tgt_in == BOS_ID) & (jnp.arange(tgt_in.shape[1]) > 0)
    return jnp.cumsum(begins.astype(jnp.int32), axis=1)


def positions_in_segments(segments: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Returns the position of each token within its segment: 0, 1, 2, ..."""
    index = jnp.arange(segments.shape[1])
    is_first = segments != jnp.pad(segments, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return index - jax.lax.cummax(jnp.where(is_first, index, 0), axis=1)


def source_mask(segments: Int[Array, "B T"], src: Int[Array, "B S"]) -> Bool[Array, "B 1 T S"]:
    """Hides padding and other segments; `segments` belong to the queries."""
    is_same = segments[:, :, None] == source_segment_ids(src)[:, None, :]
    return (is_same & (src != PAD_ID)[:, None, :])[:, None]


def padding_mask(ids: Int[Array, "B S"]) -> Bool[Array, "B 1 1 S"]:
    """Every query sees all tokens of its row except padding."""
    return (ids != PAD_ID)[:, None, None, :]


def causal_mask(segments: Int[Array, "B T"]) -> Bool[Array, "B 1 T T"]:
    """A target position sees itself and the earlier positions of its segment (section 3.2.3)."""
    length = segments.shape[1]
    is_same = segments[:, :, None] == segments[:, None, :]
    return (is_same & jnp.tril(jnp.ones((length, length), bool)))[:, None]


def prefix_mask(
    src: Int[Array, "B S"], tgt_segments: Int[Array, "B T"], *, causal: bool = False
) -> Bool[Array, "B 1 S+T S+T"]:
    """The mask of source and target in one sequence (Raffel et al. 2020, figure 3).

    A source position sees all source tokens of its segment; with `causal`, those up to itself. A
    target position sees all source tokens of its segment, and its target positions up to itself.
    """
    segments = jnp.concatenate([source_segment_ids(src), tgt_segments], axis=1)
    is_token = jnp.pad(src != PAD_ID, ((0, 0), (0, tgt_segments.shape[1])))
    is_same = segments[:, :, None] == segments[:, None, :]
    index = jnp.arange(segments.shape[1])
    is_earlier = index <= index[:, None]
    is_earlier_target = is_earlier & (index >= src.shape[1])
    mask = is_same & (is_token[:, None, :] | is_earlier_target)
    return (mask & is_earlier if causal else mask)[:, None]


def begun_mask(
    src: Int[Array, "B S"], is_target: Bool[Array, "B S"], *, causal: bool = False
) -> Bool[Array, "B 1 S S"]:
    """The mask of `prefix_mask` for rows of one source, then the beginning of its target."""
    length = src.shape[1]
    is_earlier = jnp.tril(jnp.ones((length, length), bool))
    seen = is_earlier if causal else is_earlier | ~is_target[:, None, None, :]
    return padding_mask(src) & seen


def count_prefix(src: Int[Array, "B S"], tgt_segments: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Returns, for each target position, the number of source tokens of its segment."""
    is_same = tgt_segments[:, :, None] == source_segment_ids(src)[:, None, :]
    return jnp.sum(is_same & (src != PAD_ID)[:, None, :], axis=-1, dtype=jnp.int32)


def ancestor_mask(ancestors: Int[Array, "B W L"], step: Int[Array, ""]) -> Bool[Array, "B 1 W L*W"]:
    """In beam search, slot w sees one key of each step l <= `step`: the key of its hypothesis.

    The cache holds the key of slot w at step l at index l * W + w. Keys are not moved when
    hypotheses change slots. Instead `ancestors[b, w, l]` is the slot that, at step l, held the
    hypothesis that slot w holds now.
    """
    batch, beam, length = ancestors.shape
    is_ancestor = ancestors[..., None] == jnp.arange(beam)
    past = jnp.arange(length) <= step
    return (is_ancestor & past[:, None]).reshape(batch, beam, length * beam)[:, None]
