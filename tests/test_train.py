"""Training from text to checkpoint: resumed bit for bit, however it was stopped."""

import itertools
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from t2t import cli, train
from t2t.config import Config, ConfigError, ModelConfig
from t2t.config_json import load_config
from t2t.data.corpus import DataError
from t2t.decoding.batch_search import BatchSearch
from t2t.training.checkpoint import restore_params
from t2t.training.early_stop import read_stop_request, request_stop
from t2t.training.interruption import Interruption
from t2t.training.ledger import read_ledger
from t2t.training.run_directory import RunError, list_steps, open_run
from tests.tiny_training import (
    STEPS,
    change,
    make_config,
    make_small_mesh,
    read_figures,
    read_state,
    write_recipe,
)

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text, and the cache of its ids."""
    return tmp_path_factory.mktemp("training")


@pytest.fixture(scope="module")
def config(folder: Path) -> Config:
    return make_config(folder)


@pytest.fixture(scope="module", autouse=True)
def _one_device() -> Iterator[None]:
    """As a program has it that was started without more."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "make_mesh", make_small_mesh)
        yield


@pytest.fixture(scope="module")
def uninterrupted(config: Config, folder: Path) -> Path:
    """A run from beginning to end."""
    assert train.main(config, folder / "uninterrupted")
    return folder / "uninterrupted"


def assert_same_run(workdir: Path, other: Path) -> None:
    for one, two in zip(read_state(workdir, STEPS), read_state(other, STEPS), strict=True):
        np.testing.assert_array_equal(one, two)
    assert read_figures(workdir, "validation/") == read_figures(other, "validation/")


def test_run_directory_holds_the_whole_run(uninterrupted: Path, config: Config) -> None:
    names = {path.name for path in uninterrupted.iterdir()}
    kept = {"config.json", "vocab", "checkpoints", "metrics.jsonl", "tensorboard", "lock"}
    assert names == kept | {"ledger.jsonl"}
    assert load_config(uninterrupted / "config.json") == config
    assert list_steps(uninterrupted)[-2:] == [STEPS - 5, STEPS]


def test_loss_falls(uninterrupted: Path) -> None:
    for prefix, name in (("train/", "train/loss"), ("validation/", "validation/loss")):
        losses = [line[name] for line in read_figures(uninterrupted, prefix)]
        assert len(losses) == STEPS / 5
        assert losses[-1] < 0.8 * losses[0]


