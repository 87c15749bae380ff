"""Programs start on the CPU without a word of packages whose devices are absent."""

import importlib.metadata
import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from t2t.runtime import jax_settings
from t2t.runtime.jax_settings import has_gpu, has_tpu, skip_absent_accelerators
from tests import programs


@pytest.mark.parametrize(
    ("device", "gpu", "tpu"),
    [
        ("null", False, False),
        ("nvidia0", True, False),
        ("nvidiactl", True, False),
        ("dxg", True, False),
        ("accel0", False, True),
        ("vfio/0", False, True),
        ("vfio/vfio", False, False),  # there without any device, too
    ],
)
def test_devices_are_found_by_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, gpu: bool, tpu: bool
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    (tmp_path / "vfio").mkdir()
    (tmp_path / device).touch()
    assert (has_gpu(tmp_path), has_tpu(tmp_path)) == (gpu, tpu)


def test_driver_of_nvidia_counts_as_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert has_gpu(tmp_path)


@pytest.mark.parametrize(
    ("plugins", "libtpu", "gpu", "tpu", "chosen", "platforms"),
    [
        (["xla_cuda12"], False, False, False, None, "cpu"),
        ([], True, False, False, None, "cpu"),
        ([], False, False, False, None, None),  # nothing that JAX could try
        (["xla_cuda12"], False, True, False, None, None),
        ([], True, False, True, None, None),
        (["xla_cuda12", "other"], False, False, False, None, None),
        (["xla_cuda12"], False, False, False, "cuda", "cuda"),
    ],
)
def test_cpu_is_chosen_only_for_devices_that_are_absent(
    monkeypatch: pytest.MonkeyPatch,
    plugins: list[str],
    libtpu: bool,
    gpu: bool,
    tpu: bool,
    chosen: str | None,
    platforms: str | None,
) -> None:
    points = [importlib.metadata.EntryPoint(name, "", "jax_plugins") for name in plugins]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: libtpu or None)
    monkeypatch.setattr(jax_settings, "has_gpu", lambda: gpu)
    monkeypatch.setattr(jax_settings, "has_tpu", lambda: tpu)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if chosen is not None:
        monkeypatch.setenv("JAX_PLATFORMS", chosen)
    skip_absent_accelerators()
    found = os.environ.pop("JAX_PLATFORMS", None)
    assert found == platforms


@pytest.mark.skipif(has_gpu() or has_tpu(), reason="there is an accelerator")
@pytest.mark.parametrize("program", ["doctor", "show --help"])
def test_programs_start_without_a_word(program: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    command = "-m", *f"t2t.{program}".split()
    result = programs.run_python(*command, environment=environment | {"XLA_FLAGS": ""})
    assert result.stderr == ""
    assert result.stdout
