"""Sentences by length into batches of few shapes, each of which is compiled once."""

import math
from collections.abc import Iterator, Sequence

import jax

from t2t.runtime.mesh import RULES

_SHORTEST = 16  # source lengths are padded to 16, 32, 64, ...
_LEAST_ROWS = 2  # JAX broadcasts 1, which loses its sharding
_STEP = 4  # of the rows of the batch that is not full
_ROWS_LEFT = 16  # of a batch that goes on without the sentences that are done
_FULL_ROWS_UP_TO = 64  # beyond this length twice the length means half the rows: equal memory


def group_by_length(
    lengths: Sequence[int], longest: int, batch_size: int
) -> Iterator[tuple[int, int, list[int]]]:
    """(padded length, rows, indices) of each batch, the longest first.

    A batch is padded to the power of two that holds its longest, but not beyond `longest`, and has
    as many rows as memory is meant for; the last one fewer, if so few sentences are left.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        padded = min(longest, max(_SHORTEST, 1 << (lengths[order[0]] - 1).bit_length()))
        full = max(_LEAST_ROWS, batch_size * _FULL_ROWS_UP_TO // max(padded, _FULL_ROWS_UP_TO))
        sizes = _LEAST_ROWS, *range(_STEP, full, _STEP), full
        enough = next((size for size in sizes if size >= len(order)), full)
        rows = _round_up_to_devices(enough)
        yield padded, rows, order[:rows]
        order = order[rows:]


def shrink_batch_size(rows: int) -> int:
    """Batch size to shrink to once most sentences have finished; 0: it does not shrink."""
    smaller = _round_up_to_devices(_ROWS_LEFT)
    return smaller if smaller < rows else 0


def _round_up_to_devices(rows: int) -> int:
    """The next multiple of the number of devices that share a batch's rows."""
    shape = jax.sharding.get_abstract_mesh().shape
    shards: int = math.prod(shape.get(axis, 1) for axis in RULES["batch"])
    return math.ceil(rows / shards) * shards
