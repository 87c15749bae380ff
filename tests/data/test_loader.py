"""From a plan and ids to batches: padding, the shift, each host's rows, any start."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from t2t.config.fields import DataConfig, TokenizerConfig
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, Batch, HostBatch
from t2t.data.corpus import ListCorpus
from t2t.data.loader import ONE_SHARD, PREFETCH, Loader, RowShards
from t2t.data.objectives import choose_objective
from t2t.data.packing import make_plan
from t2t.data.token_cache import TokenizedCorpus, tokenize_corpus
from t2t.data.tokenizer import train_vocabulary
from tests.data import small_corpus


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[TokenizedCorpus]:
    """Three, of 300, 1 and 100 pairs."""
    folder = tmp_path_factory.mktemp("pipeline")
    config = TokenizerConfig(vocab_size=400)
    vocabulary = train_vocabulary([small_corpus.CORPUS], config, folder / "vocab")
    pairs = small_corpus.PAIRS
    parts = [ListCorpus("part", part) for part in (pairs[:300], pairs[300:301], pairs[301:401])]
    return [tokenize_corpus(part, vocabulary, folder / "cache") for part in parts]


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
    return Loader(plan, corpora, row_shards=row_shards, parts=8 // row_shards.total, objective=made)


def assert_same(one: HostBatch, other: HostBatch) -> None:
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


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
@pytest.mark.parametrize("objective", ["span_corruption", "masked_lm"])
def test_batches_hold_the_pairs_of_the_objective(
    corpora: list[TokenizedCorpus], objective: str, packed_length: int
) -> None:
    """Restores each text from its pair; each of an epoch is there once."""
    loader = make_loader(corpora, packed_length=packed_length, objective=objective)
    assert (objective == "masked_lm") == bool(
        (loader.plan.src_lengths == loader.plan.tgt_lengths).all()
    )
    epoch = loader.plan.steps_per_epoch
    found, seen = [], []
    for step in range(epoch):
        batch = loader.batch(step)
        for src, tgt, weights in zip(batch.src, batch.tgt_out, batch.weights, strict=True):
            if objective == "masked_lm":
                assert (weights == ((tgt != PAD_ID) & (tgt != EOS_ID))).all()
                restored = np.where(tgt != PAD_ID, tgt, src)
                found += split_sentences(restored[src != PAD_ID])
            else:
                assert (weights == (tgt != PAD_ID)).all()
                texts = (split_sentences(side[side != PAD_ID]) for side in (src, tgt))
                found += [fill(*pair) for pair in zip(*texts, strict=True)]
        seen.append(batch)
    wanted = [
        small_corpus.read_pair(corpus, index)[1]
        for corpus in corpora
        for index in range(len(corpus))
    ]
    assert sorted(found) == sorted(wanted)
    later = [loader.batch(step) for step in range(epoch, 2 * epoch)]
    assert {*map(describe, seen)}.isdisjoint(map(describe, later))


@pytest.mark.parametrize("packed_length", [0, 64])
def test_copies_of_a_text_in_an_epoch_are_corrupted_apart(
    corpora: list[TokenizedCorpus], packed_length: int
) -> None:
    loader = make_loader(corpora[2:], ONE_SHARD, packed_length, "masked_lm", weights=(2.5,))
    forms: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for batch in loader.iterate(0, loader.plan.steps_per_epoch):
        restored = np.where(batch.tgt_out != PAD_ID, batch.tgt_out, batch.src)
        for row, src in zip(restored, batch.src, strict=True):
            for one, other in zip(
                split_sentences(row[row != PAD_ID]),
                split_sentences(src[src != PAD_ID]),
                strict=True,
            ):
                forms.setdefault(tuple(one), []).append(tuple(other))
    assert {len(each) for each in forms.values()} == {2, 3}
    assert np.mean([len({*each}) == len(each) for each in forms.values()]) > 0.9


def describe(batch: HostBatch) -> bytes:
    return b"".join(array.tobytes() for array in batch)


def split_sentences(ids: np.ndarray) -> list[list[int]]:
    """Cuts a row behind each EOS."""
    rows = np.split(ids, np.flatnonzero(ids == EOS_ID) + 1)
    assert not len(rows.pop())
    return [row.tolist() for row in rows]


def fill(src: list[int], tgt: list[int]) -> list[int]:
    """Puts the spans of a target where their sentinels, 500 to 509, are in the source."""
    spans: dict[int, list[int]] = {}
    for token in tgt[:-1]:
        if token >= 500:
            spans[token] = []
        else:
            spans[max(spans)].append(token)
    return [each for token in src for each in spans.get(token, [token])]


@pytest.mark.parametrize("packed_length", [0, 64])
@pytest.mark.parametrize(
    ("owners", "objective"),
    [
        (((0,), (1,)), "translation"),
        (((0, 1), (2, 3)), "translation"),
        (((0, 2), (1, 3)), "translation"),
        (((0, 2), (1, 3)), "span_corruption"),
        (((0, 2), (1, 3)), "masked_lm"),
    ],
    ids=str,
)
def test_rows_of_all_processes_are_the_whole_batch(
    corpora: list[TokenizedCorpus],
    owners: tuple[tuple[int, ...], ...],
    objective: str,
    packed_length: int,
) -> None:
    count = sum(map(len, owners))
    whole = make_loader(corpora, packed_length=packed_length, objective=objective)
    parts = [
        make_loader(
            corpora,
            row_shards=RowShards(count, own),
            packed_length=packed_length,
            objective=objective,
        )
        for own in owners
    ]
    for step in range(whole.plan.steps_per_epoch):
        shards: dict[int, HostBatch] = {}
        for own, part in zip(owners, parts, strict=True):
            cut = zip(*(np.split(x, len(own)) for x in part.batch(step)), strict=True)
            shards |= {number: Batch(*x) for number, x in zip(own, cut, strict=True)}
        together = zip(*(shards[number] for number in range(count)), strict=True)
        assert_same(Batch(*map(np.concatenate, together)), whole.batch(step))


def test_batch_that_fails_raises_in_its_turn(
    corpora: list[TokenizedCorpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make_loader(corpora)
    make = loader.batch

    def fail(step: int) -> HostBatch:
        if step == 7:
            raise OSError("the cache is gone")
        return make(step)

    monkeypatch.setattr(loader, "batch", fail)
    batches = loader.iterate(3, 50)
    for step in range(3, 7):
        assert_same(next(batches), make(step))
    with pytest.raises(OSError, match="the cache is gone"):
        next(batches)
    assert list_threads() == []


@pytest.mark.parametrize("count", [1, 2, 40])
def test_batches_are_made_ahead_in_bounds_and_nothing_runs_on(
    corpora: list[TokenizedCorpus], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    loader = make_loader(corpora)
    make, made = loader.batch, []

    def note(step: int) -> HostBatch:
        made.append(step)
        return make(step)

    monkeypatch.setattr(loader, "batch", note)
    batches = loader.iterate(0, 1000)
    for _ in range(count):
        next(batches)
    del batches
    assert list_threads() == []
    assert count <= len(made) <= count + PREFETCH
    assert made == list(range(len(made)))


def list_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("loader")]


@pytest.mark.slow
def test_interrupt_ends_a_program_that_waits_for_a_batch(tmp_path: Path) -> None:
    script = tmp_path / "wait.py"
    script.write_text(
        "import time\n"
        "from t2t.data.loader import Loader\n"
        "loader = Loader.__new__(Loader)\n"
        "loader.batch = lambda step: time.sleep(2 * step)\n"
        "for batch in loader.iterate(0, 1000): print('batch', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.readline() == "batch\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert process.returncode != 0
