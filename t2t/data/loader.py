"""Reads, pads and shifts the batches of a plan from tokenised corpora, and shards them.

The batch of a step is a pure function of the step, so a resumed loader yields the same batches as
an uninterrupted one. One thread prefetches batches. It takes 1 to 2 ms for 25,000 tokens
(`benchmarks.input_pipeline`), and 5 ms where an objective corrupts text, far less than a training
step on an accelerator, so more threads or worker processes would save no time.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, Batch, DeviceBatch, HostBatch, Route
from t2t.data.batch_plan import BatchPlan
from t2t.data.objectives import Corruption, Keys, Objective, Sentences, make_keys
from t2t.data.token_cache import Destination, TokenizedCorpus, find_ragged
from t2t.runtime.mesh import RULES

PREFETCH = 16  # batches; enough to cover the time in which the next epoch is planned


class RowShards(NamedTuple):
    """The shards of equal size into which the rows of a batch are divided."""

    total: int
    own: tuple[int, ...]  # this process's, in order; processes along `tensor` share shards


ONE_SHARD = RowShards(1, (0,))  # all rows are this process's, undivided


class Loader:
    """The batches of a plan by step; each host reads and pads only its own rows."""

    def __init__(
        self,
        plan: BatchPlan,
        corpora: Sequence[TokenizedCorpus],
        *,
        row_shards: RowShards = ONE_SHARD,
        parts: int = 1,
        objectives: Sequence[Objective] = (),
    ):
        """Creates a loader of the rows of one process, for the corpora of the plan in its order.

        Empty rows pad a batch, so that it can be split into `parts` parts, and each part evenly
        over the shards. The plan's lengths are those of the pairs that `objectives` make, one for
        each corpus; default: pairs as the corpora have them.
        """
        self.plan = plan
        own = objectives or [Objective()] * len(corpora)
        self._objectives = [*dict.fromkeys(own)]
        self._number_of = np.array([self._objectives.index(each) for each in own])  # by corpus
        self._ends = np.cumsum([*map(len, corpora)])  # the number of pairs up to each corpus's end
        self._tokens = TokenizedCorpus([shard for corpus in corpora for shard in corpus.shards])
        self._row_shards, self._parts = row_shards, parts
        self._has_routes = any(route != Route() for route in plan.routes)

    def batch(self, step: int) -> HostBatch:
        """This host's rows of the batch of `step`, counted from 0."""
        planned = self.plan.batch(step)
        num_shards, own = self._row_shards
        shard_rows = math.ceil(planned.shape.rows / (num_shards * self._parts)) * self._parts
        shards = planned.rows // shard_rows  # of each pair
        mine = np.isin(shards, own)
        # Empty rows are the last of the batch, and so also the last of this process.
        places = np.searchsorted(own, shards[mine])  # of each pair's shard among those in `own`
        row_numbers = places * shard_rows + planned.rows[mine] % shard_rows
        indices, own_rows, shape = planned.indices[mine], shard_rows * len(own), planned.shape
        src = np.full((own_rows, shape.src_length), PAD_ID, np.int32)
        tgt = np.full((own_rows, shape.tgt_length), PAD_ID, np.int32)
        # The pairs of a row follow each other.
        src_offsets = _find_offsets(self.plan.src_lengths[indices], row_numbers, shape.src_length)
        tgt_offsets = _find_offsets(self.plan.tgt_lengths[indices], row_numbers, shape.tgt_length)
        keys = make_keys(self.plan.seed, step // self.plan.steps_per_epoch, planned.uses[mine])
        both = src_offsets, tgt_offsets
        sides, ends = (src.reshape(-1), tgt.reshape(-1)), [np.zeros(0, np.int64)]
        numbers = self._number_of[np.searchsorted(self._ends, indices, side="right")]
        for number in np.unique(numbers).tolist():
            (members,) = np.nonzero(numbers == number)
            objective, pairs = self._objectives[number], indices[members]
            begins = [offsets[members] for offsets in both]
            into = zip(begins, sides, strict=True)
            self._fill(objective, pairs, keys[members], *into)
            if not objective.predicts_end:
                tokens = find_ragged(begins[1], self.plan.tgt_lengths[pairs])
                ends.append(tokens[sides[1][tokens] == EOS_ID])
        batch = make_batch(src, tgt)
        batch.weights.reshape(-1)[np.concatenate(ends)] = 0
        if self._has_routes:
            corpus = int(np.searchsorted(self._ends, planned.indices[0], side="right"))
            batch = batch._replace(route=self.plan.routes[corpus])
        return batch

    def _fill(
        self,
        objective: Objective,
        indices: Int[np.ndarray, "n"],
        keys: Keys,
        src: Destination,
        tgt: Destination,
    ) -> None:
        """Writes pairs of one objective to their destinations, sources behind its prefix."""
        offsets, into = src
        for place, token in enumerate(objective.prefix):
            into[offsets + place] = token
        destinations = (offsets + len(objective.prefix), into), tgt
        if isinstance(objective, Corruption):
            made = objective.corrupt(Sentences(*self._tokens.read_targets(indices)), keys)
            for (begins, array), (ids, lengths) in zip(destinations, made, strict=True):
                array[find_ragged(begins, lengths)] = ids
        else:
            self._tokens.copy(indices, *destinations)

    def iterate(self, start: int, stop: int) -> Iterator[HostBatch]:
        """Yields the batches of steps [start, stop); a thread prefetches up to `PREFETCH`.

        An exception in the thread is raised when its batch is requested. The thread ends when the
        iterator is exhausted, closed or deleted.
        """
        pending: deque[Future[HostBatch]] = deque()
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
        try:
            for step in range(start, stop):
                pending.append(thread.submit(self.batch, step))
                if len(pending) > PREFETCH:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            thread.shutdown(cancel_futures=True)


def _find_offsets(
    lengths: Int[np.ndarray, "n"], rows: Int[np.ndarray, "n"], width: int
) -> Int[np.ndarray, "n"]:
    """The offset of each sentence in the flattened batch, after the earlier ones in its row."""
    before = np.cumsum(lengths) - lengths  # tokens of all earlier sentences
    first = np.searchsorted(rows, rows)  # the first sentence in each one's row; `rows` ascends
    offsets: np.ndarray = rows * width + before - before[first]
    return offsets


def make_batch(src: Int[np.ndarray, "B S"], tgt: Int[np.ndarray, "B T"]) -> HostBatch:
    """Creates a batch from padded rows of sentences, each of which ends in EOS.

    The decoder input is the target shifted right by one; each sentence in a row begins with BOS.
    """
    is_token = tgt != PAD_ID
    # A token after an EOS begins a sentence. An EOS on the left of each row makes this true for its
    # first token, too.
    shifted = np.pad(tgt, ((0, 0), (1, 0)), constant_values=EOS_ID)[:, :-1]
    tgt_in = np.where(is_token, np.where(shifted == EOS_ID, BOS_ID, shifted), PAD_ID)
    return Batch(src, tgt_in.astype(np.int32), tgt, is_token.astype(np.float32))


def find_row_shards(mesh: Mesh) -> RowShards:
    """Finds the number of row shards of the mesh, and this process's shards."""
    total = math.prod(mesh.shape[axis] for axis in RULES["batch"])
    # In an array with one element for each shard, a device's index is the number of its shard; the
    # start of the slice is None if there is only one shard.
    sharding = NamedSharding(mesh, PartitionSpec(RULES["batch"]))
    indices = sharding.addressable_devices_indices_map((total,)).values()
    starts = {index[0].start or 0 for index in indices if index is not None}
    return RowShards(total, tuple(sorted(starts)))


def put_batch(batch: HostBatch, mesh: Mesh) -> DeviceBatch:
    """Creates the global batch on the mesh; `batch` holds the rows of this process's shards."""
    sharding = NamedSharding(mesh, PartitionSpec(RULES["batch"]))
    put: DeviceBatch = jax.make_array_from_process_local_data(sharding, batch)
    return put


def prefetch(batches: Iterator[HostBatch], mesh: Mesh) -> Iterator[DeviceBatch]:
    """Yields batches on the mesh; the transfer of the two that follow has begun."""
    ahead: deque[DeviceBatch] = deque()
    for batch in batches:
        ahead.append(put_batch(batch, mesh))
        if len(ahead) > 2:
            yield ahead.popleft()
    yield from ahead
