"""Settings of JAX: those refused, the platform that is chosen, and where programs are kept."""

import importlib.metadata
import importlib.util
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import jax
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
    find_xla_flag,
    has_gpu,
    has_tpu,
    read_generator,
    skip_absent_accelerators,
)
from tests import programs
from tests.programs import make_environment

UNABLE = "Unable to initialize backend"


def test_64_bits_are_refused_by_programs_and_in_a_notebook(tmp_path: Path) -> None:
    environment = make_environment(JAX_ENABLE_X64="1")
    message = programs.refuse("t2t.evaluate", "--workdir=run", environment=environment)
    assert message == "JAX_ENABLE_X64=1: t2t computes in 32 bits or fewer; unset it\n"
    with jax.enable_x64(True), pytest.raises(ConfigError, match=r"jax_enable_x64.*32 bits"):
        t2t.load(tmp_path)
    check_precision()


def test_several_processes_need_a_launcher() -> None:
    environment = make_environment(SLURM_JOB_ID="3")  # as after ssh
    command = "t2t.train", "--config=configs/quickstart.py", "--workdir=unused", "--distributed"
    message = programs.refuse(*command, environment=environment)
    assert message.startswith("--distributed: no launcher started this process; start it with")
    assert "--coordinator" in message


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (
            "tpu",
            RuntimeError(f"{UNABLE} 'tpu': no libtpu. (set JAX_PLATFORMS='')"),
            f"JAX_PLATFORMS=tpu: {UNABLE} 'tpu': no libtpu; pip install -e '.[tpu]', or unset "
            "JAX_PLATFORMS",
        ),
        ("", RuntimeError(f"{UNABLE} 'cuda': no"), f"{UNABLE} 'cuda': no"),
        ("cpu", AssertionError(), None),  # here are devices: another error
    ],
)
def test_error_that_a_variable_causes_names_it(
    value: str, error: Exception, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", value)
    assert explain_jax_error(error) == message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("JAX_PLATFORMS=cuda", "JAX finds no such device; pip install -e '.[cuda]', or unset"),
        ("JAX_PLATFORMS=cpus", "Unable to initialize backend 'cpus': "),
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


def test_devices_are_found_by_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda name: None)
        for device in ("null", "nvidia0", "dxg", "accel0", "vfio/0", "vfio/vfio"):
            folder = tmp_path / device.replace("/", "-")
            (folder / "vfio").mkdir(parents=True)
            (folder / device).touch()
            found[device] = has_gpu(folder), has_tpu(folder)
    assert [device for device, (gpu, _) in found.items() if gpu] == ["nvidia0", "dxg"]
    assert [device for device, (_, tpu) in found.items() if tpu] == ["accel0", "vfio/0"]
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert has_gpu(tmp_path)  # by its driver


@pytest.mark.parametrize(
    ("plugins", "present", "platforms"),
    [
        (["xla_cuda12"], [], "cpu"),
        ([], ["libtpu"], "cpu"),
        ([], [], None),  # nothing that JAX could try
        (["xla_cuda12"], ["gpu"], None),
        ([], ["libtpu", "tpu"], None),
        (["xla_cuda12", "other"], [], None),
    ],
)
def test_cpu_is_chosen_only_for_devices_that_are_absent(
    monkeypatch: pytest.MonkeyPatch, plugins: list[str], present: list[str], platforms: str | None
) -> None:
    points = [importlib.metadata.EntryPoint(name, "", "jax_plugins") for name in plugins]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in present or None)
    monkeypatch.setattr(jax_settings, "has_gpu", lambda: "gpu" in present)
    monkeypatch.setattr(jax_settings, "has_tpu", lambda: "tpu" in present)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    skip_absent_accelerators()
    assert os.environ["JAX_PLATFORMS"] == "cuda"  # what the user chose stays
    monkeypatch.delenv("JAX_PLATFORMS")
    skip_absent_accelerators()
    assert os.environ.pop("JAX_PLATFORMS", None) == platforms


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
    monkeypatch.setattr(jax_settings, "program_folder", None)
    before = {name: jax.config.values[name] for name in OPTIONS}
    yield tmp_path / "a" / "xla"
    for name, value in before.items():
        jax.config.update(name, value)


def test_programs_are_kept_in_a_folder_of_the_user_until_nobody_asks_for_them(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, days in (("old-cache", KEPT_DAYS + 1), ("new-cache", KEPT_DAYS - 1), ("other", 999)):
        (folder / name).touch()
        then = time.time() - days * 24 * 3600
        os.utime(folder / name, (then, then))
    enable_compilation_cache()
    assert jax.config.values["jax_compilation_cache_dir"] == str(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["new-cache", "other"]


def test_environment_is_obeyed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "elsewhere")
    before = jax.config.values["jax_compilation_cache_dir"]
    enable_compilation_cache()
    assert jax.config.values["jax_compilation_cache_dir"] == before
    assert not folder.exists()


@pytest.mark.parametrize(
    ("content", "value"),
    [("\n --xla_a=1\n--xla_a='2'", "2"), ("# none\n--xla_a=3", None), ("--xla_ab=4", None)],
)
def test_flags_of_xla_are_read_from_the_file_that_the_variable_names(
    content: str, value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As text they are in the key of JAX's cache; what is no flag there would name another file."""
    (file := tmp_path / "flags").write_text(content)
    monkeypatch.setenv("XLA_FLAGS", str(file))
    monkeypatch.setenv(CACHE_VARIABLE, "")
    assert find_xla_flag("xla_a") == value
    enable_compilation_cache()
    assert os.environ["XLA_FLAGS"] == ("" if content.startswith("#") else content)
    assert find_xla_flag("xla_a") == value


def test_folder_that_cannot_be_written_is_only_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.parent.write_text("in the way")
    before = jax.config.values["jax_compilation_cache_dir"]
    enable_compilation_cache()
    assert jax.config.values["jax_compilation_cache_dir"] == before
    assert f"{folder} cannot be written (Not a directory), so each" in caplog.text
