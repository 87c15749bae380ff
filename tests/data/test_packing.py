"""Several pairs in a row: each once an epoch, hardly a position empty."""

from collections import Counter

import numpy as np
import pytest
from jaxtyping import Int

from t2t.config import DataConfig
from t2t.data.packing import PackedPlan, make_plan, pack_rows
from t2t.data.plan import Plan
from t2t.planning.workload import draw_lengths

Lengths = Int[np.ndarray, "n"]


def draw(mean: float = 27.0, count: int = 2000) -> tuple[Lengths, Lengths]:
    """As the news text of WMT14, or as captions where the mean is 14."""
    src, tgt = draw_lengths(DataConfig(), mean)
    return src[:count], tgt[:count]


def pack(
    corpora: list[tuple[Lengths, Lengths]], seed: int = 0, weights: tuple[float, ...] = ()
) -> Plan:
    data = DataConfig(packed_length=256, batch_tokens=256 * 8)
    return make_plan(corpora, data, seed, weights)


def list_epoch(plan: Plan, epoch: int) -> list[tuple[tuple[int, ...], ...]]:
    """Batches of rows of pairs."""
    first = epoch * plan.steps_per_epoch
    batches = [plan.batch(step) for step in range(first, first + plan.steps_per_epoch)]
    return [
        tuple(
            tuple(batch.indices[batch.rows == row].tolist()) for row in range(batch.rows.max() + 1)
        )
        for batch in batches
    ]


def test_config_chooses_the_plan() -> None:
    assert isinstance(pack([draw()]), PackedPlan)
    assert not isinstance(make_plan([draw()], DataConfig(), 0), PackedPlan)


def test_no_side_of_a_row_is_overfull() -> None:
    src, tgt = draw()
    rows = pack_rows(src, tgt, 256, 0)
    for row in range(rows.max() + 1):
        assert 0 < src[rows == row].sum() <= 256
        assert 0 < tgt[rows == row].sum() <= 256


@pytest.mark.parametrize(("mean", "wanted"), [(27.0, 0.95), (14.0, 0.95)])
def test_hardly_a_target_position_is_padding(mean: float, wanted: float) -> None:
    src, tgt = draw(mean, 20_000)
    rows = pack_rows(src, tgt, 256, 0)
    assert tgt.sum() / (256 * (rows.max() + 1)) > wanted


def test_uneven_sides_are_packed_by_the_longer() -> None:
    src, tgt = np.full(100, 10), np.full(100, 40)
    rows = pack_rows(src, tgt, 256, 0)
    assert np.bincount(rows).max() == 6
    assert rows.max() + 1 <= 19


def test_each_pair_is_used_once_an_epoch() -> None:
    plan = pack([draw()])
    for epoch in range(2):
        used = [index for batch in list_epoch(plan, epoch) for row in batch for index in row]
        assert sorted(used) == list(range(2000))


def test_weights_are_numbers_of_uses() -> None:
    plan = pack([draw(count=100), draw(count=60)], weights=(2, 1))
    uses = Counter(i for batch in list_epoch(plan, 1) for row in batch for i in row)
    assert uses == dict.fromkeys(range(100), 2) | dict.fromkeys(range(100, 160), 1)


def test_epochs_have_the_same_rows_in_another_order() -> None:
    plan = pack([draw()])
    first, second = (
        [row for batch in list_epoch(plan, epoch) for row in batch] for epoch in (0, 1)
    )
    assert first != second
    assert sorted(first) == sorted(second)


def test_order_follows_the_seed() -> None:
    one, again, other = (list_epoch(pack([draw()], seed), 0) for seed in (0, 0, 1))
    assert one == again
    assert one != other


def test_all_batches_but_the_last_are_full() -> None:
    *full, last = list_epoch(pack([draw()]), 0)
    assert {len(batch) for batch in full} == {8}
    assert 1 <= len(last) <= 8
