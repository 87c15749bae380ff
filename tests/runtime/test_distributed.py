"""Two processes with two devices each: they compute what one process does, and stop together.

`launch/local.py` starts them.
"""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from t2t.config.fields import Config
from t2t.runtime.command_line import INTERRUPTED
from t2t.training.checkpoint import restore_params
from t2t.training.run_directory import list_steps
from tests import programs
from tests.own_share import PAUSE, VARIABLE
from tests.programs import Program
from tests.tiny_training import change, make_config, mix_tasks, read_figures, write_recipe

ROOT = Path(__file__).parents[2]
STEPS = 20
MESHES = {  # of two processes with two devices each
    "rows are cut": {"data": 2, "fsdp": 2},  # each process holds all parameters
    "parameters are cut": {"data": 1, "fsdp": 4},  # each process holds half of every matrix
}

COUNT, FLAGS = os.environ["XLA_FLAGS"].split("=8", 1)  # the devices of tests, and the rest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture(scope="module")
def config(folder: Path) -> Config:
    """A small run that learns a mixture of two tasks."""
    return change(
        make_config(folder),
        data=mix_tasks(folder),
        training={"steps": STEPS, "log_every": 1, "validate_every": 5, "translate_every": 10},
        checkpoints={"every": 5},
        mesh=MESHES["rows are cut"],
    )


def start(*command: str, pause: float = 0.0) -> Program:
    """Starts a program in two processes with two devices each."""
    launch = ["launch/local.py", "--processes=2", "--devices=2", "--", sys.executable, "-m"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), VARIABLE: FLAGS, PAUSE: str(pause)}
    return Program(*launch, "tests.own_share", *command, environment=environment)


def train(config: Config, folder: Path, workdir: Path, pause: float = 0.0) -> Program:
    return start("t2t.train", *write_flags(config, folder, workdir), pause=pause)


def wait_for_checkpoint(program: Program, run: Path) -> None:
    while not list_steps(run) and program.poll() is None:
        time.sleep(0.05)


def write_flags(config: Config, folder: Path, workdir: Path) -> list[str]:
    recipe = folder / f"{workdir.name}.py"
    write_recipe(config, recipe)
    return [f"--config={recipe}", f"--workdir={workdir}"]


def run_alone(devices: int, *command: str) -> None:
    """Runs a program in one process."""
    environment = programs.make_environment(XLA_FLAGS=f"{COUNT}={devices} {FLAGS}")
    done = programs.run(*command, environment=environment)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def of_one(config: Config, folder: Path) -> Path:
    """A run by one process with four devices."""
    run_alone(4, "t2t.train", *write_flags(config, folder, folder / "one"))
    return folder / "one"


def assert_same_run(one: Path, two: Path) -> None:
    assert list_steps(one) == list_steps(two)
    for prefix in ("train/", "validation/"):
        for found, wanted in zip(*(read_figures(path, prefix) for path in (one, two)), strict=True):
            assert found == pytest.approx(wanted, rel=1e-4)
    leaves = (jax.tree.leaves(restore_params(path, "last")[0]) for path in (one, two))
    for found, wanted in zip(*leaves, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def assert_each_holds(share: float, program: Program) -> None:
    """Checks the share of the parameters that each process has printed."""
    found = re.findall(r"^\[(\d)\] share (.*)", program.messages, re.MULTILINE)
    assert {process: float(value) for process, value in found} == {
        "0": pytest.approx(share, abs=0.05),
        "1": pytest.approx(share, abs=0.05),
    }


def stop(number: signal.Signals, config: Config, folder: Path, run: Path) -> Program:
    """Starts a run by two processes, and stops both after their first checkpoint.

    From there on steps take so long that the run does not end before the signal comes.
    """
    with train(config, folder, run, pause=3.0) as program:
        wait_for_checkpoint(program, run)
        program.send_signal(number)
        assert program.wait() == INTERRUPTED, program.messages
    assert "[0] stopped and saved" in program.messages
    stopped = list_steps(run)[-1]
    assert stopped < STEPS
    assert len(read_figures(run, "train/")) == stopped
    return program


def test_all_processes_stop_at_one_step_and_another_number_continues(
    config: Config, folder: Path, of_one: Path
) -> None:
    run = folder / "continued-by-one"
    assert_each_holds(1.0, stop(signal.SIGTERM, config, folder, run))
    run_alone(4, "t2t.train", *write_flags(config, folder, run))
    assert_same_run(run, of_one)


@pytest.fixture(scope="module")
def of_two(config: Config, folder: Path) -> Path:
    """A run by two processes with half of each matrix, stopped and continued once."""
    run = folder / "continued-by-two"
    config = change(config, mesh=MESHES["parameters are cut"])
    assert_each_holds(0.5, stop(signal.SIGINT, config, folder, run))
    with train(config, folder, run) as program:
        assert program.wait() == 0, program.messages
    return run


def test_two_processes_that_hold_half_of_each_matrix_stop_and_continue_as_one(
    of_one: Path, of_two: Path
) -> None:
    assert_same_run(of_two, of_one)


def test_two_processes_evaluate_as_one(config: Config, of_two: Path, tmp_path: Path) -> None:
    """Uses an odd number of sentences, so one process has more than the other.

    An evaluation has a mesh of its own, so one run stands for those of all meshes.
    """
    split = f"--src={config.data.train_src[1]}", f"--ref={config.data.train_tgt[1]}"
    flags = ["t2t.evaluate", f"--workdir={of_two}", "--checkpoint=avg:2", *split]
    run_alone(1, *flags, f"--output={tmp_path}/one.json")
    with start(*flags, f"--output={tmp_path}/two.json") as program:
        assert program.wait() == 0, program.messages
    one, two = (
        (json.loads((tmp_path / f"{name}.json").read_text())["bleu"], path.read_text())
        for name in ("one", "two")
        for path in [tmp_path / f"{name}.txt"]
    )
    assert one == two


@pytest.mark.parametrize("dead", [0, 1])
def test_when_a_process_dies_the_others_stop_within_two_minutes(
    dead: int, config: Config, folder: Path, tmp_path: Path
) -> None:
    endless = change(config, training={"steps": 1_000_000})
    run = tmp_path / f"dead-{dead}"
    with train(endless, folder, run) as program:
        wait_for_checkpoint(program, run)
        os.kill(program.find_children()[dead], signal.SIGKILL)
        assert program.wait(timeout=300) != 0
    assert f"[{dead}] exited {128 + signal.SIGKILL}\n" in program.messages
    assert f"[{1 - dead}] exited 134\n" in program.messages  # launchers start the run again
    assert re.search(
        rf"\[{1 - dead}\] .*(heartbeat|closed|disconnected|died|did not answer)",
        program.messages,
        re.I,
    )
    assert list_steps(run)
