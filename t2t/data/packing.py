"""Packs several sentence pairs into each row of a batch, so that there is little padding.

All batches have one shape. The pairs of a row are the same in all epochs, unless
`data.subword_sampling` changes their lengths; each epoch shuffles the rows. The sentences of a row
do not attend to each other: see `model/masks.py`.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from t2t.config.fields import DataConfig
from t2t.config.objective_rules import is_text_alone
from t2t.data.batching import (
    BLOCK,
    BatchPlan,
    BatchShape,
    CorpusLengths,
    Lengths,
    Planned,
    PlannedBatch,
    count_rows,
    take_next,
)
from t2t.data.token_cache import find_ragged

_WINDOW = 256  # similar rows, and similar pairs, that `pack_rows` matches with each other


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

    The rows have the shape of `make_packed_shape`. The pairs of a row come from one block of
    `BLOCK` pairs. floor(weight) copies of each pair are in rows that every epoch uses. If the
    weight has a fractional part, each pair is also in one row that holds only pairs of its corpus,
    and each epoch takes the next round(fraction * n) of these n rows, cyclically, of a fixed random
    order. Where that would be less than one row, each row holds one pair.
    """

    def _arrange(
        self,
        kept: Bool[np.ndarray, "n"],
        starts: list[int],
        data: DataConfig,
        weights: Sequence[float],
    ) -> None:
        length, fullest = data.packed_length, (0, 0)  # positions of rows
        whole, fractions = np.divmod(np.array(weights, float), 1)
        whole = whole.astype(int)
        # For each group of rows: how many copies of a pair it holds, by the pair's corpus, the
        # range of its pairs, and the share of the rows that an epoch uses.
        groups = [(whole, range(len(kept)), 1.0)]
        for number in np.flatnonzero(fractions).tolist():
            once = (np.arange(len(weights)) == number).astype(int)
            own = range(starts[number], starts[number + 1])
            groups.append((once, own, fractions[number]))
        packed, sizes, group_ends = [], [np.zeros(1, np.int32)], []  # row 0 begins at 0
        for copies, members, share in groups:
            for start in range(members.start, members.stop, BLOCK):
                pairs = np.arange(start, min(start + BLOCK, members.stop))
                corpus_of = np.searchsorted(starts, pairs, side="right") - 1
                counts = copies[corpus_of] * kept[pairs]
                earlier = find_ragged(np.zeros_like(counts), counts)  # copies of the same pair
                if copies is not whole:
                    earlier += np.repeat(whole[corpus_of], counts)
                pairs = np.repeat(pairs, counts)
                lengths = self.src_lengths[pairs], self.tgt_lengths[pairs]
                rows = pack_rows(*lengths, length, self.seed)
                if share * (rows.max(initial=-1) + 1) < 1:
                    rows = np.arange(len(pairs))
                if is_text_alone(data):
                    fullest = measure_fullest(rows, *lengths, fullest)
                packed.append(self._number_uses(pairs, earlier)[np.argsort(rows, kind="stable")])
                sizes.append(np.bincount(rows).astype(np.int32))
            group_ends.append(sum(map(len, sizes)) - 1)  # number of rows so far
        self.shapes = [make_packed_shape(fullest, data)]
        self._uses = np.concatenate(packed)
        # Row i holds _uses[_bounds[i] : _bounds[i + 1]].
        self._bounds = np.cumsum(np.concatenate(sizes), dtype=np.int64)
        self._num_whole = group_ends[0]  # every epoch uses these first rows
        # Of each fractional weight: the rows of its group in a random order, and the fraction.
        self._cycles: list[tuple[np.ndarray, float]] = []
        for n, fraction in enumerate(fractions[fractions > 0]):
            rows = np.arange(group_ends[n], group_ends[n + 1])
            random = np.random.default_rng((self.seed, n, 1))
            self._cycles.append((random.permutation(rows), fraction))

    def _plan_epoch(self, epoch: int) -> list[Planned]:
        rows = [np.arange(self._num_whole)]
        rows += [take_next(cycle, fraction, epoch) for cycle, fraction in self._cycles]
        order = np.random.default_rng((self.seed, epoch)).permutation(np.concatenate(rows))
        [shape] = self.shapes
        starts = range(0, len(order), shape.rows)
        return [(shape, order[start : start + shape.rows]) for start in starts]

    def _make_batch(self, shape: BatchShape, rows: Int[np.ndarray, "n"]) -> PlannedBatch:
        starts = self._bounds[rows]
        counts = self._bounds[rows + 1] - starts
        numbers = np.repeat(np.arange(len(rows)), counts)  # each pair's row in the batch
        # Each pair's place in its row: 0, 1, ..., count - 1.
        places = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
        uses = self._uses[starts[numbers] + places]
        return PlannedBatch(shape, uses % len(self.src_lengths), numbers, uses)


def make_packed_shape(fullest: tuple[int, int], data: DataConfig) -> BatchShape:
    """Makes the shape of all batches: `data.packed_length` source and as many target positions.

    An objective on text alone may fill one side far less than the other. There each side is as long
    as its fullest row, rounded up to eighths of `packed_length`.
    """
    length, rows = data.packed_length, count_rows(data.packed_length, data)
    if not is_text_alone(data):
        return BatchShape(length, length, rows)
    unit = max(length // 8, 1)
    src_length, tgt_length = (min(-(-side // unit) * unit, length) for side in fullest)
    return BatchShape(tgt_length, src_length, rows)


def measure_fullest(
    rows: Int[np.ndarray, "n"], src: Lengths, tgt: Lengths, least: tuple[int, int] = (0, 0)
) -> tuple[int, int]:
    """Returns the most source and the most target positions of a row of pairs; at least `least`."""
    src_most, tgt_most = (int(np.bincount(rows, side).max(initial=0)) for side in (src, tgt))
    return max(src_most, least[0]), max(tgt_most, least[1])


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
    rows, num_earlier = np.empty(len(size), np.int64), 0  # rows of earlier passes
    while len(pending):
        positions = max(src[pending].sum(), tgt[pending].sum())
        num_rows = -(-positions // length)
        filled = np.zeros((2, num_rows), np.int64)  # source and target positions of each row
        left = []  # pairs that do not fit into the row of their round
        for start in range(0, len(pending), num_rows):
            pairs = pending[start : start + num_rows]
            emptiest = np.argsort(filled.max(axis=0), kind="stable")[: len(pairs)]
            block = np.arange(len(pairs)) // _WINDOW
            emptiest = emptiest[np.lexsort((filled[0, emptiest] - filled[1, emptiest], block))]
            pairs = pairs[np.lexsort((tgt[pairs] - src[pairs], block))]
            grown = filled[:, emptiest] + np.stack([src[pairs], tgt[pairs]])
            fits = (grown <= length).all(axis=0)
            filled[:, emptiest[fits]] = grown[:, fits]
            rows[pairs[fits]] = num_earlier + emptiest[fits]
            left.append(pairs[~fits])
        num_earlier, pending = num_earlier + num_rows, np.concatenate(left)
    return rows