def test_stopped_and_continued_run_is_the_same_bit_for_bit(
    uninterrupted: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where there is a checkpoint, no other state is made before it is read."""
    for steps in (STEPS // 2, STEPS):
        assert train.main(change(config, training={"steps": steps}), tmp_path / "run")
        monkeypatch.setattr(train, "init_state", None)
    assert_same_run(tmp_path / "run", uninterrupted)
    starts = read_ledger(tmp_path / "run")
    assert [start["step"] for start in starts] == [0, STEPS // 2]
    assert [start["config"]["training.steps"] for start in starts] == [STEPS // 2, STEPS]
    assert [corpus["pairs"] for corpus in starts[0]["corpora"]["train"]] == [200, 80]
    figures = [read_figures(path, "train/") for path in (tmp_path / "run", uninterrupted)]
    assert figures[0] == figures[1]


def test_preempted_run_has_the_checkpoints_and_averages_of_an_uninterrupted_one(
    uninterrupted: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """98 would push 95 out of the last two, and become a part of the average of two."""
    workdir = tmp_path / "run"
    for preempted_at in (13, 98):
        with monkeypatch.context() as patch:
            patch.setattr(
                Interruption, "reached", lambda self, step, at=preempted_at: bool(step == at)
            )
            assert not train.main(config, workdir)
        assert list_steps(workdir)[-1] == preempted_at
    assert train.main(config, workdir)
    assert_same_run(workdir, uninterrupted)
    assert list_steps(workdir) == list_steps(uninterrupted)
    averages = [restore_params(run, "avg:2") for run in (workdir, uninterrupted)]
    assert averages[0][1] == averages[1][1] == "avg2-100"
    for one, other in zip(*(jax.tree.leaves(params) for params, _ in averages), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_recurrent_model_goes_the_same_way(config: Config, tmp_path: Path, cell: str) -> None:
    """Stopped and continued, validated, searched and scored."""
    model = ModelConfig(kind="rnn", rnn_cell=cell, num_layers=1, d_model=16, dropout=0.1)
    for steps in (STEPS // 2, STEPS):
        training = {"steps": steps, "bleu_every": STEPS // 2}
        changed = change(config, model=vars(model), training=training)
        assert train.main(changed, tmp_path / "run")
    lines = read_figures(tmp_path / "run", "validation/")
    assert lines[-1]["validation/loss"] < 0.8 * lines[0]["validation/loss"]
    scored = [line["step"] for line in lines if "validation/bleu" in line]
    assert scored == [STEPS // 2, STEPS]


def test_finished_run_is_left_as_it_is(uninterrupted: Path, config: Config) -> None:
    files = {path: path.stat().st_mtime_ns for path in (uninterrupted / "checkpoints").rglob("*")}
    assert train.main(config, uninterrupted)
    assert len(read_ledger(uninterrupted)) == 1
    again = {path: path.stat().st_mtime_ns for path in (uninterrupted / "checkpoints").rglob("*")}
    assert again == files


def test_validation_translates_where_it_is_asked_to(config: Config, tmp_path: Path) -> None:
    short = change(
        config,
        training={"steps": 4, "validate_every": 2, "bleu_every": 4},
        checkpoints={"every": 4, "best_metric": "bleu"},
    )
    assert train.main(short, tmp_path / "run")
    without, with_bleu = read_figures(tmp_path / "run", "validation/")
    assert set(without) == {"step", "validation/loss", "validation/perplexity"}
    assert set(with_bleu) == {*without, "validation/bleu", "validation/chrf"}
    assert with_bleu["validation/perplexity"] == pytest.approx(np.exp(with_bleu["validation/loss"]))


def test_validation_that_fails_does_so_before_training(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(BatchSearch, "search", fail)
    asked_for = change(config, training={"bleu_every": 100})
    with pytest.raises(ZeroDivisionError):
        train.main(asked_for, tmp_path / "run")
    assert list_steps(tmp_path / "run") == []
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_long_validation_sentences_do_not_end_a_run_with_learned_positions(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    shutil.copytree(Path(config.data.validation_src).parent, folder)
    for name, language in (("validation", "en"), ("validation", "de")):
        with (folder / f"{name}.{language}").open("a") as file:
            file.write("house " * 40 + "\n")
    short = change(
        config,
        model={"position": "learned", "max_positions": 32},
        data={
            "validation_src": f"{folder}/validation.en",
            "validation_tgt": f"{folder}/validation.de",
        },
        training={"steps": 4, "validate_every": 2, "bleu_every": 4},
        checkpoints={"every": 4},
    )
    with caplog.at_level("WARNING"):
        assert train.main(short, tmp_path / "run")
    assert "validation: 1 of 9 pairs have more sub-words than model.max_positions=32" in caplog.text
    assert len(read_figures(tmp_path / "run", "validation/")) == 2


def test_without_a_validation_split_training_needs_none(config: Config, tmp_path: Path) -> None:
    blind = change(config, data={"validation_src": "", "validation_tgt": ""}, training={"steps": 5})
    assert train.main(blind, tmp_path / "run")
    assert read_figures(tmp_path / "run", "validation/") == []
    assert list_steps(tmp_path / "run") == [5]


@pytest.mark.slow
def test_stopped_run_goes_on_when_the_request_is_removed(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workdir, short = tmp_path / "run", change(config, training={"steps": 5})
    assert train.main(short, workdir)
    request_stop(workdir, "enough")
    assert train.main(short, workdir)  # it was at its end before
    with caplog.at_level("INFO"):
        assert not train.main(change(config, training={"steps": 10}), workdir)
    assert f"stopped early after step 5: enough; remove {workdir}/stop.json" in caplog.text
    request = read_stop_request(workdir)
    assert request
    assert request.obeyed_at == 5
    (workdir / "stop.json").unlink()
    assert train.main(change(config, training={"steps": 10}), workdir)
    assert list_steps(workdir)[-1] == 10


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"data": {"train_src": ("no.en", "no.en")}}, DataError, "no.en does not exist"),
        ({"data": {"validation_src": "no.en"}}, DataError, "no.en does not exist"),
        ({"tokenizer": {"vocab_size": 9000}}, ConfigError, r"vocab_size=9000 is more than"),
        ({"data": {"max_length": 2}}, DataError, "none of 280 sentence pairs is left"),
        ({"mesh": {"data": 3}}, ConfigError, "does not cover 1 devices"),
    ],
    ids=str,
)
def test_bad_input_is_an_error_that_does_not_bind_the_next_attempt(
    config: Config, tmp_path: Path, changes: dict[str, Any], error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        train.main(change(config, **changes), tmp_path / "run")
    open_run(tmp_path / "run", config)


def test_run_of_another_config_is_refused(uninterrupted: Path, config: Config) -> None:
    with pytest.raises(RunError, match=r"model\.d_ff: 32 -> 64"):
        train.main(change(config, model={"d_ff": 64}), uninterrupted)


def test_disk_that_will_be_full_is_said_at_the_start(
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=200_000)  # one checkpoint, but not two
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert train.main(change(config, training={"steps": 10}), tmp_path / "run")
    assert "0.0 GB too few for the checkpoints that the config keeps (2 check" in caplog.text


@pytest.fixture
def begun(tmp_path: Path) -> tuple[Config, Path]:
    """A config with text of its own, and a run of its first steps."""
    config = change(make_config(tmp_path), training={"steps": 5})
    assert train.main(config, tmp_path / "run")
    return config, tmp_path / "run"


def replace_text(path: str, old: str, new: str) -> None:
    text = Path(path).read_text("utf-8")
    assert old in text
    Path(path).write_text(text.replace(old, new, 1), "utf-8")


@pytest.mark.parametrize(
    ("field", "remedy"),
    [
        ("train_src", "restore that text, or choose another --workdir"),
        ("validation_src", r"choose another --workdir, or score the new text with .* --src=FILE"),
    ],
)
def test_run_is_not_continued_on_text_that_has_changed(
    begun: tuple[Config, Path], field: str, remedy: str
) -> None:
    config, run = begun
    longer = change(config, training={"steps": 10})
    value = getattr(config.data, field)
    replace_text(value if isinstance(value, str) else value[1], " ", "  ")
    split = field.split("_")[0]
    with pytest.raises(RunError, match=rf"(?s)was started with another {split} text:.*{remedy}"):
        train.main(longer, run)
    assert load_config(run / "config.json") == config
    replace_text(value if isinstance(value, str) else value[1], "  ", " ")
    assert train.main(longer, run)


def test_validation_text_of_another_file_is_refused_and_the_same_text_is_not(
    begun: tuple[Config, Path], tmp_path: Path
) -> None:
    config, run = begun
    moved = {"validation_src": f"{tmp_path}/moved.en", "validation_tgt": f"{tmp_path}/moved.de"}
    for name, path in moved.items():
        Path(path).write_text(Path(getattr(config.data, name)).read_text("utf-8"), "utf-8")
    other = {"validation_src": f"{tmp_path}/a.en", "validation_tgt": f"{tmp_path}/a.de"}
    with pytest.raises(
        RunError, match=r"(?s)another validation text:.*a\.en \| .*a\.de: 200 pairs"
    ):
        train.main(change(config, data=other, training={"steps": 10}), run)
    assert train.main(change(config, data=moved, training={"steps": 10}), run)


def test_validation_text_may_change_where_no_checkpoint_has_a_score(
    config: Config, tmp_path: Path
) -> None:
    blind = change(config, data={"validation_src": "", "validation_tgt": ""}, training={"steps": 5})
    assert train.main(blind, tmp_path / "run")
    assert train.main(change(config, training={"steps": 10}), tmp_path / "run")


class Program:
    """`python -m t2t.train` on the tiny config, in a process of its own."""

    def __init__(self, config: Config, folder: Path, workdir: Path):
        self.workdir = workdir
        write_recipe(config, folder / "recipe.py")
        flags = [f"--config={folder}/recipe.py", f"--workdir={workdir}"]
        self._command = [sys.executable, "-m", "t2t.train", *flags]

    def stop(self, number: signal.Signals) -> tuple[int, str]:
        """Starts it, stops it at a random moment after its first checkpoint; status, messages."""
        before = list_steps(self.workdir)
        with subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=os.environ | {"XLA_FLAGS": os.environ["XLA_FLAGS"].replace("=8", "=1")},
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            while list_steps(self.workdir) == before and process.poll() is None:
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.15))
            process.send_signal(number)
            _, messages = process.communicate(timeout=120)
            return process.returncode, messages


@pytest.mark.slow
def test_run_stopped_by_signals_is_the_same_bit_for_bit(
    uninterrupted: Path, config: Config, tmp_path: Path
) -> None:
    program = Program(config, tmp_path, tmp_path / "run")
    for number in (signal.SIGINT, signal.SIGTERM):
        status, messages = program.stop(number)
        assert status == cli.INTERRUPTED, messages
        assert messages.splitlines()[-1] == "stopped and saved; the same command continues"
    assert train.main(config, tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted)


def train_on_one_device(config: Config, workdir: Path) -> None:
    """What a process that is to be killed does."""
    with mock.patch.object(train, "make_mesh", make_small_mesh):
        train.main(config, workdir)


@pytest.mark.slow
def test_run_killed_twenty_times_is_the_same_bit_for_bit(
    uninterrupted: Path, config: Config, tmp_path: Path
) -> None:
    """At any moment: while it starts, in a step, while a checkpoint is written or removed.

    A run that ends between two kills has to be as it should, and the next kill hits another.
    """
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    kills, runs = 0, itertools.count()
    run, newest = tmp_path / str(next(runs)), 0
    while kills < 20:
        process = processes.Process(target=train_on_one_device, args=(config, run))
        process.start()
        process.join(random.uniform(0, 3))
        if process.exitcode is None:
            finished = max(list_steps(run), default=0)
            process.kill()
            process.join()
            kills += 1
            assert max(list_steps(run), default=0) >= finished >= newest
            newest = finished
        else:
            assert process.exitcode == 0
            assert_same_run(run, uninterrupted)
            run, newest = tmp_path / str(next(runs)), 0
    assert train.main(config, run)
    assert_same_run(run, uninterrupted)
