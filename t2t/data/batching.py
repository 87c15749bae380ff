"""Which sentence pairs form which batch: a pure function of (lengths, seed, step), in NumPy.

Every host computes the same plan, so the order of the data does not depend on how many there
are, a resumed run needs one integer, and each pair is used exactly once an epoch (or as often as
its corpus' weight says). No text and no ids are read here.
"""

import dataclasses
import functools
import itertools
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from t2t.config.fields import DataConfig
from t2t.data.corpus import DataError

Lengths = Int[np.ndarray, "n"]
CorpusLengths = tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]  # source, target

# Cost of a padded source and target position when shapes are chosen: a target position passes
# through two attentions and the vocabulary's logits.
POSITION_COSTS = (1, 3)


@dataclasses.dataclass(frozen=True, order=True)
class BatchShape:
    """A batch of `rows` pairs, padded to these lengths (sub-words with EOS)."""

    tgt_length: int
    src_length: int
    rows: int

    def holds(self, other: "BatchShape") -> bool:
        """Whether every pair that fits `other` fits here."""
        return self.src_length >= other.src_length and self.tgt_length >= other.tgt_length


class Cells(NamedTuple):
    """Pairs of equal lengths, counted: there are few such, however many pairs."""

    src: Lengths
    tgt: Lengths
    counts: Lengths


@dataclasses.dataclass(frozen=True)
class PlannedBatch:
    """The pairs of one batch; some of its rows are empty only where an epoch runs out of pairs."""

    shape: BatchShape
    indices: Int[np.ndarray, "n"]
    rows: Int[np.ndarray, "n"]  # of the batch, in which the pairs lie; in order


class Plan:
    """The batches of all epochs.

    Pairs are grouped by length into a few shapes, shuffled within the group and cut into batches;
    what does not fill a batch moves on to the next larger shape, so that at most a few batches of
    an epoch are partly empty; then the batches are shuffled.
    """

    def __init__(
        self,
        corpora: Sequence[CorpusLengths],
        data: DataConfig,
        seed: int,
        weights: Sequence[float] = (),
    ):
        """`corpora` gives (source lengths, target lengths) of each; pairs are numbered through.

        Raises:
            DataError: no pair is left after filtering.
        """
        self.seed = seed
        self.src_lengths = np.concatenate([src for src, _ in corpora])
        self.tgt_lengths = np.concatenate([tgt for _, tgt in corpora])
        self.dropped = find_dropped(self.src_lengths, self.tgt_lengths, data)
        kept = np.ones(len(self.src_lengths), bool)
        for indices in self.dropped.values():
            kept[indices] = False
        if not kept.any():
            raise DataError(
                f"none of {len(kept)} sentence pairs is left to train on: {self.describe_dropped()}"
                "; check the corpus, or raise data.max_length or data.max_length_ratio"
            )
        starts = np.cumsum([0, *(len(src) for src, _ in corpora)])
        self._arrange(kept, starts.tolist(), data, weights or [1.0] * len(corpora))
        self._epoch = functools.lru_cache(maxsize=2)(self._plan_epoch)
        self._lock = threading.Lock()  # several threads read, but one plans an epoch
        self.steps_per_epoch = len(self._epoch(0))

    def _arrange(
        self,
        kept: Bool[np.ndarray, "n"],
        starts: list[int],
        data: DataConfig,
        weights: Sequence[float],
    ) -> None:
        """What is the same in all epochs: the shapes, and which pairs belong to which."""
        self.shapes = choose_shapes(self.src_lengths[kept], self.tgt_lengths[kept], data)
        shape_of = assign_shapes(self.src_lengths, self.tgt_lengths, self.shapes)
        shape_of[~kept] = -1
        groups = [  # by corpus, then by shape
            group_by_shape(shape_of[start:stop], len(self.shapes), start)
            for start, stop in itertools.pairwise(starts)
        ]
        self._members = [
            [*zip(of_corpora, weights, strict=True)] for of_corpora in zip(*groups, strict=True)
        ]

    def batch(self, step: int) -> PlannedBatch:
        """The batch of this step, counted from 0 through all epochs."""
        epoch, index = divmod(step, self.steps_per_epoch)
        with self._lock:
            return self._epoch(epoch)[index]

    def padding_share(self) -> float:
        """Share of the first epoch's target positions that hold no token."""
        batches = self._epoch(0)
        real = sum(int(self.tgt_lengths[batch.indices].sum()) for batch in batches)
        return 1 - real / sum(batch.shape.rows * batch.shape.tgt_length for batch in batches)

    def describe_dropped(self) -> str:
        """How many pairs each rule took out of training."""
        return ", ".join(f"{len(indices)} {rule}" for rule, indices in self.dropped.items())

    def _plan_epoch(self, epoch: int) -> list[PlannedBatch]:
        random = np.random.default_rng((self.seed, epoch))
        carried: list[list[np.ndarray]] = [[] for _ in self.shapes]
        batches = []
        for number, shape in enumerate(self.shapes):
            drawn = [self._draw(number, corpus, epoch) for corpus in range(len(self._members[0]))]
            indices = random.permutation(np.concatenate(drawn + carried[number]))
            larger = [n for n in range(number + 1, len(self.shapes)) if self.shapes[n].holds(shape)]
            whole = len(indices) if not larger else len(indices) - len(indices) % shape.rows
            for start in range(0, whole, shape.rows):
                own = indices[start : start + shape.rows]
                batches.append(PlannedBatch(shape, own, np.arange(len(own))))
            if larger:
                carried[larger[0]].append(indices[whole:])
        return [batches[index] for index in random.permutation(len(batches))]

    def _draw(self, shape: int, corpus: int, epoch: int) -> Int[np.ndarray, "n"]:
        """The corpus' pairs of this shape: each floor(weight) times, and a rotating rest."""
        members, weight = self._members[shape][corpus]
        whole, fraction = divmod(weight, 1)
        if not fraction or not len(members):
            return np.tile(members, int(whole))
        # At least one, else a pair alone in its shape would never be used.
        count = max(round(fraction * len(members)), 1)
        order = np.random.default_rng((self.seed, shape, corpus, 1)).permutation(members)
        rest = order.take(epoch * count + np.arange(count), mode="wrap")
        return np.concatenate([np.tile(members, int(whole)), rest])


