"""The key of dimension names, `Batch`, and batches of sentences of similar lengths.

Shapes in the whole project use these letters, unless a file says otherwise:

    B  rows (sentences, or packed rows)   H  attention heads
    S  source positions                   G  key/value heads (H, unless heads share them)
    T  target positions                   K  width of a query or a key (d_k)
    L  cached target positions            U  width of a value (d_v)
    D  d_model                            V  vocabulary
    F  d_ff                               W  beam
    N  layers
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import jax
import numpy as np
from jaxtyping import Int

from t2t.config.fields import Config
from t2t.runtime.mesh import count_parts

PAD_ID = 0  # fills the rest of a row; has no weight in the loss
BOS_ID = 1  # the first decoder input
EOS_ID = 2  # ends every sentence, source and target
UNK_ID = 3  # a character that the vocabulary does not contain

_MIN_LENGTH = 16  # source lengths are padded to 16, 32, 64, ...
_MIN_ROWS = 2  # a dimension of size 1 loses its sharding where JAX broadcasts it
_ROWS_MULTIPLE = 4  # a batch that is not full has 2 rows or a multiple of 4
_FULL_BATCH_LENGTH = 64  # longer batches have fewer rows, for equal memory
_LONGEST_PAIR = 1024  # of a side in sub-words with EOS, unless training had longer ones

AnyArray = TypeVar("AnyArray")


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Route:
    """The stacks that a task's examples go through (`data.encoder`, `data.decoder`)."""

    encoder: str = ""  # "": the stack of all tasks that name none
    decoder: str = ""


class Batch(NamedTuple, Generic[AnyArray]):
    """Sentence pairs, padded to one shape; `tgt_in` is the target shifted right by one."""

    src: AnyArray  # int B S: w1 ... wn EOS PAD ...
    tgt_in: AnyArray  # int B T: BOS w1 ... wm PAD ...
    tgt_out: AnyArray  # int B T: w1 ... wm EOS PAD ...
    # float B T: 1 where tgt_out is predicted, else 0: at PAD, and with data.objective=masked_lm at
    # EOS, where tgt_out stands position by position under src, and tgt_in means nothing
    weights: AnyArray
    # the stacks of this batch; None in a run without own stacks
    route: Route | None = None


HostBatch: TypeAlias = Batch[np.ndarray]  # the rows of one process
DeviceBatch: TypeAlias = Batch[jax.Array]  # all rows, sharded over the mesh


def pad_sentences(
    sentences: Sequence[Sequence[int]], rows: int, width: int
) -> Int[np.ndarray, "B T"]:
    """Ids [rows, width] in int32: each sentence padded on the right, then empty rows."""
    padded = np.full((rows, width), PAD_ID, np.int32)
    for row, ids in enumerate(sentences):
        padded[row, : len(ids)] = ids
    return padded


def find_limit(config: Config, position_limit: int | None) -> int:
    """Returns the longest side of a pair that is scored or aligned, in sub-words with EOS."""
    longest = max(_LONGEST_PAIR, config.data.max_length)
    return longest if position_limit is None else min(longest, position_limit)


def group_by_length(
    lengths: Sequence[int], longest: int, batch_size: int
) -> Iterator[tuple[int, int, list[int]]]:
    """Yields (padded length, rows, indices of the sentences) of each batch, longest first.

    A batch is padded to the next power of two, at least 16 and at most `longest`. It has
    `batch_size` rows up to a padded length of 64, and half as many at each doubling beyond. The
    last batch has fewer rows if few sentences are left. The number of rows is at least 2, and is
    rounded up to a multiple of the devices that share a batch.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        padded = min(longest, max(_MIN_LENGTH, 1 << (lengths[order[0]] - 1).bit_length()))
        full = max(_MIN_ROWS, batch_size * _FULL_BATCH_LENGTH // max(padded, _FULL_BATCH_LENGTH))
        sizes = _MIN_ROWS, *range(_ROWS_MULTIPLE, full, _ROWS_MULTIPLE), full
        needed = next((size for size in sizes if size >= len(order)), full)
        rows = round_up_to_devices(needed)
        yield padded, rows, order[:rows]
        order = order[rows:]


def batch_pairs(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]], limit: int, batch_size: int
) -> Iterator[tuple[list[int], list[Int[np.ndarray, "B T"]]]]:
    """Yields the indices of the pairs in a batch of `group_by_length`, and src, tgt_in and tgt_out.

    The sides of a pair (source, target) end in EOS. A pair with a side of more than `limit`
    sub-words is in no batch. All three arrays have one shape.
    """
    fits = [n for n, pair in enumerate(pairs) if max(map(len, pair)) <= limit]
    lengths = [max(map(len, pairs[n])) for n in fits]
    for length, rows, places in group_by_length(lengths, limit, batch_size):
        chosen = [fits[place] for place in places]
        src, tgt = zip(*(pairs[n] for n in chosen), strict=True)
        sides = src, [[BOS_ID, *ids[:-1]] for ids in tgt], tgt
        yield chosen, [pad_sentences(side, rows, length) for side in sides]


def round_up_to_devices(rows: int) -> int:
    """Rounds up to a multiple of the number of shards into which the mesh divides a batch."""
    shards = count_parts("batch")
    return math.ceil(rows / shards) * shards
