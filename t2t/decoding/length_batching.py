"""Groups sentences by length into batches of few shapes: each shape is compiled separately."""

import math
from collections.abc import Iterator, Sequence

import jax

from t2t.runtime.mesh import RULES

_MIN_LENGTH = 16  # source lengths are padded to 16, 32, 64, ...
_MIN_ROWS = 2  # a dimension of size 1 loses its sharding where JAX broadcasts it
_ROWS_MULTIPLE = 4  # a batch that is not full has 2 rows or a multiple of 4
_SHRUNK_ROWS = 16  # see `find_smaller_batch_size`
_FULL_BATCH_LENGTH = 64  # longer batches have fewer rows, for equal memory


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
        rows = _round_up_to_devices(needed)
        yield padded, rows, order[:rows]
        order = order[rows:]


def find_smaller_batch_size(rows: int) -> int:
    """Returns the size to which a batch of so many rows shrinks, or 0 if it does not shrink.

    It shrinks once its unfinished sentences fit into the smaller batch.
    """
    smaller = _round_up_to_devices(_SHRUNK_ROWS)
    return smaller if smaller < rows else 0


def _round_up_to_devices(rows: int) -> int:
    """Rounds up to a multiple of the number of shards into which the mesh divides a batch."""
    shape = jax.sharding.get_abstract_mesh().shape
    shards: int = math.prod(shape.get(axis, 1) for axis in RULES["batch"])
    return math.ceil(rows / shards) * shards
