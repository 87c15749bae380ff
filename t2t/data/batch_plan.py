"""Plans which sentence pairs form each batch: a pure function of (lengths, seed, step), in NumPy.

Every host computes the same plan. So the order of the data does not depend on the number of hosts,
resuming needs only the step, and each pair is used exactly once per epoch (or as often as the
weight of its corpus says). Text and ids are not read here.

Memory: about 16 bytes per pair. A computation that needs more works on blocks of `BLOCK` pairs, one
after the other.
"""

import dataclasses
import itertools
import math
import threading
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from t2t.config.fields import DataConfig
from t2t.data.corpus import Corpus, DataError
from t2t.data.directions import find_route

Lengths = Int[np.ndarray, "n"]
CorpusLengths = tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]  # source, target
# Source length, target length, and number of pairs of each combination of lengths.
LengthCounts = Int[np.ndarray, "3 combinations"]

# Relative cost of a source and a target position, used to choose shapes. A target position costs
# more because it passes through two attentions and the logits.
POSITION_COSTS = (1, 3)

BLOCK = 1 << 20  # pairs


@dataclasses.dataclass(frozen=True, order=True)
class BatchShape:
    """The shape of a batch: `rows` pairs, padded to these lengths (sub-words with EOS)."""

    tgt_length: int
    src_length: int
    rows: int


class RowLengths(NamedTuple):
    """The positions of a packed row."""

    src: int
    tgt: int


class PlannedBatch(NamedTuple):
    """The pairs of one batch; its last rows stay empty if an epoch has no more pairs for them."""

    shape: BatchShape
    indices: Int[np.ndarray, "n"]  # of the pairs, over all corpora
    rows: Int[np.ndarray, "n"]  # the row of each pair, in ascending order
    # The index of each pair in its first use of an epoch, and numbers beyond all indices in others.
    uses: Int[np.ndarray, "n"]


# The shape of a batch, and what fills it: uses of pairs, or the numbers of packed rows.
Planned = tuple[BatchShape, Int[np.ndarray, "_"]]


