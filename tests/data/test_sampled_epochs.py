"""Epochs with sampled sub-words: the same batches from any start, after kills, with any hosts."""

import dataclasses
import json
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t2t.config import variants
from t2t.config.fields import Config, DataConfig, TokenizerConfig
from t2t.config.files import load_config, save_config
from t2t.config.stages import Stage
from t2t.config.variants import import_plugins
from t2t.data import sampled_epochs
from t2t.data.batch import HostBatch
from t2t.data.corpus import DataError, TextCorpus
from t2t.data.corpus_sources import open_training
from t2t.data.loader import ONE_SHARD, Loader, RowShards
from t2t.data.objectives import SpanCorruption
from t2t.data.packing import make_plan
from t2t.data.sampled_epochs import SampledEpochs
from t2t.data.token_cache import TokenizedCorpus
from t2t.data.tokenizer import Vocabulary, train_vocabulary
from tests.data import small_corpus

NUM_PAIRS = 300
STEPS = 40  # more than two epochs


def make_run(tmp_path: Path) -> Path:
    """Makes a run directory with config and vocabulary, beside its corpus and cache."""
    for side, name in enumerate(("src", "tgt")):
        lines = [pair[side] for pair in small_corpus.PAIRS[:NUM_PAIRS]]
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    files: dict[str, Any] = {"train_src": (f"{tmp_path}/src",), "train_tgt": (f"{tmp_path}/tgt",)}
    sizes: dict[str, Any] = {"max_length": 40, "packed_length": 40, "batch_tokens": 800}
    cache = f"{tmp_path}/cache"
    data = DataConfig("text", **files, cache_directory=cache, **sizes, subword_sampling=0.2)
    config = Config(data=data, tokenizer=TokenizerConfig(vocab_size=400))
    workdir = tmp_path / "run"
    corpus = TextCorpus(tmp_path / "src", tmp_path / "tgt")
    train_vocabulary([corpus], config.tokenizer, workdir / "vocab")
    save_config(config, workdir / "config.json")
    return workdir


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path)


