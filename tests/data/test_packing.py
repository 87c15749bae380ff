"""Several pairs in a row: each once an epoch, hardly a position empty."""

import hashlib
import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Int

from t2t.config.fields import DataConfig
from t2t.data import packing
from t2t.data.batching import BatchPlan
from t2t.data.objectives import choose_objective
from t2t.data.packing import make_plan, pack_rows
from t2t.planning.batch_shapes import draw_lengths

Lengths = Int[np.ndarray, "n"]


def draw(mean: float = 27.0, count: int = 2000) -> tuple[Lengths, Lengths]:
    """As the news text of WMT14, or as captions where the mean is 14."""
    src, tgt = draw_lengths(DataConfig(), mean)
    return src[:count], tgt[:count]


def pack(
    corpora: list[tuple[Lengths, Lengths]], seed: int = 0, weights: tuple[float, ...] = ()
) -> BatchPlan:
    data = DataConfig(packed_length=256, batch_tokens=256 * 8)
    return make_plan(corpora, data, seed, weights)


def list_epoch(plan: BatchPlan, epoch: int) -> list[tuple[tuple[int, ...], ...]]:
    """Batches of rows of pairs."""
    first = epoch * plan.steps_per_epoch
    batches = [plan.batch(step) for step in range(first, first + plan.steps_per_epoch)]
    return [
        tuple(
            tuple(batch.indices[batch.rows == row].tolist()) for row in range(batch.rows.max() + 1)
        )
        for batch in batches
    ]


@pytest.mark.parametrize("mean", [27.0, 14.0])
def test_hardly_a_target_position_is_padding(mean: float) -> None:
    src, tgt = draw(mean, 20_000)
    rows = pack_rows(src, tgt, 256, 0)
    assert tgt.sum() / (256 * (rows.max() + 1)) > 0.95


@given(
    st.lists(st.tuples(st.integers(2, 64), st.integers(2, 64)), min_size=1, max_size=200),
    st.integers(0, 9),
)
def test_each_pair_is_used_once_an_epoch_and_no_side_of_a_row_is_overfull(
    pairs: list[tuple[int, int]], seed: int
) -> None:
    src, tgt = np.array(pairs, np.int32).T
    data = DataConfig(max_length=64, packed_length=64, batch_tokens=64 * 8)
    plan = make_plan([(src, tgt)], data, seed)
    epochs = [list_epoch(plan, epoch) for epoch in range(2)]
    assert Counter(itertools.chain(*epochs[0])) == Counter(itertools.chain(*epochs[1]))
    for *full, last in epochs:
        assert {len(batch) for batch in full} <= {8}
        assert 1 <= len(last) <= 8
        rows = [[*row] for batch in (*full, last) for row in batch]
        assert sorted(index for row in rows for index in row) == list(range(len(pairs)))
        assert all(0 < side[row].sum() <= 64 for row in rows for side in (src, tgt))


@pytest.mark.parametrize(
    ("objective", "sides"),
    [("lm", (32, 256)), ("span_corruption", (256, 96)), ("masked_lm", (256, 256))],
)
def test_rows_of_text_alone_are_as_long_as_each_side_needs(
    objective: str, sides: tuple[int, int]
) -> None:
    data = DataConfig(objective=objective, packed_length=256, batch_tokens=256 * 8)
    texts, _ = draw()
    lengths = choose_objective(data, range(30)).find_lengths((np.ones_like(texts), texts))
    [shape] = make_plan([lengths], data, 0).shapes
    assert (shape.src_length, shape.tgt_length, shape.rows) == (*sides, 8)


@pytest.mark.parametrize("block", [64, 10**6])
def test_fractional_weights_use_the_next_rows_of_a_corpus_in_each_epoch(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "BLOCK", block)
    corpora = [draw(count=300), draw(14.0, 200), draw(count=200)]
    plan = pack(corpora, weights=(1, 2.5, 0.25))
    epochs = [[row for batch in list_epoch(plan, e) for row in batch] for e in range(8)]
    assert len({len(rows) for rows in epochs}) == 1  # so that a step determines its epoch
    for epoch, rows in enumerate(epochs):
        uses = Counter(index for row in rows for index in row)
        assert {uses[index] for index in range(300)} == {1}
        assert {uses[index] for index in range(300, 500)} == {2, 3}
        assert {uses[index] for index in range(500, 700)} == {0, 1}
        alone = [row for row in rows if max(row) >= 500]
        assert all(min(row) >= 500 for row in alone)
        before = {row for rows in epochs[max(epoch - 3, 0) : epoch] for row in rows}
        assert len(before.intersection(alone)) <= 3  # n / 4 is rounded, so 4 epochs may overlap
    total = Counter(index for rows in epochs for row in rows for index in row)
    assert all(total[index] in (19, 20, 21) for index in range(300, 500))
    assert all(total[index] in (1, 2, 3) for index in range(500, 700))


def test_order_of_packed_runs_that_exist_stays_what_it_is() -> None:
    data = DataConfig(packed_length=256, batch_tokens=256 * 8)
    corpora = [draw_lengths(data, 27.0, pairs=900), draw_lengths(data, 14.0, 1, pairs=300)]
    plan = make_plan(corpora, data, 5, (1, 2))
    digest = hashlib.sha256()
    for step in range(3 * plan.steps_per_epoch):
        batch = plan.batch(step)
        digest.update(batch.indices.astype(np.int64).tobytes())
        digest.update(batch.rows.astype(np.int64).tobytes())
    assert digest.hexdigest()[:16] == "9b93b2f674a0e084"


def test_rows_of_a_large_corpus_hold_pairs_of_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    corpora = [draw(count=500), draw(count=83)]
    whole = pack(corpora, weights=(1, 2))
    monkeypatch.setattr(packing, "BLOCK", 100)
    plan = pack(corpora, weights=(1, 2))
    rows = [row for batch in list_epoch(plan, 0) for row in batch]
    assert all(len({index // 100 for index in row}) == 1 for row in rows)
    uses = Counter(index for row in rows for index in row)
    assert uses == dict.fromkeys(range(500), 1) | dict.fromkeys(range(500, 583), 2)
    assert len(rows) <= sum(len(batch) for batch in list_epoch(whole, 0)) + 6  # one more a block


def test_a_block_without_pairs_has_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "BLOCK", 10)
    lengths = np.array([300] * 20 + [5] * 10, np.int32)
    data = DataConfig(packed_length=256, batch_tokens=256 * 8)
    (batch,) = list_epoch(make_plan([(lengths, lengths)], data, 0), 0)
    assert sorted(index for row in batch for index in row) == list(range(20, 30))
