"""Settings of JAX: those refused, the platform that is chosen, and where programs are kept."""

import importlib.metadata
import importlib.util
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

import t2t
from t2t.config.fields import ConfigError
from t2t.runtime import jax_settings
from t2t.runtime.jax_settings import (
    CACHE_VARIABLE,
    KEPT_DAYS,
    check_precision,
    enable_compilation_cache,
    explain_jax_error,
    has_gpu,
    has_tpu,
    read_generator,
    skip_absent_accelerators,
)
from tests import programs
from tests.programs import make_environment
from tests.tiny_training import STEPS, make_config, read_state, write_recipe

UNABLE = "Unable to initialize backend"
X64 = "JAX_ENABLE_X64=1: t2t computes in 32 bits or fewer; unset it\n"


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        ("t2t.doctor", []),
        ("t2t.train", ["--config=configs/quickstart.py", "--workdir=run"]),
        ("t2t.translate", ["--workdir=run"]),
        ("t2t.evaluate", ["--workdir=run"]),
    ],
)
def test_64_bits_are_refused(program: str, flags: list[str]) -> None:
    environment = make_environment(JAX_ENABLE_X64="1")
    assert programs.refuse(program, *flags, environment=environment) == X64


def test_64_bits_are_refused_in_a_notebook(tmp_path: Path) -> None:
    with jax.enable_x64(True), pytest.raises(ConfigError, match=r"jax_enable_x64.*32 bits"):
        t2t.load(tmp_path)
    check_precision()


@pytest.mark.parametrize("environment", [{}, {"SLURM_JOB_ID": "3"}])  # the second: after ssh
def test_several_processes_need_a_launcher(environment: dict[str, str]) -> None:
    command = "t2t.doctor", "--distributed"
    message = programs.refuse(*command, environment=make_environment(**environment))
    assert message.startswith("--distributed: no launcher started this process; start it with")
    assert "--coordinator" in message


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        (
            "JAX_PLATFORMS",
            "tpu",
            RuntimeError(f"{UNABLE} 'tpu': no libtpu. (set JAX_PLATFORMS='')"),
            f"JAX_PLATFORMS=tpu: {UNABLE} 'tpu': no libtpu; pip install -e '.[tpu]', or unset "
            "JAX_PLATFORMS",
        ),
        ("JAX_PLATFORMS", "", RuntimeError(f"{UNABLE} 'cuda': no"), f"{UNABLE} 'cuda': no"),
        ("JAX_PLATFORMS", "cpu", AssertionError(), None),  # here are devices: another error
        ("JAX_PLATFORMS", "cpu", RuntimeError("a fault"), None),
        (
            "JAX_DEFAULT_PRNG_IMPL",
            "dice",
            ValueError('Invalid value "dice" for JAX flag jax_default_prng_impl'),
            "JAX_DEFAULT_PRNG_IMPL=dice is no value that JAX knows; unset it",
        ),
    ],
)
def test_error_that_a_variable_causes_names_it(
    name: str,
    value: str,
    error: Exception,
    message: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(name, value)
    assert explain_jax_error(error) == message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("JAX_PLATFORMS=cuda", "JAX finds no such device; pip install -e '.[cuda]', or unset"),
        ("JAX_PLATFORMS=cpus", "Unable to initialize backend 'cpus': "),
        ("JAX_ENABLE_X64=2", "is no value that JAX knows; unset it"),
        ("JAX_DEFAULT_PRNG_IMPL=dice", "is no value that JAX knows; unset it"),
    ],
)
def test_doctor_names_the_variable(setting: str, message: str) -> None:
    name, value = setting.split("=")
    done = programs.run_python("-m", "t2t.doctor", environment=os.environ | {name: value})
    *of_jax, own = done.stderr.splitlines()  # JAX says why an installed plugin finds no driver
    assert done.returncode == 2
    assert not of_jax or "jax._src" in of_jax[0], done.stderr
    assert own.startswith(setting)
    assert message in own


def test_generator_is_read_as_jax_reads_it() -> None:
    assert read_generator({"JAX_THREEFRY_PARTITIONABLE": "true"}) == read_generator({})
    assert read_generator({"JAX_DEFAULT_PRNG_IMPL": "rbg"}) != read_generator({})


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


OPTIONS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache folder of a user who has not set the environment variable."""
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setattr(jax_settings, "CACHE_FOLDER", tmp_path / "a" / "xla")
    monkeypatch.setattr(jax_settings, "_program_folder", None)
    before = {name: jax.config.values[name] for name in OPTIONS}
    yield tmp_path / "a" / "xla"
    for name, value in before.items():
        jax.config.update(name, value)


def test_programs_are_kept_in_a_folder_of_the_user(folder: Path) -> None:
    enable_compilation_cache()
    assert jax.config.values["jax_compilation_cache_dir"] == str(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("other", ["", "elsewhere"])
def test_environment_is_obeyed(folder: Path, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, other)
    before = jax.config.values["jax_compilation_cache_dir"]
    enable_compilation_cache()
    assert jax.config.values["jax_compilation_cache_dir"] == before
    assert not folder.exists()


def test_folder_that_cannot_be_written_is_only_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.parent.write_text("in the way")
    before = jax.config.values["jax_compilation_cache_dir"]
    enable_compilation_cache()
    assert jax.config.values["jax_compilation_cache_dir"] == before
    (message,) = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert message == (
        f"{folder} cannot be written (Not a directory), so each start compiles again; "
        f"set {CACHE_VARIABLE} to another folder"
    )


def test_program_that_nobody_asks_for_any_more_is_removed(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, days in (("old-cache", KEPT_DAYS + 1), ("new-cache", KEPT_DAYS - 1), ("other", 999)):
        (folder / name).touch()
        then = time.time() - days * 24 * 3600
        os.utime(folder / name, (then, then))
    enable_compilation_cache()
    assert sorted(path.name for path in folder.iterdir()) == ["new-cache", "other"]


@pytest.mark.slow
def test_program_from_the_folder_trains_as_a_fresh_one(tmp_path: Path) -> None:
    write_recipe(make_config(tmp_path), tmp_path / "recipe.py")
    states, kept = [], []
    for name, cache in (("none", ""), ("cold", None), ("warm", None)):
        environment = os.environ | {"HOME": str(tmp_path), "XLA_FLAGS": "", CACHE_VARIABLE: ""}
        if cache is None:
            del environment[CACHE_VARIABLE]
        flags = f"--config={tmp_path}/recipe.py", f"--workdir={tmp_path / name}"
        done = programs.run_python("-m", "t2t.train", *flags, environment=environment)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        assert "machine" not in done.stderr  # as in XLA's warning about another CPU
        states.append(read_state(tmp_path / name, STEPS))
        found = tmp_path.glob(".cache/t2t/xla/jit_train_step-*-cache")
        kept.append(sorted(path.name for path in found))
    assert kept[0] == []
    assert kept[1] == kept[2] != []
    for fresh, cold, warm in zip(*states, strict=True):
        np.testing.assert_array_equal(fresh, cold)
        np.testing.assert_array_equal(fresh, warm)
