"""Which pairs form which batch: each its share, in few shapes, whoever asks, in any order."""

import dataclasses
import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t.config.fields import DataConfig
from t2t.data import batch_plan, packing
from t2t.data.batch_plan import BatchPlan
from t2t.data.corpus import DataError
from t2t.planning import batch_shapes

Corpora = list[tuple[np.ndarray, np.ndarray]]
PACKED: dict[str, Any] = {"max_length": 256, "packed_length": 256, "batch_tokens": 256 * 8}


def draw_lengths(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """As image captions: 14 sub-words on average, the two sides of a pair much alike."""
    random = np.random.default_rng(seed)
    src = random.normal(14, 4.5, count)
    tgt = src + random.normal(0, 2, count)
    whole = np.clip(np.stack([src, tgt]).round(), 4, 40).astype(np.int32)
    return whole[0], whole[1]


def make_plan(corpora: Corpora, seed: int = 0, weights: Any = (), **fields: Any) -> BatchPlan:
    defaults = {"max_length": 40, "batch_tokens": 400, "num_shapes": 6}
    return packing.make_plan(corpora, DataConfig(**(defaults | fields)), seed, weights)


def list_rows(plan: BatchPlan, epoch: int = 0) -> list[list[list[int]]]:
    """The batches of an epoch, as rows of pairs."""
    first = epoch * plan.steps_per_epoch
    batches = [plan.batch(step) for step in range(first, first + plan.steps_per_epoch)]
    return [
        [batch.indices[batch.rows == row].tolist() for row in range(batch.rows.max() + 1)]
        for batch in batches
    ]


def list_pairs(plan: BatchPlan, epoch: int = 0) -> list[int]:
    return [index for rows in list_rows(plan, epoch) for row in rows for index in row]


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
        assert sorted(list_pairs(plan, epoch)) == kept
    for batch in map(plan.batch, range(plan.steps_per_epoch)):
        rows, lengths = batch.shape.rows, (batch.shape.src_length, batch.shape.tgt_length)
        assert batch.shape in plan.shapes
        assert 0 < len(batch.indices) <= rows
        assert src[batch.indices].max() <= lengths[0]
        assert tgt[batch.indices].max() <= lengths[1]
        assert not any(length % fields["length_multiple"] for length in lengths)
        assert rows % multiple == 0
        assert rows * max(lengths) <= fields["batch_tokens"] < (rows + multiple) * max(lengths)


@given(
    st.lists(st.tuples(st.integers(2, 64), st.integers(2, 64)), min_size=1, max_size=200),
    st.integers(0, 9),
    st.integers(1, 2),
)
def test_packed_epoch_uses_each_pair_once_and_no_side_of_a_row_is_overfull(
    pairs: list[tuple[int, int]], seed: int, num_shapes: int
) -> None:
    src, tgt = np.array(pairs, np.int32).T
    sizes = {"max_length": 64, "packed_length": 64, "batch_tokens": 64 * 8}
    plan = make_plan([(src, tgt)], seed, num_shapes=num_shapes, **sizes)
    assert len(plan.shapes) <= num_shapes
    epochs = []
    for epoch in range(2):
        batches = list_rows(plan, epoch)
        counts = sorted(map(len, batches), reverse=True)
        assert {*counts[:-1]} <= {8}
        assert 1 <= counts[-1] <= 8
        for step, rows in enumerate(batches, start=epoch * plan.steps_per_epoch):
            shape = plan.batch(step).shape
            assert shape in plan.shapes
            assert max(shape.src_length, shape.tgt_length) == 64
            assert all(0 < src[row].sum() <= shape.src_length for row in rows)
            assert all(0 < tgt[row].sum() <= shape.tgt_length for row in rows)
        rows = sorted(row for batch in batches for row in batch)
        assert sorted(index for row in rows for index in row) == [*range(len(pairs))]
        epochs.append(rows)
    assert epochs[0] == epochs[1]


def test_packed_rows_have_sides_that_follow_the_text() -> None:
    """As Japanese-English: the sources have 4/3 of the sub-words, and some targets are long."""
    data = DataConfig(**PACKED)
    tgt, src = batch_shapes.draw_lengths(data, 20.0, pairs=20_000)
    src = src * 4 // 3
    tgt[:3] = 250
    whole = make_plan([(src, tgt)], num_shapes=1, **PACKED)
    assert [(shape.src_length, shape.tgt_length) for shape in whole.shapes] == [(256, 256)]
    assert whole.padding_shares()[1] > 0.2
    plan = make_plan([(src, tgt)], **PACKED)
    assert [(shape.src_length, shape.tgt_length) for shape in plan.shapes] == [
        (256, 192),
        (256, 256),
    ]
    assert max(plan.padding_shares()) < 0.04
    assert plan.steps_per_epoch < 1.01 * whole.steps_per_epoch
    batches = [plan.batch(step) for step in range(plan.steps_per_epoch)]
    assert sum(batch.shape == plan.shapes[1] for batch in batches) == 1  # of the three long ones
    assert plan.describe_dropped() == whole.describe_dropped()
    both = make_plan([(src, tgt), (tgt, src)], **PACKED)  # two directions in one model
    assert [(shape.src_length, shape.tgt_length) for shape in both.shapes] == [(256, 256)]


def test_one_shape_of_packed_rows_serves_all_samples_of_subwords() -> None:
    """Another epoch may have a sentence of more sub-words than the one that decides."""
    data = DataConfig(**PACKED, num_shapes=1, subword_sampling=0.1)
    src, tgt = batch_shapes.draw_lengths(data, 20.0, pairs=1000)
    src = src * 4
    first = packing.make_plan([(src, tgt)], data, 0)
    tgt[:3] = data.max_length
    later = packing.make_plan([(src, tgt)], data, 0, (), first.row_lengths)
    assert later.shapes == first.shapes


@pytest.mark.parametrize("packed_length", [0, 40])
def test_weights_are_numbers_of_uses_and_fractions_come_true_over_epochs(
    packed_length: int,
) -> None:
    """Also of pairs that are alone in their shape, or too few for a row."""
    lengths = np.array([8] * 50 + [16, 24, 40])
    weights, epochs = [1, 1.75, 0.1, 0.04], 100
    plan = make_plan([(lengths, lengths)] * 4, 0, weights, packed_length=packed_length)
    assert len({sum(map(len, list_rows(plan, epoch))) for epoch in range(5)}) == 1
    drawn = [index for epoch in range(epochs) for index in list_pairs(plan, epoch)]
    uses = np.bincount(drawn).reshape(4, 53) / epochs
    assert (uses[0] == 1).all()
    assert np.abs(uses[1] - 1.75).max() < 0.1
    for rare, weight in zip(uses[2:], weights[2:], strict=True):
        assert np.abs(rare / weight - 1).max() < 0.5
        assert rare.mean() == pytest.approx(weight, rel=0.25)
    with pytest.raises(DataError, match=r"less than one of the 53 pairs of training corpus 2, who"):
        make_plan([(lengths, lengths)] * 2, 0, [1, 0.01], packed_length=packed_length)


@pytest.mark.parametrize("packed_length", [0, 40])
def test_batch_has_pairs_of_one_encoder_and_decoder_and_no_pair_is_lost(packed_length: int) -> None:
    """The corpora of a route are not neighbours, and one has a fractional weight."""
    corpora, weights = [draw_lengths(150, seed) for seed in range(4)], [1, 2, 1, 1.5]
    data = DataConfig(max_length=40, batch_tokens=400, num_shapes=6, packed_length=packed_length)
    tasks = [dataclasses.replace(data, decoder=name) for name in ("", "a", "", "a")]
    plan = packing.make_plan(corpora, data, 0, weights, tasks=tasks)
    for epoch in range(2):
        batches = list_rows(plan, epoch)
        for rows in batches:
            owners = {tasks[index // 150].decoder for row in rows for index in row}
            assert len(owners) == 1
        uses = np.bincount(list_pairs(plan, epoch), minlength=600).reshape(4, 150)
        assert (uses[:3] == np.array(weights[:3])[:, None]).all()
        assert {*uses[3].tolist()} == {1, 2}


def test_blocks_of_the_work_do_not_change_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what needs much memory for a moment works on blocks."""
    corpora, fields = [draw_lengths(500), draw_lengths(83)], {"max_length": 30}
    whole = make_plan(corpora, max_length_ratio=2.0, **fields)
    monkeypatch.setattr(batch_plan, "BLOCK", 64)
    in_blocks = make_plan(corpora, max_length_ratio=2.0, **fields)
    assert in_blocks.describe_dropped() == whole.describe_dropped() != ""
    assert in_blocks.shapes == whole.shapes
    assert list_rows(in_blocks, 1) == list_rows(whole, 1)


def test_packed_rows_of_a_large_corpus_hold_pairs_of_one_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A block without pairs has no rows."""
    corpora = [draw_lengths(500), draw_lengths(83, seed=1)]
    corpora[0][0][:100] = 300  # too long
    whole = make_plan(corpora, 0, (1, 2), **PACKED)
    monkeypatch.setattr(packing, "BLOCK", 100)
    plan = make_plan(corpora, 0, (1, 2), **PACKED)
    rows = [row for batch in list_rows(plan) for row in batch]
    assert all(len({index // 100 for index in row}) == 1 for row in rows)
    assert sorted(list_pairs(plan)) == sorted([*range(100, 583), *range(500, 583)])
    assert len(rows) <= sum(map(len, list_rows(whole))) + 6  # one more a block


def test_texts_alone_are_kept_by_their_own_lengths() -> None:
    texts = np.array([8, 1, 41, 20])  # an empty one, and one that is too long
    plan = make_plan([(np.ones_like(texts), texts)], objective="lm", packed_length=40)
    assert sorted(list_pairs(plan)) == [0, 3]


def test_padding_is_at_most_a_tenth_of_caption_like_text() -> None:
    plan = make_plan([draw_lengths(29_000)], batch_tokens=4096, num_shapes=16)
    batches = [plan.batch(step) for step in range(plan.steps_per_epoch)]
    positions = sum(batch.shape.rows * batch.shape.tgt_length for batch in batches)
    share = plan.padding_shares()[1]
    assert share == pytest.approx(1 - plan.tgt_lengths.sum() / positions)
    assert share <= 0.1


def test_order_of_runs_that_exist_stays_what_it_is() -> None:
    plan = make_plan([draw_lengths(900), draw_lengths(300, seed=1)], 5, (1, 1.37), num_shapes=9)
    data = DataConfig(**PACKED)
    news = batch_shapes.draw_lengths(data, 27.0, pairs=900)
    captions = batch_shapes.draw_lengths(data, 14.0, 1, pairs=300)
    packed = make_plan([news, captions], 5, (1, 2), **PACKED)
    digest, digest_of_packed = hashlib.sha256(), hashlib.sha256()
    for batch in map(plan.batch, range(3 * plan.steps_per_epoch)):
        digest.update(str(dataclasses.astuple(batch.shape)).encode())
        digest.update(batch.indices.astype(np.int64).tobytes())
    for batch in map(packed.batch, range(3 * packed.steps_per_epoch)):
        digest_of_packed.update(batch.indices.astype(np.int64).tobytes())
        digest_of_packed.update(batch.rows.astype(np.int64).tobytes())
    assert digest.hexdigest()[:16] == "916a49ed02593e55"
    assert digest_of_packed.hexdigest()[:16] == "9b93b2f674a0e084"
