"""t2t.prepare: datasets of TFDS, and checks of text files."""

import dataclasses
import fcntl
import os
import re
import signal
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

from t2t.api import prepare_run, train_run
from t2t.config.fields import Config, DataConfig
from t2t.config.files import load_config
from t2t.data import corpus_sources
from t2t.data.corpus import DataError
from t2t.data.preparation import is_prepared
from t2t.data.tokenizer import Vocabulary
from t2t.training import loop
from tests import programs
from tests.data import tiny_tfds
from tests.programs import Program
from tests.tiny_training import change, make_config, write_recipe


def make_tfds(folder: Path) -> DataConfig:
    return DataConfig(
        "tfds",
        directory=f"{folder}/data",
        tfds_name="tiny_translation",
        cache_directory=f"{folder}/cache",
    )


def test_tfds_dataset_is_prepared_and_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_tfds(tmp_path)
    with pytest.raises(DataError, match=r"python -m t2t\.prepare"):
        corpus_sources.open_split(data, "test")
    for _ in range(2):  # the second call does nothing
        prepare_run.prepare(Config(data=data), None, print)
        assert (
            "test: 4 pairs (tiny_translation/1.0.0, test)" in capsys.readouterr().out.splitlines()
        )
    assert sorted(corpus_sources.open_split(data, "test"))[0] == tiny_tfds.pair("test", 0)[::-1]
    names = [path.name for path in tmp_path.rglob("*.array_record*")]
    assert len(names) == len(tiny_tfds.SIZES)


def test_given_vocabulary_is_prepared_and_trained_with(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    lines: list[str] = []
    given = change(config, tokenizer={"path": f"{tmp_path}/first/vocab", "vocab_size": 37_000})
    prepare_run.prepare(config, tmp_path / "first")
    prepare_run.prepare(given, tmp_path / "second", lines.append)
    saved = load_config(tmp_path / "second" / "config.json").tokenizer
    assert (saved.path, saved.vocab_size) == (f"{tmp_path}/first/vocab", 400)
    first, second = (
        Vocabulary.load(tmp_path / name / "vocab").fingerprint() for name in ("first", "second")
    )
    assert first == second
    assert "vocabulary: 400 sub-words" in lines[-1]


def test_tfds_dataset_out_of_reach_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(tiny_tfds.TinyTranslation, "_split_generators", fail)
    data = make_tfds(tmp_path)
    with pytest.raises(DataError, match=r"'tiny_translation' cannot be prepared in .*no route"):
        prepare_run.prepare(Config(data=data), None)


def test_prepared_run_has_vocabulary_and_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(tmp_path)
    assert not is_prepared(config, tmp_path / "run")
    prepare_run.prepare(config, tmp_path / "run", print)
    printed = capsys.readouterr().out
    assert "train: 280 pairs" in printed
    assert re.search(r"step 1 and later:\n  83\.3% of pairs .* each 1 times .*\n  16\.7%", printed)
    assert "vocabulary: 400 sub-words" in printed
    assert (
        f"next: python -m t2t.train with the same --config, flags and --workdir={tmp_path}/run"
        in (printed)
    )
    assert is_prepared(config, tmp_path / "run")
    (tmp_path / "a.de").write_text((tmp_path / "a.de").read_text() * 2)
    assert not is_prepared(config, tmp_path / "run")


@pytest.mark.usefixtures("one_device")
def test_training_uses_what_was_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = change(make_config(tmp_path), training={"warmup_steps": 2})
    prepare_run.prepare(config, tmp_path / "run")
    monkeypatch.setattr("t2t.data.preparation.train_vocabulary", None)
    monkeypatch.setattr("t2t.data.token_cache._write", None)
    monkeypatch.setattr("t2t.data.preparation.LARGE_TEXT", 100)  # bytes: large, but prepared
    monkeypatch.setattr(loop, "train", mock.Mock(side_effect=KeyboardInterrupt))
    with caplog.at_level("WARNING"), pytest.raises(KeyboardInterrupt):
        train_run.train(config, tmp_path / "run")
    assert not caplog.messages


def test_training_refuses_a_large_corpus_that_is_not_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("t2t.data.preparation.LARGE_TEXT", 100)
    monkeypatch.setattr("t2t.data.corpus._map_text", None)  # none of its text is read
    with pytest.raises(DataError, match=r"python -m t2t\.prepare --config=\.\.\. --workdir="):
        train_run.train(make_config(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_host_without_the_dataset_trains_from_the_cache(tmp_path: Path) -> None:
    """It has the text as well, which sampled sub-words need."""
    config = dataclasses.replace(make_config(tmp_path), data=make_tfds(tmp_path))
    data = {"max_length": 32, "batch_tokens": 512, "packed_length": 32, "subword_sampling": 0.1}
    vocabulary = {"vocab_size": 50, "byte_fallback": False}
    config = change(config, data=data, tokenizer=vocabulary, training={"steps": 5})
    prepare_run.prepare(config, tmp_path / "run")
    elsewhere = change(config, data={"directory": f"{tmp_path}/none"})
    assert train_run.train(elsewhere, tmp_path / "run")


@pytest.mark.slow
def test_killed_preparation_in_two_processes_goes_on(tmp_path: Path) -> None:
    """The second start, in one process, keeps the shards that two killed processes have made."""
    config = make_config(tmp_path)
    write_recipe(config, tmp_path / "recipe.py")
    program = (
        "import sys, t2t.data.token_cache as c, time; c.SHARD = 20\n"
        "write = c._write\n"
        "def slow(*arguments):\n    time.sleep(0.5)\n    write(*arguments)\n"
        "c._write = slow\n"
        "import runpy; runpy.run_module('t2t.prepare', run_name='__main__')\n"
    )
    flags = [f"--config={tmp_path}/recipe.py", f"--workdir={tmp_path}/run"]
    command = "launch/local.py", "--processes=2", "--devices=1", "--", sys.executable, "-c"
    cache = tmp_path / "cache"
    with Program(*command, program, *flags) as started:
        while len(list(cache.glob("[!.]*/cache.json"))) < 4 and started.poll() is None:
            time.sleep(0.05)
        for process in started.find_children():
            os.kill(process, signal.SIGKILL)
    with (tmp_path / "run" / "lock").open() as lock:  # until the killed processes are gone
        fcntl.flock(lock, fcntl.LOCK_EX)
    kept = {path: path.stat().st_mtime_ns for path in cache.glob("[!.]*/src.ids")}
    assert len(kept) >= 4
    done = programs.run(*command, program, *flags)
    assert done.returncode == 0, done.stderr
    after = {path: path.stat().st_mtime_ns for path in cache.glob("[!.]*/src.ids")}
    assert kept.items() < after.items()
    assert len(after) == 10 + 4 + 1  # of 200 and 80 pairs, and the validation corpus
    assert "epoch:" in done.stdout
