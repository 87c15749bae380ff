"""Cores, GPUs and TPUs of programs that run at the same time."""

import importlib.util
import os
from pathlib import Path

import pytest

from t2t.config.fields import ConfigError
from t2t.runtime import child_programs
from t2t.runtime.child_programs import assign_resources, find_gpus, uses_tpu


def test_workers_share_gpus_and_cores_and_no_tpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_programs, "CPUS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {4, 5, 6})
    machine = {"CUDA_VISIBLE_DEVICES": "0,2,3", "X": "y"}
    assert assign_resources(0, 1, machine) == (set(), machine)
    assert assign_resources(0, 2, machine) == ({4, 6}, {"CUDA_VISIBLE_DEVICES": "0,3", "X": "y"})
    assert assign_resources(1, 2, machine) == ({5}, {"CUDA_VISIBLE_DEVICES": "2", "X": "y"})
    cpu = {"JAX_PLATFORMS": "cpu"}
    for number, siblings in ((4, "4-5"), (5, "4-5"), (6, "6-7")):  # two threads of a core
        (tmp_path / f"cpu{number}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{number}" / "topology" / "thread_siblings_list").write_text(siblings)
    assert [assign_resources(worker, 2, cpu)[0] for worker in range(2)] == [{4, 5}, {6}]
    assert [assign_resources(worker, 3, cpu)[0] for worker in range(3)] == [{4}, {5}, {6}]
    with pytest.raises(ConfigError, match="--workers=4 is more than the 3 GPUs"):
        assign_resources(0, 4, machine)
    tpu = {"JAX_PLATFORMS": "tpu,cpu"}
    assert assign_resources(0, 1, tpu) == (set(), tpu)
    with pytest.raises(ConfigError, match=r"--workers=2: every process claims .* use --workers=1"):
        assign_resources(0, 2, tpu)
    assert find_gpus({**machine, "JAX_PLATFORMS": "cpu"}) == []
    assert find_gpus({**machine, "JAX_PLATFORMS": ""}) == ["0", "2", "3"]
    assert find_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == []


def test_tpu_is_found_by_its_devices_and_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "libtpu" or None)
    assert not uses_tpu({}, tmp_path)
    (tmp_path / "accel0").touch()
    assert uses_tpu({"JAX_PLATFORMS": ""}, tmp_path)
    assert not uses_tpu({"JAX_PLATFORMS": "cuda,cpu"}, tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not uses_tpu({}, tmp_path)
