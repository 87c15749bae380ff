"""The checks of processes, cores, clocks and slices: each problem is found, with its remedy."""

import jax
import pytest

from t2t.runtime import cluster_checks
from t2t.runtime.cluster_checks import (
    find_clocks,
    find_cores,
    find_process,
    find_shares,
    find_slices,
    judge_clocks,
    list_settings,
)


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        ({"SLURM_NTASKS": "16", "SLURM_PROCID": "3"}, "SLURM started 16"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI started 4"),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, "Cloud TPU started 2"),
    ],
)
def test_processes_that_do_not_know_of_each_other_are_noticed(
    environment: dict[str, str], launcher: str
) -> None:
    problem = find_process(environment).problem
    assert problem == f"{launcher} processes, and each works alone: add --distributed"


def test_one_process_by_itself_is_no_problem() -> None:
    assert find_process({}).problem == ""
    assert find_process({"SLURM_NTASKS": "8"}).problem == ""  # sbatch's variable, without srun
    assert find_process({"TPU_WORKER_HOSTNAMES": "localhost"}).problem == ""


def test_processes_with_fewer_devices_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_checks, "has_gpu", lambda: False)
    assert find_shares(jax.devices()) == ("devices per process", "8", "")
    monkeypatch.setattr(cluster_checks, "Counter", lambda indices: {0: 2, 1: 1})
    finding = find_shares(jax.devices())
    assert finding.value == "1 to 2"
    assert "give all equally many" in finding.problem


@pytest.mark.parametrize(
    ("backend", "cores", "enough"), [("cpu", 1, True), ("gpu", 3, False), ("tpu", 8, True)]
)
def test_too_few_cores_are_noticed(
    monkeypatch: pytest.MonkeyPatch, backend: str, cores: int, enough: bool
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    finding = find_cores(cores)
    assert finding.value == f"{cores} for this process"
    assert (finding.problem == "") == enough
    assert enough or "sbatch --cpus-per-task=8" in finding.problem


def test_clocks_of_one_process_agree() -> None:
    assert find_clocks() == ("clocks", "0.0 s apart", "")


@pytest.mark.parametrize(
    ("times", "apart", "good"),
    [([100, 350], "0.2", True), ([100, 9100, 100], "9.0", False), ([5, 2**30 - 1000], "1.0", True)],
)
def test_clocks_that_differ_are_noticed(times: list[int], apart: str, good: bool) -> None:
    finding = judge_clocks(times)
    assert finding.value == f"{apart} s apart"
    assert ("NTP" in finding.problem) != good


def test_slices_that_do_not_know_of_each_other_are_noticed() -> None:
    assert find_slices(jax.devices(), {}) == ("slices", "1", "")
    problem = find_slices(jax.devices(), {"MEGASCALE_NUM_SLICES": "2"}).problem
    assert problem.startswith("MEGASCALE_NUM_SLICES=2: the slices do not know of each other")


def test_settings_of_nccl_and_of_slices_are_listed() -> None:
    names = {"NCCL_DEBUG": "INFO", "MEGASCALE_SLICE_ID": "1", "XLA_FLAGS": "", "HOME": "/root"}
    assert list_settings(names) == ["MEGASCALE_SLICE_ID=1", "NCCL_DEBUG=INFO"]
