"""Settings of JAX with which t2t does not work are one line with the remedy."""

import os
from pathlib import Path

import jax
import pytest

import t2t
from t2t.config.fields import ConfigError
from t2t.runtime.jax_settings import check_precision, explain_jax_error, read_generator
from tests import programs
from tests.programs import make_environment

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
