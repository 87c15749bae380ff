"""From a plan and tokenised corpora to batches: the only padding and the only shift-right.

Batch i is a pure function of i, so a loader that starts anywhere gives what an uninterrupted one
would have given there.
"""

import bisect
import itertools
from collections.abc import Iterator, Sequence

import grain
import numpy as np

from t2t.batch import BOS_ID, PAD_ID, Batch, HostBatch
from t2t.data.cache import TokenizedCorpus
from t2t.data.plan import BatchShape, Plan


class Loader:
    """Batches by step, each host reading and padding only its own rows."""

    def __init__(
        self,
        plan: Plan,
        corpora: Sequence[TokenizedCorpus],
        *,
        row_multiple: int = 1,
        row_shards: tuple[int, Sequence[int]] = (1, (0,)),
    ):
        """Rows are filled up with empty ones to a multiple.

        `row_shards`: into how many parts they are cut, and which of them this process reads.
        """
        self.plan = plan
        self._corpora = corpora
        self._starts = [0, *itertools.accumulate(len(corpus) for corpus in corpora)]
        self._row_multiple = row_multiple
        self._row_shards = row_shards

    def batch(self, step: int) -> HostBatch:
        """This host's rows of the batch of `step`, counted from 0."""
        planned = self.plan.batch(step)
        count, own = self._row_shards
        rows = -(-planned.shape.rows // self._row_multiple) * self._row_multiple // count
        # Rows that stay empty are the batch's last: they are in order after this, too.
        indices = [i for s in own for i in planned.indices[s * rows : (s + 1) * rows].tolist()]
        return pad_batch([self._read(i) for i in indices], planned.shape, rows * len(own))

    def iterate(self, start: int, stop: int) -> Iterator[HostBatch]:
        """Batches [start, stop), made ahead of need by background threads."""
        steps = grain.MapDataset.range(start, stop).map(self.batch)
        return iter(
            steps.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=16))
        )

    def _read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        number = bisect.bisect_right(self._starts, index) - 1
        return self._corpora[number].pair(index - self._starts[number])


def pad_batch(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]], shape: BatchShape, rows: int
) -> HostBatch:
    """Pairs of ids, each ending in EOS, as the rows of a batch; rows left over stay empty."""
    src = np.full((rows, shape.src_length), PAD_ID, np.int32)
    tgt_in = np.full((rows, shape.tgt_length), PAD_ID, np.int32)
    tgt_out = tgt_in.copy()
    for row, (src_ids, tgt_ids) in enumerate(pairs):
        src[row, : len(src_ids)] = src_ids
        tgt_in[row, 0] = BOS_ID
        tgt_in[row, 1 : len(tgt_ids)] = tgt_ids[:-1]
        tgt_out[row, : len(tgt_ids)] = tgt_ids
    return Batch(src, tgt_in, tgt_out, (tgt_out != PAD_ID).astype(np.float32))