class BatchPlan:
    """The batches of all epochs.

    Each epoch groups the pairs by length into a few shapes, and by the stacks that their tasks go
    through. It shuffles each group and cuts it into batches. Pairs that do not fill a batch move to
    the next larger shape, so that at most a few batches of an epoch have empty rows. Then the
    batches are shuffled.
    """

    def __init__(
        self,
        corpora: Sequence[CorpusLengths],
        data: DataConfig,
        seed: int,
        weights: Sequence[float] = (),
        row_lengths: RowLengths | None = None,
        tasks: Sequence[DataConfig] = (),
    ):
        """Chooses the shapes and plans the first epoch.

        Pairs are numbered consecutively over all corpora. `weights` say how often an epoch uses
        each pair of each corpus; by default once. They have no influence on the shapes.
        `row_lengths` are those of packed rows; by default they follow from the text. `tasks` are
        the configs of the corpora's tasks, which say what pairs are dropped; default: `data`.

        Raises:
            DataError: as `count_uses`.
        """
        self.seed, self.row_lengths = seed, row_lengths
        self.src_lengths, self.tgt_lengths = (  # of one corpus without a copy, to save memory
            side[0] if len(side) == 1 else np.concatenate(side)
            for side in zip(*corpora, strict=True)
        )
        starts = np.cumsum([0, *(len(src) for src, _ in corpora)]).tolist()
        self.dropped: dict[str, Int[np.ndarray, n]] = {}
        rules = tasks or [data] * len(corpora)
        self.routes = [*map(find_route, rules)]  # of each corpus; a batch has pairs of one route
        for start, sides, task in zip(starts[:-1], corpora, rules, strict=True):
            for rule, indices in find_dropped(*sides, task).items():
                earlier = self.dropped.get(rule, indices[:0])
                self.dropped[rule] = np.concatenate([earlier, indices + start])
        kept = np.ones(len(self.src_lengths), bool)
        for indices in self.dropped.values():
            kept[indices] = False
        # Of each corpus: its pairs, those that are kept, their sub-words, and those of targets.
        self._sizes = []
        for start, stop in itertools.pairwise(starts):
            own = kept[start:stop]
            both = (side[start:stop] for side in (self.src_lengths, self.tgt_lengths))
            src, tgt = (int(side.sum(where=own, dtype=np.int64)) for side in both)
            self._sizes.append((len(own), int(own.sum()), src + tgt, tgt))
        weights = weights or [1.0] * len(corpora)
        self.count_uses(weights)
        # Uses of pairs beyond the first have further numbers, so that each can be told apart.
        self._use_type = np.int32 if len(kept) * (max(weights) + 1) < 1 << 31 else np.int64
        self._arrange(kept, starts, data, weights)
        self._epoch, self._batches = 0, self._plan_epoch(0)  # of the epoch that was used last
        self._lock = threading.Lock()  # so that only one thread plans an epoch
        self.steps_per_epoch = len(self._batches)

    def count_uses(self, weights: Sequence[float]) -> list[tuple[float, float, float]]:
        """The uses of the pairs of each corpus in an epoch with these weights.

        Beside them stand their sub-words, and those of targets.

        Raises:
            DataError: the filters drop every pair, or an epoch uses less than one of a corpus.
        """
        sizes = [*zip(self._sizes, weights, strict=True)]
        if not any(kept * weight for (_, kept, *_), weight in sizes):
            raise DataError(
                f"none of {sum(pairs for (pairs, *_), weight in sizes if weight)} sentence pairs "
                f"is left to train on: {self.describe_dropped()}; check the corpus, or raise "
                "data.max_length or data.max_length_ratio"
            )
        for number, ((_, kept, *_), weight) in enumerate(sizes, start=1):
            if 0 < kept * weight < 1:
                raise DataError(
                    f"an epoch uses less than one of the {kept:,} pairs of training corpus "
                    f"{number}, whose weight is {weight:g}: with data.train_weights or data.stages "
                    f"give it {1.05 / kept:.2g} or more, or leave it out; with data.temperature "
                    "raise that"
                )
        return [(kept * w, both * w, tgt * w) for (_, kept, both, tgt), w in sizes]

    def _sum_lengths(self, weights: Sequence[float]) -> tuple[float, float]:
        """The source and the target sub-words of an epoch with these weights."""
        _, both, tgt = map(sum, zip(*self.count_uses(weights), strict=True))
        return both - tgt, tgt

    def _arrange(
        self,
        kept: Bool[np.ndarray, "n"],
        starts: list[int],
        data: DataConfig,
        weights: Sequence[float],
    ) -> None:
        """Chooses the shapes and the pairs of each, which are the same in all epochs."""
        counts = count_lengths(self.src_lengths, self.tgt_lengths, data.length_multiple, kept)
        self.shapes = choose_shapes(counts, data)
        shape_of = assign_shapes(self.src_lengths, self.tgt_lengths, self.shapes)
        shape_of[~kept] = -1
        # _members[corpus][shape]: the pairs of a corpus; _pools: those that a fraction draws from.
        self._weights = [divmod(weight, 1) for weight in weights]
        self._members = [
            [
                (np.flatnonzero(shape_of[start:stop] == number) + start).astype(np.int32)
                for number in range(len(self.shapes))
            ]
            for start, stop in itertools.pairwise(starts)
        ]
        self._pools = [
            self._pool(members, fraction) if fraction else []
            for members, (_, fraction) in zip(self._members, self._weights, strict=True)
        ]

    def _pool(
        self, members: Sequence[Int[np.ndarray, "_"]], fraction: float
    ) -> list[Int[np.ndarray, "_"]]:
        """The pairs of each shape, of which an epoch draws a fraction: at least one pair, or none.

        Where that would be less than one, the pairs move to the next larger shape. The largest
        shape gets as many further pairs as it needs.
        """
        pools = list(members)
        for number in range(len(pools)):
            larger = self._find_larger(number)
            if larger is not None and fraction * len(pools[number]) < 1:
                pools[larger] = np.concatenate([pools[larger], pools[number]])
                pools[number] = pools[number][:0]
        for number in reversed(range(len(pools) - 1)):
            needed = math.ceil(1 / fraction) - len(pools[-1])
            if not len(pools[-1]) or needed <= 0:
                break
            if fraction * (len(pools[number]) - needed) < 1:
                needed = len(pools[number])
            pools[-1] = np.concatenate([pools[-1], pools[number][:needed]])
            pools[number] = pools[number][needed:]
        return pools

    def _find_larger(self, number: int) -> int | None:
        """The next shape that holds each pair of this one; None for the largest shape."""
        needed = self.shapes[number].src_length
        later = range(number + 1, len(self.shapes))  # which hold its targets
        return next((n for n in later if self.shapes[n].src_length >= needed), None)

    def batch(self, step: int) -> PlannedBatch:
        """The batch of a step; steps are counted from 0 over all epochs."""
        epoch, index = divmod(step, self.steps_per_epoch)
        with self._lock:
            if epoch != self._epoch:
                self._batches = []  # frees its memory before the next one is planned
                self._epoch, self._batches = epoch, self._plan_epoch(epoch)
            return self._make_batch(*self._batches[index])

    def padding_shares(self) -> tuple[float, float]:
        """Fractions of padding among the source and the target positions of the first epoch."""
        src = tgt = src_positions = tgt_positions = 0
        for step in range(self.steps_per_epoch):
            shape, indices, *_ = self.batch(step)
            src += int(self.src_lengths[indices].sum())
            tgt += int(self.tgt_lengths[indices].sum())
            src_positions += shape.rows * shape.src_length
            tgt_positions += shape.rows * shape.tgt_length
        return 1 - src / src_positions, 1 - tgt / tgt_positions

    def describe_dropped(self, corpora: Sequence[Corpus] = ()) -> str:
        """The number of pairs that each filter dropped, those of the corpora included, as text."""
        counts = Counter[str]()
        for corpus in corpora:
            counts.update(corpus.dropped)
        counts.update({rule: len(indices) for rule, indices in self.dropped.items()})
        return ", ".join(f"{count} {rule}" for rule, count in counts.items())

    def _plan_epoch(self, epoch: int) -> list[Planned]:
        random = np.random.default_rng((self.seed, epoch))
        batches = []
        for route in dict.fromkeys(self.routes):
            used = [
                corpus
                for corpus, weight in enumerate(self._weights)
                if any(weight) and self.routes[corpus] == route
            ]
            if not used:
                continue
            carried: list[list[np.ndarray]] = [[] for _ in self.shapes]
            for number, shape in enumerate(self.shapes):
                drawn = [self._draw(number, corpus, epoch) for corpus in used]
                uses = random.permutation(np.concatenate(drawn + carried[number]))
                larger = self._find_larger(number)
                whole = len(uses) if larger is None else len(uses) - len(uses) % shape.rows
                for start in range(0, whole, shape.rows):
                    batches.append((shape, uses[start : start + shape.rows]))
                if larger is not None:
                    carried[larger].append(uses[whole:])
        return [batches[index] for index in random.permutation(len(batches))]

    def _make_batch(self, shape: BatchShape, uses: Int[np.ndarray, "n"]) -> PlannedBatch:
        return PlannedBatch(shape, uses % len(self.src_lengths), np.arange(len(uses)), uses)

    def _number_uses(
        self, indices: Int[np.ndarray, "n"], earlier: int | Int[np.ndarray, "n"]
    ) -> Int[np.ndarray, "n"]:
        """Numbers the uses of pairs, of which an epoch has so many others before."""
        return indices.astype(self._use_type) + np.asarray(
            earlier * len(self.src_lengths), self._use_type
        )

    def _draw(self, shape: int, corpus: int, epoch: int) -> Int[np.ndarray, "n"]:
        """The uses of the pairs of one corpus and shape in an epoch.

        Each pair is used floor(weight) times. The fractional part of the weight adds
        round(fraction * n) of n pairs: each epoch takes the next ones, cyclically, of a fixed
        random order.
        """
        members, (whole, fraction) = self._members[corpus][shape], self._weights[corpus]
        uses = [self._number_uses(members, earlier) for earlier in range(int(whole))]
        if fraction:
            random = np.random.default_rng((self.seed, shape, corpus, 1))
            order = random.permutation(self._pools[corpus][shape])
            uses.append(self._number_uses(take_next(order, fraction, epoch), int(whole)))
        return np.concatenate(uses)


