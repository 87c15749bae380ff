"""From a plan and ids to batches: padding, the shift, each host's rows, any start."""

import threading
from collections.abc import Sequence

import jax
import numpy as np
import pytest

from t2t.config.fields import DataConfig
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, Batch, HostBatch
from t2t.data.corpus import ListCorpus
from t2t.data.loader import ONE_SHARD, PREFETCH, Loader, RowShards
from t2t.data.objectives import choose_objective
from t2t.data.packing import make_plan
from t2t.data.token_cache import TokenizedCorpus
from tests.data import small_corpus


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[TokenizedCorpus]:
    """Three, of 300, 1 and 100 pairs."""
    pairs = small_corpus.PAIRS
    parts = [ListCorpus("part", part) for part in (pairs[:300], pairs[300:301], pairs[301:401])]
    return small_corpus.tokenize_parts(tmp_path_factory.mktemp("pipeline"), parts)


def make_loader(
    corpora: list[TokenizedCorpus],
    row_shards: RowShards = ONE_SHARD,
    packed_length: int = 0,
    objective: str = "translation",
    weights: Sequence[float] = (),
) -> Loader:
    data = DataConfig(
        objective=objective, max_length=40, batch_tokens=600, num_shapes=4,
        packed_length=packed_length,
    )  # fmt: skip
    made = choose_objective(data, range(500, 510), range(4, 400))
    lengths = [made.find_lengths(corpus.lengths) for corpus in corpora]
    plan = make_plan(lengths, data, 0, weights)
    return Loader(
        plan, corpora, row_shards=row_shards, parts=8 // row_shards.total,
        objectives=[made] * len(corpora),
    )  # fmt: skip


@pytest.mark.parametrize("packed_length", [0, 64])
def test_rows_are_shifted_and_padded_one_sentence_after_the_other(
    corpora: list[TokenizedCorpus], packed_length: int
) -> None:
    """Each pair is read from its own corpus."""
    loader = make_loader(corpora, packed_length=packed_length)
    pairs = [
        small_corpus.read_pair(corpus, index) for corpus in corpora for index in range(len(corpus))
    ]
    for step in range(loader.plan.steps_per_epoch):
        batch, planned = loader.batch(step), loader.plan.batch(step)
        wanted = [np.zeros(array.shape, int) for array in batch[:3]]
        ends = np.zeros((2, len(batch.src)), int)
        for row, index in zip(planned.rows.tolist(), planned.indices.tolist(), strict=True):
            src, tgt = pairs[index]
            for array, ids, side in zip(
                wanted, (src, [BOS_ID, *tgt[:-1]], tgt), (0, 1, 1), strict=True
            ):
                array[row, ends[side, row] : ends[side, row] + len(ids)] = ids
            ends[:, row] += len(src), len(tgt)
        for found, array in zip(batch[:3], wanted, strict=True):
            np.testing.assert_array_equal(found, array)
        np.testing.assert_array_equal(batch.weights, wanted[2] != PAD_ID)


@pytest.mark.parametrize("packed_length", [0, 64])
def test_batches_hold_the_pairs_of_the_objective(
    corpora: list[TokenizedCorpus], packed_length: int
) -> None:
    """Two epochs have each text as often as its weight says; its copies are corrupted apart."""
    loader = make_loader(corpora[2:], ONE_SHARD, packed_length, "masked_lm", weights=(2.5,))
    forms: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for batch in loader.iterate(0, 2 * loader.plan.steps_per_epoch):
        is_chosen = (batch.tgt_out != PAD_ID) & (batch.tgt_out != EOS_ID)
        np.testing.assert_array_equal(batch.weights, is_chosen)
        restored = np.where(batch.tgt_out != PAD_ID, batch.tgt_out, batch.src)
        for row, src in zip(restored, batch.src, strict=True):
            texts = map(small_corpus.split_row, (row, src))
            for one, other in zip(*texts, strict=True):
                forms.setdefault(tuple(one), []).append(tuple(other))
    wanted = {tuple(small_corpus.read_pair(corpora[2], index)[1]) for index in range(100)}
    assert forms.keys() == wanted
    assert {len(each) for each in forms.values()} <= {4, 5, 6}
    assert np.mean([len({*each}) == len(each) for each in forms.values()]) > 0.5


@pytest.mark.parametrize("packed_length", [0, 64])
@pytest.mark.parametrize("objective", ["translation", "span_corruption", "masked_lm"])
def test_rows_of_all_processes_are_the_whole_batch(
    corpora: list[TokenizedCorpus], objective: str, packed_length: int
) -> None:
    owners = (0, 2), (1, 3)
    count = sum(map(len, owners))
    whole = make_loader(corpora, ONE_SHARD, packed_length, objective)
    shares = [RowShards(count, own) for own in owners]
    parts = [make_loader(corpora, share, packed_length, objective) for share in shares]
    for step in range(whole.plan.steps_per_epoch):
        shards: dict[int, HostBatch] = {}
        for own, part in zip(owners, parts, strict=True):
            arrays = jax.tree.leaves(part.batch(step))
            cut = zip(*(np.split(array, len(own)) for array in arrays), strict=True)
            for number, (src, tgt_in, tgt_out, weights) in zip(own, cut, strict=True):
                shards[number] = Batch(src, tgt_in, tgt_out, weights)
        together = [shards[number] for number in range(count)]
        joined = jax.tree.map(lambda *sides: np.concatenate(sides), *together)
        small_corpus.assert_same(joined, whole.batch(step))


def test_batches_are_made_ahead_in_bounds_and_one_that_fails_raises_in_its_turn(
    corpora: list[TokenizedCorpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread runs on after an error, nor for an iterator that is deleted."""
    loader, made = make_loader(corpora), list[int]()
    make = loader.batch

    def make_or_fail(step: int) -> HostBatch:
        made.append(step)
        if step == 40:
            raise OSError("the cache is gone")
        return make(step)

    monkeypatch.setattr(loader, "batch", make_or_fail)
    batches = loader.iterate(3, 1000)
    for step in range(3, 40):
        small_corpus.assert_same(next(batches), make(step))
        assert step <= made[-1] <= step + PREFETCH
    with pytest.raises(OSError, match="the cache is gone"):
        next(batches)
    assert made[:38] == [*range(3, 41)]
    assert list_threads() == []
    batches = loader.iterate(0, 1000)
    next(batches)
    del batches
    assert list_threads() == []


def list_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("loader")]
