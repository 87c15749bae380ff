"""Cuts batches over the mesh: which rows a process reads, and how they become global arrays."""

import math
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t2t.data.batch import Batch, DeviceBatch, HostBatch
from t2t.runtime.mesh import RULES


class RowShards(NamedTuple):
    """The equal parts into which the rows of a batch are cut, and those of this process."""

    total: int
    own: tuple[int, ...]  # in order; processes that share a row's `tensor` axis share its shard


def find_row_shards(mesh: Mesh) -> RowShards:
    """How the mesh cuts a batch."""
    total = math.prod(mesh.shape[axis] for axis in RULES["batch"])
    indices = _row_sharding(mesh).addressable_devices_indices_map((total,)).values()
    starts = {index[0].start or 0 for index in indices if index is not None}
    return RowShards(total, tuple(sorted(starts)))


def put_batch(batch: HostBatch, mesh: Mesh) -> DeviceBatch:
    """The rows of this process's shards, as its part of the global batch on the mesh."""
    sharding, shards = _row_sharding(mesh), find_row_shards(mesh)

    def put(rows: np.ndarray) -> jax.Array:
        size = len(rows) // len(shards.own)

        def cut(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index
            place = shards.own.index((index[0].start or 0) // size)
            return rows[place * size : (place + 1) * size]

        shape = (size * shards.total, *rows.shape[1:])
        return jax.make_array_from_callback(shape, sharding, cut)

    return Batch(*map(put, batch))


def _row_sharding(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(RULES["batch"]))
