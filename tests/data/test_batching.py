"""Which pairs form which batch: each its share, in few shapes, whoever asks, in any order."""

import dataclasses
import hashlib
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t.config.fields import DataConfig
from t2t.data import batching
from t2t.data.batching import (
    POSITION_COSTS,
    BatchPlan,
    PlannedBatch,
    count_lengths,
    find_best_split,
    find_dropped,
)
from t2t.data.corpus import DataError
from t2t.data.packing import make_plan as make_packed_plan

Corpora = list[tuple[np.ndarray, np.ndarray]]


def draw_lengths(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """As image captions: 14 sub-words on average, the two sides of a pair much alike."""
    random = np.random.default_rng(seed)
    src = random.normal(14, 4.5, count)
    tgt = src + random.normal(0, 2, count)
    whole = np.clip(np.stack([src, tgt]).round(), 4, 40).astype(np.int32)
    return whole[0], whole[1]


def make_plan(corpora: Corpora, seed: int = 0, weights: Any = (), **fields: Any) -> BatchPlan:
    defaults = {"max_length": 40, "batch_tokens": 400, "num_shapes": 6}
    return BatchPlan(corpora, DataConfig(**(defaults | fields)), seed, weights)


def list_batches(plan: BatchPlan, epoch: int = 0) -> list[PlannedBatch]:
    first = epoch * plan.steps_per_epoch
    return [plan.batch(step) for step in range(first, first + plan.steps_per_epoch)]


def epoch_indices(plan: BatchPlan, epoch: int) -> list[int]:
    return [index for batch in list_batches(plan, epoch) for index in batch.indices.tolist()]


@given(
    st.lists(st.tuples(st.integers(1, 43), st.integers(1, 43)), min_size=1, max_size=150),
    st.fixed_dictionaries(
        {
            "num_shapes": st.integers(1, 8),
            "rows_multiple": st.integers(1, 4),
            "length_multiple": st.sampled_from([1, 4, 8]),
            "batch_tokens": st.integers(160, 700),
            "max_length_ratio": st.sampled_from([0.0, 1.5]),
        }
    ),
)
def test_epoch_uses_each_kept_pair_once_in_few_shapes_that_hold_it(
    pairs: list[tuple[int, int]], fields: dict[str, Any]
) -> None:
    """A sentence of length 1 is empty."""
    ratio, multiple = fields["max_length_ratio"], fields["rows_multiple"]
    kept = [
        number
        for number, pair in enumerate(pairs)
        if min(pair) > 1 and max(pair) <= 40 and (not ratio or max(pair) <= ratio * min(pair))
    ]
    src, tgt = np.array(pairs, np.int32).T
    if not kept:
        with pytest.raises(DataError):
            make_plan([(src, tgt)], **fields)
        return
    plan = make_plan([(src, tgt)], **fields)
    assert len(plan.shapes) <= fields["num_shapes"]
    for epoch in range(2):
        assert sorted(epoch_indices(plan, epoch)) == kept
    for batch in map(plan.batch, range(plan.steps_per_epoch)):
        rows, lengths = batch.shape.rows, (batch.shape.src_length, batch.shape.tgt_length)
        assert batch.shape in plan.shapes
        assert 0 < len(batch.indices) <= rows
        assert src[batch.indices].max() <= lengths[0]
        assert tgt[batch.indices].max() <= lengths[1]
        assert not any(length % fields["length_multiple"] for length in lengths)
        assert rows % multiple == 0
        assert rows * max(lengths) <= fields["batch_tokens"] < (rows + multiple) * max(lengths)


def test_weights_are_numbers_of_uses_and_fractions_come_true_over_epochs() -> None:
    lengths = np.repeat([8, 16, 24], 40)
    weights, epochs = [0.3, 1.75, 2], 20
    plan = make_plan([(lengths, lengths)] * 3, weights=weights)
    drawn = [epoch_indices(plan, epoch) for epoch in range(epochs)]
    assert {len(indices) for indices in drawn} == {round(sum(weights) * len(lengths))}
    uses = Counter(itertools.chain.from_iterable(drawn))
    for corpus, weight in enumerate(weights):
        of_corpus = [uses[i] for i in range(corpus * len(lengths), (corpus + 1) * len(lengths))]
        assert np.abs(np.array(of_corpus) - weight * epochs).max() < 1


@pytest.mark.parametrize("packed_length", [0, 40])
@pytest.mark.parametrize("weight", [0.1, 0.04])
def test_small_weights_come_true_over_epochs(weight: float, packed_length: int) -> None:
    """Also of pairs that are alone in their shape, or too few for a row."""
    lengths = np.array([8] * 50 + [16, 24, 40])
    corpora, epochs = [(lengths, lengths)] * 2, 100
    plan = make_packed_plan(
        corpora, DataConfig(max_length=40, batch_tokens=400, packed_length=packed_length), 0,
        [1, weight],
    )  # fmt: skip
    uses = Counter(i for epoch in range(epochs) for i in epoch_indices(plan, epoch))
    assert {uses[i] for i in range(53)} == {epochs}
    rare = np.array([uses[i] for i in range(53, 106)])
    assert np.abs(rare / epochs / weight - 1).max() < 0.5
    assert rare.mean() / epochs == pytest.approx(weight, rel=0.25)
    with pytest.raises(DataError, match=r"less than one of the 53 pairs of training corpus 2, who"):
        make_packed_plan(corpora, DataConfig(packed_length=packed_length), 0, [1, 0.01])


def test_blocks_of_the_work_do_not_change_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what needs much memory for a moment works on blocks."""
    corpora, fields = [draw_lengths(500), draw_lengths(83)], {"max_length": 30}
    whole = make_plan(corpora, max_length_ratio=2.0, **fields)
    monkeypatch.setattr(batching, "BLOCK", 64)
    in_blocks = make_plan(corpora, max_length_ratio=2.0, **fields)
    assert in_blocks.describe_dropped() == whole.describe_dropped() != ""
    assert in_blocks.shapes == whole.shapes
    assert epoch_indices(in_blocks, 1) == epoch_indices(whole, 1)


def test_padding_is_at_most_a_tenth_of_caption_like_text() -> None:
    plan = make_plan([draw_lengths(29_000)], batch_tokens=4096, num_shapes=16)
    batches = list_batches(plan)
    positions = sum(batch.shape.rows * batch.shape.tgt_length for batch in batches)
    real = sum(int(plan.tgt_lengths[i]) for batch in batches for i in batch.indices)
    assert plan.padding_share() == pytest.approx(1 - real / positions)
    assert plan.padding_share() <= 0.1


def test_split_saves_the_most_padding() -> None:
    src, tgt = draw_lengths(60)

    def cost(pairs: np.ndarray) -> int:
        longest = src[pairs].max() * POSITION_COSTS[0] + tgt[pairs].max() * POSITION_COSTS[1]
        return len(pairs) * int(longest)

    savings = {}
    for side, lengths in enumerate((src, tgt)):
        for cut in sorted(set(lengths.tolist()))[:-1]:
            parts = np.flatnonzero(lengths <= cut), np.flatnonzero(lengths > cut)
            savings[side, cut] = cost(np.arange(60)) - sum(map(cost, parts))
    saving, side, cut = find_best_split(*count_lengths(src, tgt, 1))
    assert saving == max(savings.values()) == savings[side, cut]


def test_order_of_runs_that_exist_stays_what_it_is() -> None:
    plan = make_plan([draw_lengths(900), draw_lengths(300, seed=1)], 5, (1, 1.37), num_shapes=9)
    digest = hashlib.sha256()
    for step in range(3 * plan.steps_per_epoch):
        batch = plan.batch(step)
        digest.update(str(dataclasses.astuple(batch.shape)).encode())
        digest.update(batch.indices.astype(np.int64).tobytes())
    assert digest.hexdigest()[:16] == "916a49ed02593e55"


def test_dropped_pairs_are_counted_by_the_first_rule_that_applies() -> None:
    src = np.array([1, 5, 1, 31, 30, 10, 10, 5])
    tgt = np.array([5, 1, 99, 30, 30, 30, 31, 5])
    dropped = find_dropped(src, tgt, DataConfig(max_length=30, max_length_ratio=2.5))
    assert {rule: indices.tolist() for rule, indices in dropped.items()} == {
        "empty": [0, 1, 2],
        "longer than 30": [3, 6],
        "of uneven lengths": [5],
    }
    plan = make_plan([(src, tgt)], max_length=30, max_length_ratio=2.5)
    assert plan.describe_dropped() == "3 empty, 2 longer than 30, 1 of uneven lengths"
