"""t2t.doctor: what it finds out about a machine."""

import importlib.metadata
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils

from configs import base
from t2t.api import machine_checks as checks
from t2t.api import package_checks
from t2t.config.fields import Config
from t2t.training import resume
from tests import programs


def test_healthy_machine_has_no_problem(tmp_path: Path) -> None:
    findings = dict(checks.examine(tmp_path / "run"))
    wrong = {name for name, finding in findings.items() if finding.problem}
    assert wrong <= {"disk", "bandwidth"}  # of this machine
    assert findings["process"].value.startswith("0 of 1, ")
    assert findings["devices"].value.startswith("8 here, 8 in all, cpu, mesh {'data': 8, ")
    assert findings["collective"].value.startswith("a sum over 8 devices in ")
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize(
    ("module", "last"),
    [("flax", "clocks"), pytest.param("jax", "machine", marks=pytest.mark.slow)],
)
def test_package_that_cannot_be_imported_is_a_finding(
    tmp_path: Path, module: str, last: str
) -> None:
    """As a version for another JAX, or another package of this name."""
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").write_text(
        'raise AttributeError("module jax\\nhas no attribute foo")\n'
    )
    done = programs.run_python("-m", "t2t.doctor", folder=tmp_path)
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stderr
    found = f"{module} cannot be imported (AttributeError: module jax has no attribute foo)"
    assert found in next(line for line in lines if line.startswith("imports: "))
    assert lines[-1].startswith(f"{last}: ")
    assert "Traceback" not in done.stderr


def test_packages_that_are_missing_or_of_a_foreign_version_are_findings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"jax": "0.11.3.dev1+local", "flax": "0.8", "optax": "0.3.0", "numpy": "2.1"}
    monkeypatch.setattr(package_checks, "_find_version", lambda name: versions.get(name, ""))
    required = ["jax>=0.10.2,<0.12  # a", "flax>=0.12.8,<0.13", "optax>=0.2,<0.3", "etils[x]>=1"]
    monkeypatch.setattr(package_checks, "list_requirements", lambda: [*required, "numpy>=2.1.0"])
    assert package_checks.find_unfit_versions().problem == (
        "flax 0.8 is none of flax>=0.12.8,<0.13, optax 0.3.0 is none of optax>=0.2,<0.3, "
        "etils is not installed: pip install -e ."
    )
    assert "jax 0.11.3.dev1+local, jaxlib (not installed)" in package_checks.find_versions().value


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("kind", ["", "causal_"])
def test_attention_that_fails_or_has_no_finite_gradients_is_noticed(
    kind: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attend(query: jax.Array, *_: Any, **__: Any) -> jax.Array:
        if fails:
            raise RuntimeError("no cuDNN\nat all")
        return query * jnp.nan

    monkeypatch.setattr(f"t2t.ops.select_kernels.fast_{kind}attention", attend)
    found = "causal: " + ("no cuDNN" if fails else "they are not finite")
    problem = checks.find_attention().problem
    assert problem.endswith(f"{found}: train with --config.model.kernels=textbook, and report it")
    assert problem.startswith("causal: ") == bool(kind)


def test_problems_are_printed_and_set_the_exit_status(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    flags = f"--workdir={tmp_path}/file/run", "--config=configs/quickstart.py"
    done = programs.run("t2t.doctor", *flags)
    assert done.returncode == 1
    wrong = [line.split(":")[0] for line in done.stdout.splitlines() if "WRONG" in line]
    assert wrong == ["disk"]


def test_bandwidth_says_how_long_a_checkpoint_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = checks.find_bandwidth(tmp_path, base.get_config(), size=2**20)
    assert re.match(r"writes \d+ MB/s, reads \d+ MB/s .* of 757 MB takes [\d.]+ s", finding.value)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "fsync", lambda file: time.sleep(0.2))
    slow = checks.find_bandwidth(tmp_path, size=2**20)
    assert slow.problem == "less than 10 MB/s: choose another disk, or raise checkpoints.every"


@pytest.mark.parametrize(
    ("free", "config", "value", "problem"),
    [
        (3, None, "3 GB free in ", ""),
        (11, base.get_config(), "11 GB free in .*; --config keeps 7 checkpoints of .*: fits", ""),
        (3, base.get_config(), ".*: does not fit", "2.3 GB too few: free some space"),
    ],
)
def test_disk_has_to_hold_the_checkpoints_that_a_recipe_keeps(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    config: Config | None,
    value: str,
    problem: str,
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=free * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    finding = checks.find_disk(tmp_path, config)
    assert re.match(value, finding.value)
    assert finding.problem.startswith(problem)
    assert bool(finding.problem) == bool(problem)


def test_accelerator_that_jax_does_not_use_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.write_program(tmp_path / "nvidia-smi", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checks.find_devices().problem == ""  # the CPU was chosen by JAX_PLATFORMS=cpu
    monkeypatch.delenv("JAX_PLATFORMS")
    assert "pip install -e '.[cuda]'" in checks.find_devices().problem


def test_versions_that_were_not_tested_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(package_checks.CONSTRAINTS.glob("python*.txt"))
    monkeypatch.setattr(package_checks, "CONSTRAINTS", tmp_path)
    assert package_checks.find_untested_versions().value.startswith(
        "all: scripts/constraints/ has no file for p"
    )
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    installed = importlib.metadata.version("jax")
    pins = (
        "# dated\njax==0.1\nnot-installed==1.0\nsetuptools==0.1\npytest==0.1\n"  # two are not t2t's
    )
    (tmp_path / f"{python}.txt").write_text(pins)
    value = package_checks.find_untested_versions().value
    before, _, command = value.partition("; to install tested ones: ")
    assert before == f"jax {installed} instead of 0.1"
    assert command.replace(python, "python3.13") in (programs.ROOT / "README.md").read_text("utf-8")
    (tmp_path / f"{python}-oldest.txt").write_text(f"jax=={installed}\n")
    assert package_checks.find_untested_versions().value == "none"
    # As after `pip install .`.
    monkeypatch.setattr(package_checks, "CONSTRAINTS", tmp_path / "nowhere")
    assert package_checks.find_untested_versions().value.startswith("unknown: scripts/constraints/")


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        ({"SLURM_NTASKS": "16", "SLURM_PROCID": "3"}, "SLURM started 16"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI started 4"),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, "Cloud TPU started 2"),
        ({}, ""),
        ({"SLURM_NTASKS": "8"}, ""),  # sbatch without srun
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, ""),
    ],
)
def test_processes_that_do_not_know_of_each_other_are_noticed(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], launcher: str
) -> None:
    monkeypatch.setattr(os, "environ", environment)
    told = f"{launcher} processes, and each works alone: add --distributed"
    assert checks.find_process().problem == (told if launcher else "")


