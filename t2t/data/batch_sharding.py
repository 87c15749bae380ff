"""Shards batches over the mesh: the rows that each process reads, and their global arrays."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t2t.data.batch import DeviceBatch, HostBatch
from t2t.data.batching import BatchPlan
from t2t.data.loader import Loader
from t2t.data.objectives import Objective
from t2t.data.token_cache import TokenizedCorpus
from t2t.runtime.mesh import RULES


class RowShards(NamedTuple):
    """The shards of equal size into which the rows of a batch are divided."""

    total: int
    own: tuple[int, ...]  # this process's, in order; processes along `tensor` share shards


def find_row_shards(mesh: Mesh) -> RowShards:
    """Finds the number of row shards of the mesh and those of this process."""
    total = math.prod(mesh.shape[axis] for axis in RULES["batch"])
    # In an array with one element for each shard, a device's index is the number of its shard; the
    # start of the slice is None if there is only one shard.
    indices = _row_sharding(mesh).addressable_devices_indices_map((total,)).values()
    starts = {index[0].start or 0 for index in indices if index is not None}
    return RowShards(total, tuple(sorted(starts)))


def put_batch(batch: HostBatch, mesh: Mesh) -> DeviceBatch:
    """Creates the global batch on the mesh; `batch` holds the rows of this process's shards."""
    put: DeviceBatch = jax.make_array_from_process_local_data(_row_sharding(mesh), batch)
    return put


def make_loader(
    plan: BatchPlan,
    corpora: Sequence[TokenizedCorpus],
    mesh: Mesh,
    parts: int = 1,
    objective: Objective = Objective(),  # noqa: B008  (without state)
) -> Loader:
    """Creates a loader that pads the number of rows to a multiple of `parts` times the row shards.

    So a batch can be split into `parts` parts, and each part evenly over the devices.
    """
    shards = find_row_shards(mesh)
    multiple = shards.total * parts
    return Loader(plan, corpora, row_multiple=multiple, row_shards=shards, objective=objective)


def prefetch(batches: Iterator[HostBatch], mesh: Mesh, count: int = 2) -> Iterator[DeviceBatch]:
    """Yields batches on the mesh; the transfer of up to `count` further batches has begun."""
    ahead: deque[DeviceBatch] = deque()
    for batch in batches:
        ahead.append(put_batch(batch, mesh))
        if len(ahead) > count:
            yield ahead.popleft()
    yield from ahead


def _row_sharding(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(RULES["batch"]))
