"""From a plan and tokenised corpora to batches: the only padding and the only shift-right.

Batch i is a pure function of i, so a loader that starts anywhere gives what an uninterrupted one
would have given there. One thread makes the batches ahead of need: 25,000 tokens take it 1 to 2 ms
(`benchmarks.input_pipeline`), far less than a step on any accelerator, so neither a second thread
nor worker processes would save time.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from jaxtyping import Int

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, Batch, HostBatch
from t2t.data.batching import BatchPlan, BatchShape
from t2t.data.token_cache import TokenizedCorpus

PREFETCH = 16  # batches made ahead; they bridge the plan of the next epoch


class Loader:
    """Batches by step, each host reading and padding only its own rows."""

    def __init__(
        self,
        plan: BatchPlan,
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
        shards = planned.rows // rows
        mine = np.isin(shards, own)
        # Rows that stay empty are the batch's last: they are in order after this, too.
        row_numbers = np.searchsorted(own, shards[mine]) * rows + planned.rows[mine] % rows
        return make_batch(
            *self._read(planned.indices[mine], row_numbers, planned.shape, rows * len(own))
        )

    def iterate(self, start: int, stop: int) -> Iterator[HostBatch]:
        """Batches [start, stop), up to `PREFETCH` of them made ahead of need by a thread.

        What the thread raises is raised here, in the batch's turn. The thread ends with the
        iterator, also with one that is closed or dropped before its end.
        """
        ahead: deque[Future[HostBatch]] = deque()
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
        try:
            for step in range(start, stop):
                ahead.append(thread.submit(self.batch, step))
                if len(ahead) > PREFETCH:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            thread.shutdown(cancel_futures=True)

    def _read(
        self,
        indices: Int[np.ndarray, "n"],
        rows: Int[np.ndarray, "n"],
        shape: BatchShape,
        num_rows: int,
    ) -> tuple[Int[np.ndarray, "B S"], Int[np.ndarray, "B T"]]:
        """Source and target ids of these pairs, one after the other in their rows."""
        src = np.full((num_rows, shape.src_length), PAD_ID, np.int32)
        tgt = np.full((num_rows, shape.tgt_length), PAD_ID, np.int32)
        src_places = _find_places(self.plan.src_lengths[indices], rows, shape.src_length)
        tgt_places = _find_places(self.plan.tgt_lengths[indices], rows, shape.tgt_length)
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        for number in np.unique(numbers):
            (own,) = np.nonzero(numbers == number)
            self._corpora[number].copy(
                indices[own] - self._starts[number],
                src_places[own],
                tgt_places[own],
                src.reshape(-1),
                tgt.reshape(-1),
            )
        return src, tgt


def _find_places(
    lengths: Int[np.ndarray, "n"], rows: Int[np.ndarray, "n"], width: int
) -> Int[np.ndarray, "n"]:
    """Where each sentence begins in the flattened batch, behind those before it in its row."""
    before = np.cumsum(lengths) - lengths
    places: np.ndarray = rows * width + before - before[np.searchsorted(rows, rows)]
    return places


def make_batch(src: Int[np.ndarray, "B S"], tgt: Int[np.ndarray, "B T"]) -> HostBatch:
    """Rows of sentences, each ending in EOS, then padding; with the targets shifted right."""
    is_token = tgt != PAD_ID
    before = np.pad(tgt, ((0, 0), (1, 0)), constant_values=EOS_ID)[:, :-1]
    tgt_in = np.where(is_token, np.where(before == EOS_ID, BOS_ID, before), PAD_ID)
    return Batch(src, tgt_in.astype(np.int32), tgt, is_token.astype(np.float32))
