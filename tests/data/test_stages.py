"""Stages of training: shares of the corpora, epochs, borders, any start, any number of hosts."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
import pytest

from t2t.config.fields import DataConfig
from t2t.config.stages import NO_END, Stage, read_stages
from t2t.data.batch import HostBatch
from t2t.data.corpus import Corpus, ListCorpus
from t2t.data.loader import ONE_SHARD, Loader, RowShards
from t2t.data.objectives import Corruption, Sentences, choose_objective, make_keys, plan_lengths
from t2t.data.packing import make_plan
from t2t.data.stages import iterate_stages
from t2t.data.token_cache import TokenizedCorpus
from tests.data import small_corpus

PARTS: list[Corpus] = [
    ListCorpus(name, small_corpus.PAIRS[start:stop])
    for name, start, stop in (("web", 0, 240), ("back", 240, 360), ("clean", 360, 400))
]
MIXTURE = "translation", "span_corruption", "denoising"
SENTINELS = range(500, 510)  # beyond the vocabulary
STEPS = 190
STAGES = {  # an epoch has between 16 and 32 steps
    "40: 1,1,1": (range(40), (1.0, 1.0, 1.0)),
    "100: 1,0,2.5": (range(40, 100), (1.0, 0.0, 2.5)),
    "155: 0,2,0": (range(100, 155), (0.0, 2.0, 0.0)),
    "1,1,1": (range(155, STEPS), (1.0, 1.0, 1.0)),
}


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory: pytest.TempPathFactory) -> list[TokenizedCorpus]:
    return small_corpus.tokenize_parts(tmp_path_factory.mktemp("stages"), PARTS)


def prepare_stages(
    tokenized: Sequence[TokenizedCorpus],
    packed_length: int = 0,
    row_shards: RowShards = ONE_SHARD,
    names: Sequence[str] = ("translation",) * 3,
) -> Callable[[Stage], Loader]:
    """Returns what makes the loader of a stage; `names` are the objectives of the corpora."""
    data = DataConfig(max_length=40, batch_tokens=480, num_shapes=3, packed_length=packed_length)
    tasks = [dataclasses.replace(data, objective=name) for name in names]
    objectives = [choose_objective(task, SENTINELS) for task in tasks]
    if tasks[1].is_text_alone:
        objectives[1].prefix = np.array([9, 8], np.int32)
    lengths = plan_lengths(objectives, tokenized)
    return lambda stage: Loader(
        make_plan(lengths, data, 0, stage.weights, tasks=tasks), tokenized, row_shards=row_shards,
        parts=2 // row_shards.total, objectives=objectives,
    )  # fmt: skip


def iterate(make_loader: Callable[[Stage], Loader], start: int = 0) -> Iterator[HostBatch]:
    return iterate_stages(read_stages([*STAGES]), make_loader, start, STEPS)


@pytest.mark.parametrize("packed_length", [0, 48])
def test_each_stage_begins_an_epoch_of_its_own_with_its_weights(
    tokenized: list[TokenizedCorpus], packed_length: int
) -> None:
    """Borders are in the middle of epochs, which are counted as far as they are whole."""
    sources = [small_corpus.read_pair(part, i)[0] for part in tokenized for i in range(len(part))]
    numbers = {tuple(source): number for number, source in enumerate(sources)}
    assert len(numbers) == len(sources) == 400
    sizes = np.array([len(part) for part in PARTS])
    corpus_of = np.repeat(np.arange(3), sizes)
    make_loader = prepare_stages(tokenized, packed_length)
    sentences = (small_corpus.split_row(batch.src) for batch in iterate(make_loader))
    steps = [[numbers[tuple(each)] for each in step] for step in sentences]
    orders = []
    for stage, (range_of, weights) in zip(read_stages([*STAGES]), STAGES.values(), strict=True):
        size = make_loader(stage).plan.steps_per_epoch
        assert len(range_of) % size, stage
        for start in range(range_of.start, range_of.stop - size + 1, size):
            uses = Counter(pair for step in steps[start : start + size] for pair in step)
            counts = np.array([uses[pair] for pair in range(400)])
            wanted = np.array(weights)[corpus_of]
            assert (np.floor(wanted) <= counts).all()
            assert (counts <= np.ceil(wanted)).all()
            orders.append(tuple(steps[start]))
        read = corpus_of[[pair for step in range_of for pair in steps[step]]]
        found = np.bincount(read, minlength=3) / len(read)
        np.testing.assert_allclose(found, weights * sizes / (weights @ sizes), atol=0.07)
    assert len({*orders}) == len(orders) > 5  # also where weights are the same


@pytest.mark.parametrize("names", [("translation",) * 3, MIXTURE], ids=str)
@pytest.mark.parametrize("packed_length", [0, 48])
def test_any_start_and_any_number_of_hosts_give_the_same_batches(
    tokenized: list[TokenizedCorpus], packed_length: int, names: Sequence[str]
) -> None:
    whole = [*iterate(prepare_stages(tokenized, packed_length, names=names))]
    shapes = {(batch.src.shape, batch.tgt_out.shape) for batch in whole}
    assert len(shapes) <= (1 if packed_length else 3)  # those of all stages are the same
    for start in (39, 40, 41, 120, 154, 155, STEPS - 1):
        halves = [
            iterate(prepare_stages(tokenized, packed_length, RowShards(2, (own,)), names), start)
            for own in range(2)
        ]
        for batch, parts in zip(whole[start:], zip(*halves, strict=True), strict=True):
            joined = jax.tree.map(lambda *sides: np.concatenate(sides), *parts)
            small_corpus.assert_same(batch, joined)


@pytest.mark.parametrize("packed_length", [0, 48])
def test_batches_of_a_mixture_hold_the_pairs_of_its_tasks(
    tokenized: list[TokenizedCorpus], packed_length: int
) -> None:
    """Each pair is what its objective makes of its text alone, behind the prefix of its task."""
    plan_of = prepare_stages(tokenized, packed_length, names=MIXTURE)(Stage(0, NO_END, (1, 1, 2)))
    plan, ends = plan_of.plan, np.cumsum([len(part) for part in PARTS])
    made = [choose_objective(DataConfig(objective=name), SENTINELS) for name in MIXTURE]
    seen = Counter[int]()
    for step in range(plan.steps_per_epoch):
        planned, batch = plan.batch(step), plan_of.batch(step)
        found = [[*map(small_corpus.split_row, side)] for side in (batch.src, batch.tgt_out)]
        places = Counter[int]()
        uses = zip(planned.rows, planned.indices, planned.uses, strict=True)
        for row, index, use in (map(int, each) for each in uses):
            number = int(np.searchsorted(ends, index, side="right"))
            wanted = small_corpus.read_pair(tokenized[number], index - [0, *ends][number])
            if isinstance(objective := made[number], Corruption):
                text = Sentences(np.array(wanted[1]), np.array([len(wanted[1])]))
                sides = objective.corrupt(text, make_keys(0, 0, np.array([use])))
                wanted = [side.ids.tolist() for side in sides]
                wanted[0] = [9, 8] * (number == 1) + wanted[0]
            assert [side[row][places[row]] for side in found] == wanted
            places[row] += 1
            seen[number] += 1
    assert seen == {0: 240, 1: 120, 2: 80}
