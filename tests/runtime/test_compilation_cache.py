"""Where compiled programs are kept, for how long, and that they compute the same results."""

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from t2t.runtime import jax_settings
from t2t.runtime.jax_settings import CACHE_VARIABLE, KEPT_DAYS, enable_compilation_cache
from tests import programs
from tests.tiny_training import STEPS, make_config, read_state, write_recipe

OPTIONS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache folder of a user who has not set the environment variable."""
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setattr(jax_settings, "CACHE_FOLDER", tmp_path / "a" / "xla")
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
