"""Shards batches over the mesh: the rows that each process reads, and their global arrays."""

import math
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t2t.data.batch import Batch, DeviceBatch, HostBatch
from t2t.runtime.mesh import RULES


class RowShards(NamedTuple):
    """The shards of equal size into which the rows of a batch are divided."""

    total: int
    own: tuple[int, ...]  # this process's, in order; processes along `tensor` share shards


def find_row_shards(mesh: Mesh) -> RowShards:
    """Finds the number of row shards of the mesh and those of this process."""
    total = math.prod(mesh.shape[axis] for axis in RULES["batch"])
    indices = _row_sharding(mesh).addressable_devices_indices_map((total,)).values()
    starts = {index[0].start or 0 for index in indices if index is not None}
    return RowShards(total, tuple(sorted(starts)))


def put_batch(batch: HostBatch, mesh: Mesh) -> DeviceBatch:
    """Creates the global batch on the mesh; `batch` holds the rows of this process's shards."""
    sharding, shards = _row_sharding(mesh), find_row_shards(mesh)

    def put(rows: np.ndarray) -> jax.Array:
        size = len(rows) // len(shards.own)

        def cut(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index
            number = shards.own.index((index[0].start or 0) // size)
            return rows[number * size : (number + 1) * size]

        shape = (size * shards.total, *rows.shape[1:])
        return jax.make_array_from_callback(shape, sharding, cut)

    return Batch(*map(put, batch))


def _row_sharding(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(RULES["batch"]))
