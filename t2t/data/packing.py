"""Several sentence pairs in each row of a batch, so that hardly a position is padding.

All batches have one shape. Which pairs share a row is the same in all epochs; rows are shuffled.
Sentences of a row do not see each other: see `model/masks.py`.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from t2t.config.fields import DataConfig
from t2t.data.batching import (
    BatchPlan,
    BatchShape,
    CorpusLengths,
    Lengths,
    PlannedBatch,
    count_rows,
)

_NEIGHBOURS = 256  # rows about equally full, and as many pairs about equally long


def make_plan(
    corpora: Sequence[CorpusLengths],
    data: DataConfig,
    seed: int,
    weights: Sequence[float] = (),
) -> BatchPlan:
    """The plan that `data.packed_length` asks for."""
    return (PackedBatchPlan if data.packed_length else BatchPlan)(corpora, data, seed, weights)


class PackedBatchPlan(BatchPlan):
    """Rows of `data.packed_length` source and as many target positions."""

    def _arrange(
        self,
        kept: Bool[np.ndarray, "n"],
        starts: list[int],
        data: DataConfig,
        weights: Sequence[float],
    ) -> None:
        length = data.packed_length
        self.shapes = [BatchShape(length, length, count_rows(length, data))]
        uses = np.repeat(np.array(weights, int), np.diff(starts))
        pairs = np.repeat(np.arange(len(kept)), np.where(kept, uses, 0))
        rows = pack_rows(self.src_lengths[pairs], self.tgt_lengths[pairs], length, self.seed)
        self._pairs = pairs[np.argsort(rows, kind="stable")]
        self._ends = np.cumsum(np.bincount(rows))  # in `_pairs`, of each row

    def _plan_epoch(self, epoch: int) -> list[PlannedBatch]:
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self._ends))
        size = self.shapes[0].rows
        return [self._join(order[start : start + size]) for start in range(0, len(order), size)]

    def _join(self, rows: Int[np.ndarray, "rows"]) -> PlannedBatch:
        counts = np.diff(self._ends, prepend=0)[rows]
        first = self._ends[rows] - counts
        numbers = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
        return PlannedBatch(self.shapes[0], self._pairs[first[numbers] + within], numbers)


def pack_rows(src: Lengths, tgt: Lengths, length: int, seed: int) -> Int[np.ndarray, "n"]:
    """The row of each pair, so that neither side of a row holds more than `length`.

    The longest pairs are dealt out first, then the next, each time the longest to the emptiest row,
    so that all rows end about equally full; and among neighbours in this order, those with most
    source go to the rows with most target. What fits nowhere is dealt out again to new rows.
    """
    size = np.maximum(src, tgt)
    pending = np.random.default_rng(seed).permutation(len(size))
    pending = pending[np.argsort(-size[pending], kind="stable")]
    rows, begun = np.empty(len(size), np.int64), 0
    while len(pending):
        wanted = max(src[pending].sum(), tgt[pending].sum())
        filled = np.zeros((2, -(-wanted // length)), np.int64)
        count, left = filled.shape[1], []
        for start in range(0, len(pending), count):
            pairs = pending[start : start + count]
            emptiest = np.argsort(filled.max(axis=0), kind="stable")[: len(pairs)]
            block = np.arange(len(pairs)) // _NEIGHBOURS
            emptiest = emptiest[np.lexsort((filled[0, emptiest] - filled[1, emptiest], block))]
            pairs = pairs[np.lexsort((tgt[pairs] - src[pairs], block))]
            grown = filled[:, emptiest] + np.stack([src[pairs], tgt[pairs]])
            fits = (grown <= length).all(axis=0)
            filled[:, emptiest[fits]] = grown[:, fits]
            rows[pairs[fits]] = begun + emptiest[fits]
            left.append(pairs[~fits])
        begun, pending = begun + count, np.concatenate(left)
    return rows