def take_next(cycle: Int[np.ndarray, "n"], fraction: float, epoch: int) -> Int[np.ndarray, "_"]:
    """The part of a fixed order that an epoch uses: the next round(fraction * n), cyclically.

    At least one, if there are any.
    """
    if not len(cycle):
        return cycle
    count = max(round(fraction * len(cycle)), 1)
    return cycle.take(epoch * count + np.arange(count), mode="wrap")


def find_dropped(src: Lengths, tgt: Lengths, data: DataConfig) -> dict[str, Int[np.ndarray, "_"]]:
    """The pairs that each filter drops, by its name; a pair counts for the first that applies."""
    rules = "empty", f"longer than {data.max_length}", "of uneven lengths"
    dropped: dict[str, list[np.ndarray]] = {rule: [] for rule in rules}
    for start in range(0, len(src), BLOCK):
        shorter = tgt[start : start + BLOCK]
        if not data.is_text_alone:  # the source of lm is always empty
            shorter = np.minimum(src[start : start + BLOCK], shorter)
        longer = np.maximum(src[start : start + BLOCK], tgt[start : start + BLOCK])
        empty = shorter <= 1  # EOS alone
        long = ~empty & (longer > data.max_length)
        ratio = longer / np.maximum(shorter, 1)
        uneven = ~empty & ~long & (ratio > (data.max_length_ratio or np.inf))
        for rule, found in zip(rules, (empty, long, uneven), strict=True):
            dropped[rule].append(np.flatnonzero(found) + start)
    return {rule: np.concatenate(found) for rule, found in dropped.items()}


