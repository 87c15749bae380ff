"""Jobs of launch/slurm.sh in the queue of a real SLURM."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 600  # seconds until a job that does not get further is a failure
JOB_NAME = "t2t-tests"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")


class State(NamedTuple):
    """The state that SLURM reports of a job, or of a task of an array."""

    name: str
    status: int
    restarts: int


class Job(NamedTuple):
    """A job, or a task of an array, and the file with its output."""

    number: str
    log: Path

    def look(self) -> State:
        text = call("scontrol", "show", "job", self.number)
        name, status, restarts = (
            re.findall(rf"\b{field}=(\w+)", text)[0]
            for field in ("JobState", "ExitCode", "Restarts")
        )
        return State(name, int(status), int(restarts))

    def wait_until(self, has_come: Callable[[State], bool]) -> State:
        """Waits until something is true of the job; that it never will be is a failure."""
        deadline = time.monotonic() + PATIENCE
        while not has_come(state := self.look()):
            if state.name in ENDED or time.monotonic() > deadline:
                pytest.fail(f"job {self.number} is {state}, with the output\n{self.read_log()}")
            time.sleep(0.5)
        return state

    def wait_for_end(self) -> State:
        return self.wait_until(lambda state: state.name in ENDED)

    def read_log(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def call(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def submit(folder: Path, *command: str, python: str = sys.executable, cwd: Path = ROOT) -> Job:
    """Submits launch/slurm.sh, with flags of sbatch before it and a program behind it."""
    flags = ["--parsable", f"--job-name={JOB_NAME}", "--cpus-per-task=1", f"--output={folder}/log"]
    one_device = os.environ["XLA_FLAGS"].replace("=8", "=1")
    done = subprocess.run(
        ["sbatch", *flags, *command],
        cwd=cwd,
        env=os.environ | {"PYTHON": python, "XLA_FLAGS": one_device},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return Job(done.stdout.strip(), folder / "log")


def submit_stub(folder: Path, text: str, *flags: str) -> Job:
    """Submits a job whose Python is a script of bash."""
    python = folder / "python"
    python.write_text(f"#!/usr/bin/env bash\nulimit -c 0\n{text}")
    python.chmod(0o755)
    script = str(ROOT / "launch" / "slurm.sh")
    return submit(
        folder, *flags, script, "t2t.sweep", "--workdir=a b", python=str(python), cwd=folder
    )


def split(array: Job, *tasks: int) -> list[Job]:
    return [Job(f"{array.number}_{task}", Path(f"{array.log}{task}")) for task in tasks]


def read_ends(log: str) -> dict[int, str]:
    """Reads how the tasks ended that did not end with status 0, from srun's messages."""
    ends: dict[int, str] = {}
    for tasks, end in re.findall(r"srun: error: \w+: tasks? ([\d,-]+): (.+)", log):
        for part in tasks.split(","):
            first, _, last = part.partition("-")
            ends |= dict.fromkeys(range(int(first), int(last or first) + 1), end)
    return ends
