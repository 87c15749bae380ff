"""Sentences by length into batches of few shapes, each of which is compiled once."""

import math
from collections.abc import Iterator, Sequence

import jax

from t2t.sharding import RULES

_SHORTEST = 16  # source lengths are padded to 16, 32, 64, ...
_ROWS = 2, 8, 32  # or as many as the batch; JAX broadcasts 1, which loses its sharding
_FULL_ROWS_UP_TO = 64  # beyond this length twice the length means half the rows: equal memory


def group_by_length(
    lengths: Sequence[int], longest: int, batch_size: int
) -> Iterator[tuple[int, int, list[int]]]:
    """(padded length, rows, indices) of each batch, the longest first.

    A sentence's padded length follows from its own alone, and none is padded beyond `longest`. The
    rows are as many as memory is meant for, or fewer where so few sentences have that length.
    """
    groups: dict[int, list[int]] = {}
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padded = max(_SHORTEST, 1 << (lengths[index] - 1).bit_length())
        groups.setdefault(min(padded, longest), []).append(index)
    for padded, indices in groups.items():
        full = batch_size * _FULL_ROWS_UP_TO // max(padded, _FULL_ROWS_UP_TO)
        while indices:
            rows = choose_rows(len(indices), max(_ROWS[0], full))
            yield padded, rows, indices[:rows]
            indices = indices[rows:]


def choose_rows(count: int, most: int) -> int:
    """The least of few sizes of a batch that holds so many sentences, or the largest."""
    sizes = [*(size for size in _ROWS if size < most), most]
    return _round_up_to_devices(min(size for size in sizes if size >= min(count, most)))


def _round_up_to_devices(rows: int) -> int:
    """The next multiple of the number of devices that share a batch's rows."""
    shape = jax.sharding.get_abstract_mesh().shape
    shards: int = math.prod(shape.get(axis, 1) for axis in RULES["batch"])
    return math.ceil(rows / shards) * shards