def choose_shapes(counts: LengthCounts, data: DataConfig) -> list[BatchShape]:
    """Chooses at most `data.num_shapes` shapes with little padding, by greedy binary splits.

    Starts with one group of all pairs. Each step finds the group and the source or target length
    at which a split saves the most padding, and splits the group there, until there are enough
    shapes or no split saves any. The shape of a group is its largest source and target length.
    """
    # Always a shape, so that it can take all leftover pairs.
    largest = tuple(counts[:2].max(axis=1).tolist())
    groups, lengths = [counts], {largest}
    while True:
        saving, side, threshold, number = max(
            (*find_best_split(group), number) for number, group in enumerate(groups)
        )
        if saving == 0:
            break
        group = groups.pop(number)
        is_short = group[side] <= threshold
        groups += [group[:, is_short], group[:, ~is_short]]
        finer = {largest, *(tuple(group[:2].max(axis=1).tolist()) for group in groups)}
        if len(finer) > data.num_shapes:
            break
        lengths = finer
    return sorted(
        BatchShape(tgt_length, src_length, count_rows(max(src_length, tgt_length), data))
        for src_length, tgt_length in lengths
    )


def count_lengths(
    src: Lengths, tgt: Lengths, multiple: int, kept: Bool[np.ndarray, "n"] | None = None
) -> LengthCounts:
    """Counts the (kept) pairs of each combination of lengths, rounded up to a multiple."""
    kept = np.ones(len(src), bool) if kept is None else kept
    width = -(-int(tgt.max()) // multiple) + 1
    # A combination of lengths is one integer: source * width + target, in multiples.
    keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for start in range(0, len(src), BLOCK):
        own = kept[start : start + BLOCK]
        rounded = (-(-side[start : start + BLOCK][own] // multiple) for side in (src, tgt))
        own_src, own_tgt = (side.astype(np.int64) for side in rounded)
        new_keys, new_counts = np.unique(own_src * width + own_tgt, return_counts=True)
        keys, places = np.unique(np.concatenate([keys, new_keys]), return_inverse=True)
        counts = np.bincount(places, np.concatenate([counts, new_counts])).astype(np.int64)
    return np.stack([keys // width * multiple, keys % width * multiple, counts])


def find_best_split(group: LengthCounts) -> tuple[int, int, int]:
    """Finds the split of a group of pairs into two that saves the most padding.

    A split separates the pairs of at most `threshold` positions on one side from the others.
    Returns (saved cost, side, threshold), where side is 0 for source and 1 for target; (0, 0, 0) if
    no split saves anything.
    """
    best, counts = (0, 0, 0), group[2]
    # From here on lengths are in units of cost, so that those of both sides can be added.
    src, tgt = group[0] * POSITION_COSTS[0], group[1] * POSITION_COSTS[1]
    total = int(counts.sum())
    whole = total * int(src.max() + tgt.max())
    for side, (split_by, other) in enumerate([(src, tgt), (tgt, src)]):
        order = np.argsort(split_by, kind="stable")
        lengths = split_by[order]
        others_below = np.maximum.accumulate(other[order])  # the largest up to each index
        others_above = np.maximum.accumulate(other[order][::-1])[::-1]  # the largest from it on
        ends = np.flatnonzero(np.diff(lengths))  # last index of each length except the largest
        num_short = np.cumsum(counts[order])[ends]  # pairs up to that length
        costs = num_short * (lengths[ends] + others_below[ends])
        costs += (total - num_short) * (lengths[-1] + others_above[ends + 1])
        if len(ends) and whole - costs.min() > best[0]:
            threshold = int(lengths[ends[costs.argmin()]]) // POSITION_COSTS[side]
            best = (int(whole - costs.min()), side, threshold)
    return best


def count_rows(length: int, data: DataConfig) -> int:
    """The number of rows of a batch whose longer side is padded to `length`."""
    return max(data.batch_tokens // length // data.rows_multiple, 1) * data.rows_multiple


def assign_shapes(src: Lengths, tgt: Lengths, shapes: Sequence[BatchShape]) -> Lengths:
    """Index of the shape with the fewest positions that each pair fits; -1 if it fits none."""
    chosen = np.full(len(src), -1, np.int16)
    for number in sorted(
        range(len(shapes)), key=lambda n: shapes[n].src_length + shapes[n].tgt_length, reverse=True
    ):
        fits = (src <= shapes[number].src_length) & (tgt <= shapes[number].tgt_length)
        chosen[fits] = number
    return chosen