def find_dropped(src: Lengths, tgt: Lengths, data: DataConfig) -> dict[str, Int[np.ndarray, "_"]]:
    """Rule -> pairs that it takes out of training; a pair is counted by the first that applies."""
    empty = (src <= 1) | (tgt <= 1)  # EOS alone
    long = ~empty & (np.maximum(src, tgt) > data.max_length)
    ratio = np.maximum(src, tgt) / np.maximum(np.minimum(src, tgt), 1)
    uneven = ~empty & ~long & (ratio > (data.max_length_ratio or np.inf))
    return {
        "empty": np.flatnonzero(empty),
        f"longer than {data.max_length}": np.flatnonzero(long),
        "of uneven lengths": np.flatnonzero(uneven),
    }


def choose_shapes(src: Lengths, tgt: Lengths, data: DataConfig) -> list[BatchShape]:
    """At most `data.num_shapes` shapes with little padding, by greedy binary splits.

    All pairs start in one box of (source, target) lengths. The box and the cut that save the
    most padding are taken next, until there are enough boxes or nothing is saved.
    """
    cells = count_lengths(src, tgt, data.length_multiple)
    largest = find_size(cells)  # so that what is carried on always finds a place
    boxes, sizes = [cells], {largest}
    while True:
        saving, side, cut, number = max(
            (*best_cut(*box), number) for number, box in enumerate(boxes)
        )
        if saving == 0:
            break
        box = boxes.pop(number)
        left = box[side] <= cut
        boxes += [Cells(*(x[left] for x in box)), Cells(*(x[~left] for x in box))]
        finer = {find_size(box) for box in boxes} | {largest}
        if len(finer) > data.num_shapes:
            break
        sizes = finer
    return sorted(
        BatchShape(tgt_length, src_length, count_rows(max(src_length, tgt_length), data))
        for src_length, tgt_length in sizes
    )


def count_lengths(src: Lengths, tgt: Lengths, multiple: int) -> Cells:
    """How many pairs there are of each two lengths, rounded up to a multiple."""
    src, tgt = (-(-lengths // multiple) for lengths in (src, tgt))
    width = int(tgt.max()) + 1
    keys, counts = np.unique(src.astype(np.int64) * width + tgt, return_counts=True)
    return Cells(keys // width * multiple, keys % width * multiple, counts)


def find_size(cells: Cells) -> tuple[int, int]:
    """The longest (source, target)."""
    return int(cells.src.max()), int(cells.tgt.max())


def best_cut(src: Lengths, tgt: Lengths, counts: Lengths) -> tuple[int, int, int]:
    """(cost of padding saved, side, length up to which pairs go left) of the best cut."""
    best = (0, 0, 0)
    src, tgt = src * POSITION_COSTS[0], tgt * POSITION_COSTS[1]
    total = int(counts.sum())
    whole = total * int(src.max() + tgt.max())
    for side, (cut_by, other) in enumerate([(src, tgt), (tgt, src)]):
        order = np.argsort(cut_by, kind="stable")
        lengths, others = cut_by[order], np.maximum.accumulate(other[order])
        rest = np.maximum.accumulate(other[order][::-1])[::-1]
        ends = np.flatnonzero(np.diff(lengths))  # last cell of each length but the largest
        lower = np.cumsum(counts[order])[ends]  # pairs that go left
        costs = lower * (lengths[ends] + others[ends])
        costs += (total - lower) * (lengths[-1] + rest[ends + 1])
        if len(ends) and whole - costs.min() > best[0]:
            cut = int(lengths[ends[costs.argmin()]]) // POSITION_COSTS[side]
            best = (int(whole - costs.min()), side, cut)
    return best


def count_rows(length: int, data: DataConfig) -> int:
    """Rows of a batch whose longer side is padded to `length`."""
    return max(data.batch_tokens // length // data.rows_multiple, 1) * data.rows_multiple


def assign_shapes(src: Lengths, tgt: Lengths, shapes: Sequence[BatchShape]) -> Lengths:
    """The shape of fewest positions that holds each pair; -1 where none does."""
    chosen = np.full(len(src), -1, np.int16)
    for number in sorted(
        range(len(shapes)), key=lambda n: shapes[n].src_length + shapes[n].tgt_length, reverse=True
    ):
        fits = (src <= shapes[number].src_length) & (tgt <= shapes[number].tgt_length)
        chosen[fits] = number
    return chosen


def group_by_shape(shape_of: Lengths, num_shapes: int, start: int) -> list[Int[np.ndarray, "_"]]:
    """The pairs of each shape, in order, numbered from `start`."""
    order = np.argsort(shape_of, kind="stable") + start
    ends = np.cumsum(np.bincount(shape_of + 1, minlength=num_shapes + 1))
    return [group.astype(np.int32) for group in np.split(order, ends)[1:-1]]
