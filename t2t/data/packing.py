"""Packs several sentence pairs into each row of a batch, so that there is little padding.

A row has as many source and as many target positions as the text needs. All batches have this
shape, or at most one other, whose rows have `data.packed_length` positions on both sides: for pairs
that are too long for the first. The pairs of a row are the same in all epochs, unless
`data.subword_sampling` changes their lengths; each epoch shuffles the rows. The sentences of a row
do not attend to each other: see `model/masks.py`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from t2t.config.fields import DataConfig
from t2t.data.batch_plan import (
    BLOCK,
    BatchPlan,
    BatchShape,
    CorpusLengths,
    Lengths,
    Planned,
    PlannedBatch,
    RowLengths,
    count_rows,
    take_next,
)
from t2t.data.token_cache import find_ragged

_WINDOW = 256  # similar rows, and similar pairs, that `pack_rows` matches with each other
_MULTIPLE = 8  # of the lengths of rows, for the tiles of matrix products and of attention


def make_plan(
    corpora: Sequence[CorpusLengths],
    data: DataConfig,
    seed: int,
    weights: Sequence[float] = (),
    row_lengths: RowLengths | None = None,
    tasks: Sequence[DataConfig] = (),
) -> BatchPlan:
    """Creates a packed plan if `data.packed_length` is set, otherwise one pair per row."""
    kind = PackedBatchPlan if data.packed_length else BatchPlan
    return kind(corpora, data, seed, weights, row_lengths, tasks)


class _RowGroup(NamedTuple):
    """Rows that are packed together."""

    route: int  # the number of the route that their pairs go through
    copies: Int[np.ndarray, "corpora"]  # how often the group holds each pair of a corpus
    earlier: Int[np.ndarray, "corpora"]  # how often groups before it do
    members: range  # the pairs to go through; those with 0 copies are passed over
    share: float  # the share of the group's rows that an epoch uses


class PackedBatchPlan(BatchPlan):
    """The batches of all epochs, with packed rows.

    The pairs of a row come from one block of `BLOCK` pairs, and go through the same stacks.
    floor(weight) copies of each pair are in rows that every epoch uses. If the weight has a
    fractional part, each pair is also in one row that holds only pairs of its corpus, and each
    epoch takes the next round(fraction * n) of these n rows, cyclically, of a fixed random order.
    Where that would be less than one row, each row holds one pair.
    """

    def _arrange(
        self,
        kept: Bool[np.ndarray, "n"],
        starts: list[int],
        data: DataConfig,
        weights: Sequence[float],
    ) -> None:
        # Of a mixture the lengths of rows fit the shares of its tasks, whose sides are uneven; with
        # stages, and of one task, they fit the whole text.
        shares = weights if data.mixture and not data.stages else [1] * len(weights)
        limits = self.row_lengths = self.row_lengths or choose_row_lengths(
            self.src_lengths, self.tgt_lengths, kept, data, self._sum_lengths(shares)
        )
        packed, sizes, is_long = [], [np.zeros(1, np.int32)], []  # row 0 begins at 0
        groups, ends = self._group_rows(starts, weights), [0]
        for group in groups:
            num_rows = 0
            for start in range(group.members.start, group.members.stop, BLOCK):
                pairs = np.arange(start, min(start + BLOCK, group.members.stop))
                corpus_of = np.searchsorted(starts, pairs, side="right") - 1
                counts = group.copies[corpus_of] * kept[pairs]
                earlier = find_ragged(np.zeros_like(counts), counts)  # copies of the same pair
                earlier += np.repeat(group.earlier[corpus_of], counts)
                pairs = np.repeat(pairs, counts)
                src, tgt = self.src_lengths[pairs], self.tgt_lengths[pairs]
                rows, fits = pack_pairs(src, tgt, limits, data.packed_length, self.seed)
                if group.share * (rows.max(initial=-1) + 1) < 1:
                    rows = np.arange(len(pairs))
                packed.append(self._number_uses(pairs, earlier)[np.argsort(rows, kind="stable")])
                sizes.append(np.bincount(rows).astype(np.int32))
                is_long.append(np.bincount(rows, ~fits) > 0)
                num_rows += len(sizes[-1])
            ends.append(ends[-1] + num_rows)
        self._uses = np.concatenate(packed)
        # Row i holds _uses[_bounds[i] : _bounds[i + 1]].
        self._bounds = np.cumsum(np.concatenate(sizes), dtype=np.int64)
        self._is_long = np.concatenate(is_long)
        # Of each row, the number of the route that its pairs go through.
        self._row_routes = np.repeat([group.route for group in groups], np.diff(ends))
        full = RowLengths(data.packed_length, data.packed_length)
        used = [limits] * (not self._is_long.all()) + [full] * bool(self._is_long.any())
        count = count_rows(data.packed_length, data)
        self.shapes = [BatchShape(each.tgt, each.src, count) for each in used]
        # Every epoch uses the first rows, and of each group with a fractional share, whose rows are
        # in a random order, the next ones.
        whole = sum(group.share == 1 for group in groups)
        self._num_whole = ends[whole]
        self._cycles: list[tuple[np.ndarray, float]] = []
        for n, group in enumerate(groups[whole:]):
            rows = np.arange(ends[whole + n], ends[whole + n + 1])
            random = np.random.default_rng((self.seed, n, 1))
            self._cycles.append((random.permutation(rows), group.share))

    def _group_rows(self, starts: list[int], weights: Sequence[float]) -> list[_RowGroup]:
        """Lists the groups of rows: one for each route, then one for each fractional weight."""
        whole, fractions = np.divmod(np.array(weights, float), 1)
        whole, groups = whole.astype(int), list[_RowGroup]()
        routes = [*dict.fromkeys(self.routes)]
        numbers = np.array([routes.index(each) for each in self.routes])  # by corpus
        for number in range(len(routes)):
            (own,) = np.nonzero(numbers == number)
            members = range(starts[own[0]], starts[own[-1] + 1])
            copies = np.where(numbers == number, whole, 0)
            groups.append(_RowGroup(number, copies, np.zeros_like(whole), members, 1.0))
        for corpus in np.flatnonzero(fractions).tolist():
            once = (np.arange(len(weights)) == corpus).astype(int)
            members = range(starts[corpus], starts[corpus + 1])
            groups.append(_RowGroup(numbers[corpus], once, whole, members, fractions[corpus]))
        return groups

    def _plan_epoch(self, epoch: int) -> list[Planned]:
        """Shuffles the rows of an epoch; those with long pairs share batches, which others fill."""
        rows = [np.arange(self._num_whole)]
        rows += [take_next(cycle, fraction, epoch) for cycle, fraction in self._cycles]
        random = np.random.default_rng((self.seed, epoch))
        order = random.permutation(np.concatenate(rows))
        count, batches = self.shapes[0].rows, []
        routes = np.unique(self._row_routes[order])
        for route in routes:
            own = order[self._row_routes[order] == route]
            is_long = self._is_long[own]
            num_long = np.count_nonzero(is_long)
            own = own[np.argsort(~is_long, kind="stable")]
            for start in range(0, len(own), count):
                shape = self.shapes[-1 if start < num_long else 0]
                batches.append((shape, own[start : start + count]))
        if len(routes) > 1 or self._is_long[order].any():
            batches = [batches[index] for index in random.permutation(len(batches))]
        return batches

    def _make_batch(self, shape: BatchShape, rows: Int[np.ndarray, "n"]) -> PlannedBatch:
        starts = self._bounds[rows]
        counts = self._bounds[rows + 1] - starts
        numbers = np.repeat(np.arange(len(rows)), counts)  # each pair's row in the batch
        # Each pair's place in its row: 0, 1, ..., count - 1.
        places = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
        uses = self._uses[starts[numbers] + places]
        return PlannedBatch(shape, uses % len(self.src_lengths), numbers, uses)


def choose_row_lengths(
    src: Lengths,
    tgt: Lengths,
    kept: Bool[np.ndarray, "n"],
    data: DataConfig,
    totals: tuple[float, float],
) -> RowLengths:
    """Chooses the positions of a row for the kept pairs of these lengths.

    `totals` are the sub-words of their sources and of their targets, as often as they are used.

    The side with more sub-words gets `data.packed_length`, and the other its share of that, rounded
    up to a multiple of 8, or of `data.length_multiple`. If one batch shape has to serve all pairs
    (`data.num_shapes=1`), each side also holds its longest sentence. If sub-words are sampled, that
    may have `data.max_length` in another epoch.
    """
    needed = [int(-(-data.packed_length * total // max(totals))) for total in totals]
    if data.num_shapes == 1:
        least = data.max_length if data.subword_sampling else 1
        longest = (int(side.max(where=kept, initial=least)) for side in (src, tgt))
        needed = [*map(max, needed, longest)]
    multiple = max(data.length_multiple, _MULTIPLE)
    rounded = (-(-length // multiple) * multiple for length in needed)
    return RowLengths(*(min(length, data.packed_length) for length in rounded))


def pack_pairs(
    src: Lengths, tgt: Lengths, limits: RowLengths, length: int, seed: int
) -> tuple[Int[np.ndarray, "n"], Bool[np.ndarray, "n"]]:
    """Returns the row of each pair, and whether the pair fits into a row of these limits.

    Pairs that do not fit are in further rows, which hold `length` positions on both sides.
    """
    fits = (src <= limits.src) & (tgt <= limits.tgt)
    rows = np.empty(len(src), np.int64)
    rows[fits] = pack_rows(src[fits], tgt[fits], limits, seed)
    longer = pack_rows(src[~fits], tgt[~fits], RowLengths(length, length), seed)
    rows[~fits] = longer + rows[fits].max(initial=-1) + 1
    return rows, fits


def pack_rows(src: Lengths, tgt: Lengths, limits: RowLengths, seed: int) -> Int[np.ndarray, "n"]:
    """Assigns each pair, which must fit, to a row, so that neither side of a row is overfull.

    The pairs, longest first, are distributed in rounds of one pair per row; in each round the
    longest pair goes to the emptiest row, so that all rows become about equally full. Within
    blocks of similar pairs and rows, the pairs with the longest source relative to the target go
    to the rows with the longest target relative to the source. Pairs that do not fit into the row
    of their round are distributed again, to new rows.
    """
    # In these units both sides of a row hold equally much.
    src, tgt = src.astype(np.int64) * limits.tgt, tgt.astype(np.int64) * limits.src
    length, size = limits.src * limits.tgt, np.maximum(src, tgt)
    pending = np.random.default_rng(seed).permutation(len(size))
    pending = pending[np.argsort(-size[pending], kind="stable")]
    rows, num_earlier = np.empty(len(size), np.int64), 0  # rows of earlier passes
    while len(pending):
        positions = int(max(src[pending].sum(), tgt[pending].sum()))
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
