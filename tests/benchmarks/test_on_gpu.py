"""The command for machines with a GPU: its limits and table, and all of its steps in toy size."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks import on_gpu
from benchmarks.gpu_steps.results import Results
from benchmarks.gpu_steps.twins import TOY, Case, make_cases
from benchmarks.on_gpu import STEPS, Step
from t2t.ops.select_kernels import TEXTBOOK
from tests.conftest import ROOT

# Required packages that a machine for JAX has: by themselves, or since others require them.
INSTALLED = set(
    "jax flax optax orbax-checkpoint numpy jaxtyping sacrebleu scipy tabulate absl-py tqdm etils "
    "fsspec".split()
)
FAST, SLOW = Step("fast", 60, "a fast step"), Step("slow", 60, "a slow step")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Two steps in place of the real ones, the slow one without end; collects which were run."""
    ran: list[str] = []

    def run(command: list[str], log: Path, seconds: float, environment: Any) -> str:
        assert environment["JAX_PLATFORMS"] == "cpu"
        step, output = command[2].split(".")[-1], Path(command[3].removeprefix("--output="))
        ran.append(step)
        results = Results(output, ["first", "second"])
        for name in results.list_missing()[: 2 if step == "fast" else 1]:
            results.add(name, f"{log.name}, {seconds:.0f} s", figure=1)
        return "done" if step == "fast" else "stopped after 60 s"

    monkeypatch.setattr(on_gpu, "ROOT", tmp_path)  # without wheels
    monkeypatch.setattr(on_gpu, "STEPS", (FAST, SLOW))
    monkeypatch.setattr(on_gpu, "run_limited", run)
    return ran


def call(monkeypatch: pytest.MonkeyPatch, folder: Path, *flags: str) -> int:
    monkeypatch.setattr(sys, "argv", ["on_gpu", f"--out={folder}", "--dry_run", *flags])
    return on_gpu.main()


def test_later_call_does_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    assert call(monkeypatch, tmp_path, "--steps=slow") == 1
    assert "stopped after 60 s" in (tmp_path / "on_gpu.md").read_text("utf-8")
    assert call(monkeypatch, tmp_path) == 0  # not reached before, then the rest
    assert call(monkeypatch, tmp_path) == 0
    assert steps == ["slow", "fast", "slow"]
    found = json.loads((tmp_path / "on_gpu.json").read_text("utf-8"))
    assert [row["figure"] for row in found["steps"]["slow"]["rows"].values()] == [1, 1]


def test_time_limit_kills_a_program_and_all_that_it_started(tmp_path: Path) -> None:
    child, seconds = tmp_path / "child", 0.5
    command = ["sh", "-c", f"sleep 600 & echo $! > {child}; wait"]
    while not child.exists() or not child.read_text():
        end = on_gpu.run_limited(command, tmp_path / "log", seconds, os.environ)
        assert end == f"stopped after {seconds:.0f} s"
        seconds *= 2  # for a slow machine
    state, started = Path("/proc", child.read_text().strip(), "stat"), time.monotonic()
    while state.exists() and state.read_text().split()[2] != "Z":  # nobody may wait for it
        assert time.monotonic() - started < 300
        time.sleep(0.01)


def test_every_operation_with_a_twin_is_compared() -> None:
    cases: dict[str, Case] = {}
    jax.eval_shape(lambda: cases.update(make_cases(TOY)))  # compiles nothing
    compared = {case.operation for case in cases.values()}
    assert compared == {*TEXTBOOK}


def hide_packages(folder: Path) -> str:
    """A folder whose modules take the place of packages that a machine for JAX may lack."""
    wheels = (ROOT / "benchmarks" / "fetch_gpu_wheels.sh").read_text("utf-8")
    [fetched] = re.findall(r"^packages=\((.*)\)$", wheels, re.MULTILINE)
    requirements = (ROOT / "requirements.txt").read_text("utf-8")
    required = set(re.findall(r"^[\w-]+", requirements, re.MULTILINE))
    hidden = required - INSTALLED - set(fetched.split())
    assert {"matplotlib", "tensorflow-datasets"} <= hidden
    folder.mkdir()
    for name in (package.replace("-", "_") for package in hidden):
        error = f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n"
        (folder / f"{name}.py").write_text(error, "utf-8")
    return str(folder)


@pytest.mark.slow
def test_dry_run_does_every_step_with_the_packages_of_a_machine_for_jax(tmp_path: Path) -> None:
    flags = "--xla_backend_optimization_level=0"  # and one device, unlike other tests
    path = hide_packages(tmp_path / "hidden")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.on_gpu", "--dry_run", f"--out={tmp_path}"],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    found = json.loads((tmp_path / "on_gpu.json").read_text("utf-8"))["steps"]
    assert [(name, step["end"]) for name, step in found.items()] == [
        (step.name, "done") for step in STEPS
    ], done.stdout + done.stderr
    absent = {
        row["text"] for step in found.values() for row in step["rows"].values() if len(row) == 1
    }
    assert absent <= {
        "not reached: no --checkout",
        "not reached: PyTorch is not installed",
        "not reached: CTranslate2 is not installed",
    }
    assert found["resume"]["rows"]["no flag"]["different_at_60"] == 0
    for step in ("training", "resume"):
        assert {row["skipped"] for row in found[step]["rows"].values()} == {0}
    assert "failed" not in (tmp_path / "on_gpu.md").read_text("utf-8")