def test_processes_with_fewer_devices_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "has_gpu", lambda: False)
    assert checks.find_shares() == ("8", "")
    monkeypatch.setattr(checks, "Counter", lambda indices: {0: 2, 1: 1})
    finding = checks.find_shares()
    assert finding.value == "1 to 2"
    assert "give all equally many" in finding.problem


@pytest.mark.parametrize("has_products", [True, False])
def test_dtype_of_a_new_run_is_named(monkeypatch: pytest.MonkeyPatch, has_products: bool) -> None:
    monkeypatch.setattr(resume, "multiplies_bfloat16", lambda: has_products)
    assert checks.find_dtype().value == ("mixed" if has_products else "float32")


@pytest.mark.parametrize(
    ("backend", "cores", "enough"), [("cpu", 1, True), ("gpu", 3, False), ("tpu", 8, True)]
)
def test_too_few_cores_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, cores: int, enough: bool
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8))
    monkeypatch.setattr(checks, "CPU_LIMIT", tmp_path / "cpu.max")
    checks.CPU_LIMIT.write_text("max 100000\n" if cores == 8 else f"{cores}00000 100000\n")
    finding = checks.find_cores()
    assert finding.value == f"{cores} for this process"
    assert (finding.problem == "") == enough
    assert enough or "sbatch --cpus-per-task=8" in finding.problem


@pytest.mark.parametrize(
    ("times", "apart", "good"),
    [([100, 350], "0.2", True), ([100, 9100, 100], "9.0", False), ([5, 2**30 - 1000], "1.0", True)],
)
def test_clocks_that_differ_are_noticed(
    monkeypatch: pytest.MonkeyPatch, times: list[int], apart: str, good: bool
) -> None:
    monkeypatch.setattr(multihost_utils, "sync_global_devices", lambda name: None)
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda now: np.array(times))
    finding = checks.find_clocks()
    assert finding.value == f"{apart} s apart"
    assert ("NTP" in finding.problem) != good


def test_slices_that_do_not_know_of_each_other_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert checks.find_slices() == ("1", "")
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "2")
    problem = checks.find_slices().problem
    assert problem.startswith("MEGASCALE_NUM_SLICES=2: the slices do not know of each other")