def open_epochs(run: Path, row_shards: RowShards = ONE_SHARD, **data: Any) -> SampledEpochs:
    config = load_config(run / "config.json")
    config.data = dataclasses.replace(config.data, **data)

    def make_loader(tokenized: Sequence[TokenizedCorpus], stage: Stage) -> Loader:
        lengths = [corpus.lengths for corpus in tokenized]
        if config.data.objective == "span_corruption":
            lengths = [SpanCorruption(config.data, range(9)).find_lengths(each) for each in lengths]
        plan = make_plan(lengths, config.data, config.seed, stage.weights)
        return Loader(plan, tokenized, row_shards=row_shards, parts=2 // row_shards.total)

    corpora = open_training(config.data)
    return SampledEpochs(config, run, corpora, Vocabulary.load(run / "vocab"), make_loader)


def begin(run: Path, start: int = 0, **data: Any) -> Generator[HostBatch, None, None]:
    """The batches as a generator, which can be closed."""
    yield from open_epochs(run, **data).iterate(start, STEPS)


def read(run: Path, start: int = 0, **data: Any) -> list[HostBatch]:
    return list(begin(run, start, **data))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[HostBatch]:
    """The batches of a run that nothing disturbs."""
    return read(make_run(tmp_path_factory.mktemp("undisturbed")))


def assert_same(some: Sequence[HostBatch], others: Sequence[HostBatch]) -> None:
    for one, other in zip(some, others, strict=True):
        small_corpus.assert_same(one, other)


def test_every_epoch_holds_every_pair_once_in_a_segmentation_of_its_own(run: Path) -> None:
    """A stage ends its last epoch, and the next one begins with a new epoch."""
    vocabulary = Vocabulary.load(run / "vocab")
    batches = read(run, stages=("3: 1", "1"))[3:]
    first, *sizes = json.loads((run / "epochs.json").read_text())["batches"]
    assert first == 3
    assert len(sizes) >= 3  # the last one is not complete
    expected = sorted(text for text, _ in small_corpus.PAIRS[:NUM_PAIRS])
    segmentations = []
    for epoch in range(2):
        rows = np.concatenate([b.src for b in batches[sum(sizes[:epoch]) :][: sizes[epoch]]])
        sentences = small_corpus.split_row(rows)
        assert sorted(vocabulary.src.decode(sentences)) == expected
        segmentations.append({*map(tuple, sentences)})
    assert len(segmentations[0] - segmentations[1]) > NUM_PAIRS / 2
    assert not [*(run.parent / "cache").glob("*/cache.json")]  # finished epochs leave no tokens


@pytest.mark.parametrize("place", ["the path", "the run's copies"])
def test_an_epoch_is_tokenised_apart_with_the_plugins_of_training(
    place: str, run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"own_source_{len(place)}"
    folder = run.parent / "own" if place == "the path" else run / "plugins"
    folder.mkdir()
    (folder / f"{name}.py").write_text(f"""
from t2t.config.variants import register
from t2t.data.corpus import TextCorpus

@register("data.source", "{name}")
def open_own(data, split):
    files = {f"{run.parent}/src"!r}, {f"{run.parent}/tgt"!r}
    return TextCorpus(*files) if split == "train" else None
""")
    config = load_config(run / "config.json")
    config.data = dataclasses.replace(config.data, source=name, train_src=(), train_tgt=())
    config.plugins = (name,)
    if place == "the path":
        monkeypatch.syspath_prepend(folder)
        import_plugins([name])
    monkeypatch.setattr(variants, "_trusts_copies", True)
    save_config(config, run / "config.json")
    open_epochs(run).open(0)
    [*open_epochs(run).iterate(0, len(small_corpus.PAIRS) // 20)]
    assert "tokenised again" not in caplog.text


def test_numbers_of_batches_are_of_one_objective(run: Path) -> None:
    """Until the first checkpoint it may change, and other pairs fill another number of batches."""
    sizes: dict[float, int] = {}
    size = 0
    for density in (0.15, 0.5, 0.15):
        epochs = open_epochs(run, objective="span_corruption", noise_density=density)
        size = epochs.open(0).plan.steps_per_epoch
        assert sizes.setdefault(density, size) == size
        assert json.loads((run / "epochs.json").read_text())["batches"] == [size]
    assert sizes[0.15] != sizes[0.5]
    known = json.loads((run / "epochs.json").read_text())
    (run / "epochs.json").write_text(json.dumps(known | {"batches": [size + 1]}))
    with pytest.raises(DataError, match=rf"epochs\.json has {size + 1} batches in epoch 0, but"):
        open_epochs(run, objective="span_corruption", noise_density=density).open(0)


def test_an_epoch_is_tokenised_in_this_process_if_the_other_is_killed(
    run: Path,
    undisturbed: list[HostBatch],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    start = subprocess.Popen

    def start_killed(command: list[str], **given: Any) -> "subprocess.Popen[str]":
        del command
        return start([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], **given)

    monkeypatch.setattr(subprocess, "Popen", start_killed)
    assert_same(read(run), undisturbed)
    assert "tokenised again" in caplog.text


def test_an_unusable_cache_stops_the_epochs_and_names_the_field(
    run: Path,
    undisturbed: list[HostBatch],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a full disk does. Once it is mended, the batches go on as if nothing had happened."""
    cache, start = run.parent / "cache", subprocess.Popen
    found = list[HostBatch]()

    def break_and_start(*args: Any, **kwargs: Any) -> "subprocess.Popen[str]":
        cache.rename(run.parent / "aside")
        cache.write_text("")
        return start(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", break_and_start)
    with pytest.raises(DataError, match=r"data\.cache_directory=.* cannot be written: File exists"):
        found.extend(begin(run))
    monkeypatch.undo()
    assert 1 < len(found) < STEPS
    assert re.search(r"again: .*DataError: data\.cache_directory=.*File exists", caplog.text)
    cache.unlink()
    assert_same(found + read(run, len(found)), undisturbed)


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_closing_ends_the_other_process(
    handler: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a shell started training in the background, with SIGINT ignored."""
    children: list[subprocess.Popen[str]] = []
    start = subprocess.Popen

    def start_endless(command: list[str], **given: Any) -> "subprocess.Popen[str]":
        command[2] += "; import time; time.sleep(600)"
        children.append(start(command, **given))
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", start_endless)
    monkeypatch.setattr(sampled_epochs, "_SECONDS_TO_END", 0.2)  # less than its imports
    previous = signal.signal(signal.SIGINT, handler)
    try:
        iterator = begin(run)
        next(iterator)
        iterator.close()
    finally:
        signal.signal(signal.SIGINT, previous)
    assert children
    # By the signal: at work, or as an error while it still imports; or, if it came before Python
    # looked at signals, by SIGKILL.
    ends = {child.returncode for child in children}
    assert ends <= {-signal.SIGINT, 1, -signal.SIGKILL}
