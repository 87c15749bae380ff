"""Packs several sentence pairs into each row of a batch, so that there is little padding.

All batches have one shape. The pairs of a row are the same in all epochs; each epoch shuffles the
rows. The sentences of a row do not attend to each other: see `model/masks.py`.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from t2t.config.fields import DataConfig
from t2t.data.batching import (
    BLOCK,
    BatchPlan,
    BatchShape,
    CorpusLengths,
    Lengths,
    PlannedBatch,
    count_rows,
    take_next,
)

_SIMILAR = 256  # rows that are about equally full, and pairs that are about equally long


def make_plan(
    corpora: Sequence[CorpusLengths],
    data: DataConfig,
    seed: int,
    weights: Sequence[float] = (),
) -> BatchPlan:
    """Creates a packed plan if `data.packed_length` is set, otherwise one pair per row."""
    return (PackedBatchPlan if data.packed_length else BatchPlan)(corpora, data, seed, weights)


class PackedBatchPlan(BatchPlan):
    """The batches of all epochs, with packed rows.

    Each row has `data.packed_length` source positions and as many target positions. The pairs of a
    row come from one block of `BLOCK` pairs. floor(weight) copies of each pair are in rows that
    every epoch uses. If the weight has a fractional part, each pair is also in one row of its own
    corpus, and each epoch takes the next round(fraction * n) of these n rows, cyclically, of a
    fixed random order.
    """

    def _arrange(
        self,
        kept: Bool[np.ndarray, "n"],
        starts: list[int],
        data: DataConfig,
        weights: Sequence[float],
    ) -> None:
        length = data.packed_length
        self.shapes = [BatchShape(length, length, count_rows(length, data))]
        whole, fractions = np.divmod(np.array(weights, float), 1)
        # (uses of each corpus's pairs, range of pairs): rows of all epochs, then of a part of them
        groups = [(whole.astype(int), range(len(kept)))]
        for number in np.flatnonzero(fractions).tolist():
            once = (np.arange(len(weights)) == number).astype(int)
            groups.append((once, range(starts[number], starts[number + 1])))
        num_kept = [int(kept[start:stop].sum()) for start, stop in itertools.pairwise(starts)]
        self._pairs = np.empty(sum(int(uses @ num_kept) for uses, _ in groups), np.int32)
        sizes, filled, ends = [np.zeros(1, np.int32)], 0, []
        for uses, members in groups:
            for start in range(members.start, members.stop, BLOCK):
                pairs = np.arange(start, min(start + BLOCK, members.stop))
                repeats = uses[np.searchsorted(starts, pairs, side="right") - 1] * kept[pairs]
                packed, own_sizes = self._pack(np.repeat(pairs, repeats), length)
                self._pairs[filled : filled + len(packed)] = packed
                filled += len(packed)
                sizes.append(own_sizes.astype(np.int32))
            ends.append(sum(map(len, sizes)) - 1)
        # Row i holds _pairs[_ends[i] : _ends[i + 1]]. Every epoch uses the first `_num_whole` rows.
        self._ends = np.cumsum(np.concatenate(sizes), dtype=np.int64)
        self._num_whole = ends[0]
        self._cycles = [  # of each fractional weight: its rows in a random order, and their share
            (np.random.default_rng((self.seed, n, 1)).permutation(np.arange(*rows)), fraction)
            for n, (rows, fraction) in enumerate(
                zip(itertools.pairwise(ends), fractions[fractions > 0], strict=True)
            )
        ]

    def _pack(
        self, pairs: Int[np.ndarray, "_"], length: int
    ) -> tuple[Int[np.ndarray, "_"], Int[np.ndarray, "rows"]]:
        """Packs pairs into rows; returns the pairs in the order of rows, and the rows' sizes."""
        rows = pack_rows(self.src_lengths[pairs], self.tgt_lengths[pairs], length, self.seed)
        return pairs[np.argsort(rows, kind="stable")], np.bincount(rows)

    def _plan_epoch(self, epoch: int) -> list[Any]:
        rows = [np.arange(self._num_whole)]
        rows += [take_next(cycle, fraction, epoch) for cycle, fraction in self._cycles]
        order = np.random.default_rng((self.seed, epoch)).permutation(np.concatenate(rows))
        size = self.shapes[0].rows
        return [order[start : start + size] for start in range(0, len(order), size)]

    def _make_batch(self, planned: Any) -> PlannedBatch:
        rows: Int[np.ndarray, rows] = planned
        first, ends = self._ends[rows], self._ends[rows + 1]
        counts = ends - first
        numbers = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
        return PlannedBatch(self.shapes[0], self._pairs[first[numbers] + within], numbers)


def pack_rows(src: Lengths, tgt: Lengths, length: int, seed: int) -> Int[np.ndarray, "n"]:
    """Assigns each pair to a row, so that neither side of a row exceeds `length` positions.

    The pairs, longest first, are distributed in rounds of one pair per row; in each round the
    longest pair goes to the emptiest row, so that all rows become about equally full. Within
    blocks of similar pairs and rows, the pairs with the longest source relative to the target go
    to the rows with the longest target relative to the source. Pairs that do not fit into the row
    of their round are distributed again, to new rows.
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
            block = np.arange(len(pairs)) // _SIMILAR
            emptiest = emptiest[np.lexsort((filled[0, emptiest] - filled[1, emptiest], block))]
            pairs = pairs[np.lexsort((tgt[pairs] - src[pairs], block))]
            grown = filled[:, emptiest] + np.stack([src[pairs], tgt[pairs]])
            fits = (grown <= length).all(axis=0)
            filled[:, emptiest[fits]] = grown[:, fits]
            rows[pairs[fits]] = begun + emptiest[fits]
            left.append(pairs[~fits])
        begun, pending = begun + count, np.concatenate(left)
    return rows
