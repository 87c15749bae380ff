"""The most probable continuations of all hypotheses of a sentence, without sorting all logits."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t.data.batch import BOS_ID, PAD_ID

BANNED_TOKENS = (PAD_ID, BOS_ID)  # never chosen; UNK is allowed, since targets may contain it

# Candidates for the number of groups; the one that pads V least is taken (benchmarks/LOG.md).
_GROUP_COUNTS = range(192, 384)


def grouped_top_k(
    logits: Float[Array, "B W V"], offsets: Float[Array, "B W"], count: int
) -> tuple[Float[Array, "B C"], Int[Array, "B C"], Int[Array, "B C"]]:
    """The `count` largest values of logits + offsets over slots and tokens, without banned tokens.

    `offsets` holds what is added to all logits of a slot.

    Returns the values, best first, with their slots and tokens. Ties between slots go to the lower
    slot. Ties within a slot go to the lower token only if the vocabulary is too small for groups.

    So that few logits are sorted, the tokens of each slot are divided into groups. If no
    token were banned, the `count` best values would lie in the `count` groups with the largest
    maxima. A banned token may be the maximum of a group, so one more group is taken for each banned
    token of each slot.
    With n groups, group g holds the tokens g, g + n, g + 2n, ..., so the maxima of all groups are
    elementwise maxima of contiguous vectors.
    """
    batch, beam_size, vocab_size = logits.shape
    num_groups = _choose_num_groups(vocab_size)
    padding = (0, 0), (0, 0), (0, -vocab_size % num_groups)
    logits = jnp.pad(logits, padding, constant_values=-jnp.inf)
    group_size = logits.shape[-1] // num_groups
    maxima = logits.reshape(batch, beam_size, group_size, num_groups).max(axis=2)
    maxima += offsets[..., None]
    num_taken = min(count + len(BANNED_TOKENS) * beam_size, beam_size * num_groups)
    # Sorted by slot and group, because `top_k` prefers the first of equal values.
    taken = jnp.sort(jax.lax.top_k(maxima.reshape(batch, -1), num_taken)[1])
    slots, groups = (jnp.repeat(x, group_size, axis=1) for x in jnp.divmod(taken, num_groups))
    tokens = groups + jnp.tile(num_groups * jnp.arange(group_size), num_taken)
    indices = slots * logits.shape[-1] + tokens
    totals = _take(logits.reshape(batch, -1), indices) + _take(offsets, slots)
    is_banned = (tokens[..., None] == jnp.array(BANNED_TOKENS)).any(axis=-1)
    largest, order = jax.lax.top_k(jnp.where(is_banned, -jnp.inf, totals), count)
    return largest, _take(slots, order), _take(tokens, order)


def _choose_num_groups(vocab_size: int) -> int:
    """The number of groups that needs the least padding, or V if the vocabulary is small."""
    if vocab_size < 4 * _GROUP_COUNTS[0]:
        return vocab_size
    return min(_GROUP_COUNTS, key=lambda num_groups: -vocab_size % num_groups)


def _take(x: Array, indices: Int[Array, "B C"]) -> Array:
    """x[b, indices[b, c]] for each b and c; all indices must be in bounds."""
    return jnp.take_along_axis(x, indices, axis=1, mode="promise_in_bounds")
