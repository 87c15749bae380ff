"""From a plan and tokenised corpora to batches: the only padding and the only shift-right.

Batch i is a pure function of i, so a loader that starts anywhere gives what an uninterrupted one
would have given there.
"""

from collections.abc import Iterator, Sequence

import grain
import numpy as np
from jaxtyping import Int

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
        self._starts = np.cumsum([0, *map(len, corpora)])
        self._row_multiple = row_multiple
        self._row_shards = row_shards

    def batch(self, step: int) -> HostBatch:
        """This host's rows of the batch of `step`, counted from 0."""
        planned = self.plan.batch(step)
        count, own = self._row_shards
        rows = -(-planned.shape.rows // self._row_multiple) * self._row_multiple // count
        # Rows that stay empty are the batch's last: they are in order after this, too.
        indices = np.concatenate([planned.indices[s * rows : (s + 1) * rows] for s in own])
        return make_batch(*self._read(indices, planned.shape, rows * len(own)))

    def iterate(self, start: int, stop: int) -> Iterator[HostBatch]:
        """Batches [start, stop), made ahead of need by background threads."""
        steps = grain.MapDataset.range(start, stop).map(self.batch)
        return iter(
            steps.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=16))
        )

    def _read(
        self, indices: Int[np.ndarray, "n"], shape: BatchShape, rows: int
    ) -> tuple[Int[np.ndarray, "B S"], Int[np.ndarray, "B T"]]:
        """Source and target ids of these pairs; rows left over stay empty."""
        src = np.full((rows, shape.src_length), PAD_ID, np.int32)
        tgt = np.full((rows, shape.tgt_length), PAD_ID, np.int32)
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        for number in np.unique(numbers):
            (own,) = np.nonzero(numbers == number)
            src[own], tgt[own] = self._corpora[number].pad(
                indices[own] - self._starts[number], shape.src_length, shape.tgt_length
            )
        return src, tgt


def make_batch(src: Int[np.ndarray, "B S"], tgt: Int[np.ndarray, "B T"]) -> HostBatch:
    """Rows of padded ids, each ending in EOS or empty, with the target shifted right."""
    is_token = tgt != PAD_ID
    tgt_in = np.empty_like(tgt)
    tgt_in[:, 0] = np.where(is_token[:, 0], BOS_ID, PAD_ID)
    tgt_in[:, 1:] = np.where(is_token[:, 1:], tgt[:, :-1], PAD_ID)
    return Batch(src, tgt_in, tgt, is_token.astype(np.float32))
