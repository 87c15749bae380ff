"""Two processes with two devices each: they compute what one process does, and stop together.

`launch/local.py` starts them with the XLA flags that users have.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from t2t.config.fields import Config
from t2t.runtime.program import INTERRUPTED
from t2t.training.checkpoint import restore_params
from t2t.training.run_directory import list_steps
from tests.tiny_training import change, make_config, read_figures, write_recipe

ROOT = Path(__file__).parents[2]
STEPS = 40
MESHES = {  # of two processes with two devices each
    "rows are cut": {"data": 2, "fsdp": 2},  # each process holds all parameters
    "parameters are cut": {"data": 1, "fsdp": 4},  # each process holds half of every matrix
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture(scope="module")
def config(folder: Path) -> Config:
    return change(
        make_config(folder),
        training={"steps": STEPS, "log_every": 1, "validate_every": 5, "bleu_every": 20},
        checkpoints={"every": 5},
        mesh=MESHES["rows are cut"],
    )


class Program:
    """A program in several processes, run by `launch/local.py`."""

    def __init__(self, processes: int, devices: int, *command: str):
        self.messages = ""
        launch = ["launch/local.py", f"--processes={processes}", f"--devices={devices}", "--"]
        self._process = subprocess.Popen(
            [sys.executable, *launch, sys.executable, "-m", *command],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr
        with self._process.stderr as lines:
            for line in lines:
                self.messages += line

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits for the condition or the end of the program."""
        while not condition() and self._process.poll() is None:
            time.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def find_processes(self) -> list[int]:
        """Returns the ids of the processes that the launcher started, in order."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return sorted(map(int, children.read_text().split()))

    def end(self) -> int:
        status = self._process.wait(timeout=300)
        self._reader.join()
        return status


def train(config: Config, folder: Path, workdir: Path, processes: int, devices: int) -> Program:
    recipe = folder / f"{workdir.name}.py"
    write_recipe(config, recipe)
    flags = [f"--config={recipe}", f"--workdir={workdir}"]
    return Program(processes, devices, "t2t.train", *flags)


@pytest.fixture(scope="module")
def of_one(config: Config, folder: Path) -> Path:
    """A run by one process with four devices."""
    program = train(config, folder, folder / "one", processes=1, devices=4)
    assert program.end() == 0, program.messages
    return folder / "one"


@pytest.fixture(scope="module")
def of_two(config: Config, folder: Path) -> dict[str, Path]:
    """For each mesh, a run by two processes with two devices each."""
    runs = {mesh: folder / f"two-{number}" for number, mesh in enumerate(MESHES)}
    for mesh, run in runs.items():
        program = train(change(config, mesh=MESHES[mesh]), folder, run, processes=2, devices=2)
        assert program.end() == 0, program.messages
    return runs


def assert_same_run(one: Path, two: Path) -> None:
    for prefix in ("train/", "validation/"):
        for found, wanted in zip(*(read_figures(path, prefix) for path in (one, two)), strict=True):
            assert found == pytest.approx(wanted, rel=1e-4)
    leaves = (jax.tree.leaves(restore_params(path, "last")[0]) for path in (one, two))
    for found, wanted in zip(*leaves, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("mesh", "share"), [("rows are cut", 1.0), ("parameters are cut", 0.5)])
def test_each_process_holds_its_part_of_the_parameters(
    mesh: str, share: float, config: Config, tmp_path: Path
) -> None:
    write_recipe(change(config, mesh=MESHES[mesh]), tmp_path / "recipe.py")
    program = Program(2, 2, "tests.own_share", f"--config={tmp_path}/recipe.py")
    assert program.end() == 0, program.messages
    found = re.findall(r"^\[(\d)\] share (.*)", program.messages, re.MULTILINE)
    assert {process: float(value) for process, value in found} == {
        "0": pytest.approx(share, abs=0.05),
        "1": pytest.approx(share, abs=0.05),
    }


@pytest.mark.parametrize("mesh", MESHES)
def test_two_processes_train_as_one(mesh: str, of_one: Path, of_two: dict[str, Path]) -> None:
    assert list_steps(of_two[mesh]) == list_steps(of_one)
    assert_same_run(of_two[mesh], of_one)


@pytest.mark.parametrize("mesh", MESHES)
def test_two_processes_evaluate_as_one(
    mesh: str, config: Config, of_two: dict[str, Path], tmp_path: Path
) -> None:
    """Uses an odd number of sentences, so one process has more than the other."""
    split = f"--src={config.data.train_src[1]}", f"--ref={config.data.train_tgt[1]}"
    scores = {}
    for processes, devices in ((2, 2), (1, 1)):
        output = tmp_path / f"{processes}x{devices}.json"
        flags = [f"--workdir={of_two[mesh]}", "--checkpoint=avg:2", f"--output={output}", *split]
        program = Program(processes, devices, "t2t.evaluate", *flags)
        assert program.end() == 0, program.messages
        hypotheses = output.with_suffix(".txt").read_text()
        scores[processes, devices] = json.loads(output.read_text())["bleu"], hypotheses
    assert scores[2, 2] == scores[1, 1]


@pytest.mark.parametrize(
    ("number", "mesh", "processes"),
    [(signal.SIGTERM, "rows are cut", 1), (signal.SIGINT, "parameters are cut", 2)],
)
def test_all_processes_stop_at_one_step_and_the_same_or_another_number_continues(
    number: signal.Signals,
    mesh: str,
    processes: int,
    config: Config,
    folder: Path,
    of_one: Path,
    tmp_path: Path,
) -> None:
    run = tmp_path / f"stopped by {number.name}".replace(" ", "-")
    config = change(config, mesh=MESHES[mesh])
    program = train(config, folder, run, processes=2, devices=2)
    program.wait_until(lambda: bool(list_steps(run)))
    program.send(number)
    assert program.end() == INTERRUPTED, program.messages
    assert "[0] stopped and saved" in program.messages
    stopped = list_steps(run)[-1]
    assert stopped < STEPS
    assert len(read_figures(run, "train/")) == stopped
    program = train(config, folder, run, processes, devices=4 // processes)
    assert program.end() == 0, program.messages
    assert_same_run(run, of_one)


@pytest.mark.parametrize("dead", [0, 1])
def test_when_a_process_dies_the_others_stop_within_a_minute(
    dead: int, config: Config, folder: Path, tmp_path: Path
) -> None:
    endless = change(config, training={"steps": 1_000_000})
    run = tmp_path / f"dead-{dead}"
    program = train(endless, folder, run, processes=2, devices=2)
    program.wait_until(lambda: bool(list_steps(run)))
    started = time.monotonic()
    os.kill(program.find_processes()[dead], signal.SIGKILL)
    assert program.end() != 0
    assert time.monotonic() - started < 60
    assert f"[{dead}] exited {128 + signal.SIGKILL}\n" in program.messages
    # Launchers start a run again after any status but 2, which says that a new start is of no use.
    assert re.search(rf"\[{1 - dead}\] exited (?!2\n)\d+", program.messages)
    assert re.search(
        rf"\[{1 - dead}\] .*(heartbeat|closed|disconnected|died)", program.messages, re.I
    )
    assert list_steps(run)
