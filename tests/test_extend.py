"""A finished run goes on with a new schedule: `t2t.train --extend`."""

import contextlib
import dataclasses
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from t2t.api import train_run
from t2t.config.fields import Config, ConfigError
from t2t.config.files import load_config, save_config
from t2t.training import loop
from t2t.training.provenance import read_ledger
from t2t.training.resume import extend, open_run
from t2t.training.run_directory import RunError, list_steps
from t2t.training.schedule import make_schedule
from tests import programs
from tests.tiny_training import (
    assert_same_training,
    change,
    make_config,
    read_figures,
    read_state,
    write_recipe,
)

STEPS, MORE = 10, 15

pytestmark = pytest.mark.usefixtures("one_device", "shared_programs")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A cosine, whose rates depend on the number of steps, and a moving average."""
    training = {
        "steps": STEPS, "schedule": "cosine", "learning_rate": 0.01, "warmup_steps": 4,
        "ema_decay": 0.9, "log_every": 1,
    }  # fmt: skip
    return change(make_config(tmp_path_factory.mktemp("data")), training=training)


@pytest.fixture(scope="module")
def finished(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be changed."""
    workdir = tmp_path_factory.mktemp("runs") / "finished"
    assert train_run.train(config, workdir)
    return workdir


@pytest.fixture(scope="module")
def extended(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, extended without an interruption."""
    workdir = Path(shutil.copytree(finished, tmp_path_factory.mktemp("runs") / "extended"))
    assert train_run.train(extend(workdir, MORE), workdir)
    return workdir


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def read_rates(workdir: Path) -> list[float]:
    return [line["train/learning_rate"] for line in read_figures(workdir, "train/")]


@pytest.mark.slow
@pytest.mark.equality
def test_interrupted_extension_is_the_same_bit_for_bit(
    run: Path, extended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that was stopped before its first step."""
    for stop_at in (STEPS, STEPS + 7):
        with monkeypatch.context() as patch:
            stop = contextlib.nullcontext(lambda step, at=stop_at: step == at)
            patch.setattr(loop, "catch_signals", lambda start, stop=stop: stop)
            assert not train_run.train(extend(run, MORE), run)
        assert list_steps(run)[-1] == stop_at
    assert train_run.train(extend(run, MORE), run)
    assert_same_training(run, extended, STEPS + MORE, "train/", "validation/")


def test_extension_continues_steps_moments_and_ledger_and_starts_its_schedule_anew(
    config: Config, extended: Path
) -> None:
    training = load_config(extended / "config.json").training
    assert (training.schedule_start, training.steps) == (STEPS, STEPS + MORE)
    starts = read_ledger(extended)
    assert [start["step"] for start in starts] == [0, STEPS]
    assert starts[1]["config"]["training.schedule_start"] == STEPS
    steps = [line["step"] for line in read_figures(extended, "train/")]
    assert steps == list(range(1, STEPS + MORE + 1))
    rates = read_rates(extended)
    first, again = (
        make_schedule(dataclasses.replace(config.training, steps=n), 16) for n in (STEPS, MORE)
    )
    expected = [*map(first, range(STEPS)), *map(again, range(MORE))]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)
    counts = [leaf for leaf in read_state(extended, STEPS + MORE) if leaf.shape == ()]
    assert {int(count) for count in counts} <= {0, STEPS + MORE}  # Adam's count goes on, too


@pytest.mark.slow
def test_flags_may_change_the_schedule(config: Config, run: Path) -> None:
    schedule = {"schedule": "inverse_sqrt", "learning_rate": 0.002, "cooldown_steps": 5}
    assert train_run.train(extend(run, MORE, change(config, training=schedule)), run)
    rates = read_rates(run)
    assert max(rates[STEPS:]) == pytest.approx(0.002, rel=1e-5)
    assert rates[-1] < rates[-5] / 4


def test_extension_that_made_no_step_may_be_corrected(
    config: Config, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            loop, "catch_signals", lambda start: contextlib.nullcontext(lambda step: True)
        )
        assert not train_run.train(extend(run, MORE), run)
    corrected = extend(run, 5, change(config, training={"learning_rate": 0.002}))
    assert corrected.training.steps == STEPS + 5
    open_run(run, corrected)
    assert load_config(run / "config.json") == corrected


def test_same_command_extends_once_and_another_length_once_more(extended: Path) -> None:
    assert extend(extended, MORE) == load_config(extended / "config.json")
    again = extend(extended, 5).training
    assert (again.schedule_start, again.steps) == (STEPS + MORE, STEPS + MORE + 5)


def test_extension_of_what_is_not_finished_or_too_short_is_refused(
    config: Config, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="--extend=4: the learning rate would only rise"):
        extend(run, 4)
    new = tmp_path / "new"
    with pytest.raises(ConfigError, match="is this a run directory"):
        extend(new, MORE)
    (new / "checkpoints" / "3").mkdir(parents=True)
    save_config(config, new / "config.json")
    message = rf"holds checkpoint 3 of training\.steps={STEPS}; continue it to its end"
    with pytest.raises(RunError, match=message):
        extend(new, MORE)


@pytest.mark.slow
def test_program_extends_and_continues_with_the_config_of_the_run_or_of_the_flags(
    config: Config, run: Path
) -> None:
    write_recipe(config, run.parent / "recipe.py")

    def call(*flags: str) -> subprocess.CompletedProcess[str]:
        return programs.run("t2t.train", f"--workdir={run}", *flags)

    flags = f"--config={run.parent}/recipe.py", "--config.training.learning_rate=0.001"
    for given in (["--extend=6"], ["--extend=5", *flags]):
        done = call(*given)
        assert done.returncode == 0, done.stderr
    assert list_steps(run)[-1] == STEPS + 11
    assert load_config(run / "config.json").training.learning_rate == 0.001
    continued = call()
    assert continued.returncode == 0, continued.stderr
    assert f"finished at step {STEPS + 11}" in continued.stderr
