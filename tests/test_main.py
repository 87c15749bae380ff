"""The command `t2t NAME`, which starts a program from any folder."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from t2t.runtime.command_line import INTERRUPTED
from tests import programs

ROOT = Path(__file__).parents[1]
PROGRAMS = {path.stem for path in (ROOT / "t2t").glob("[!_]*.py")}


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs `t2t WORD ...` in this folder, as if t2t were installed."""
    return programs.run("t2t", *words, folder=folder)


def test_programs_are_listed_with_what_they_do(tmp_path: Path) -> None:
    done = call(tmp_path)
    assert call(tmp_path, "--help").stdout == done.stdout
    assert (done.returncode, done.stderr) == (0, "")
    listed = [line.split(maxsplit=1) for line in done.stdout.splitlines() if line[:2] == "  "]
    summaries = {name: summary for name, *(summary,) in listed[:-1]}
    assert summaries.keys() == PROGRAMS
    assert summaries["train"] == "Trains a model"
    assert listed[-1] == [str(ROOT / "configs")]


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("; ".join(f"import t2t.{name}" for name in PROGRAMS), {"jax", "numpy", "sacrebleu"}),
        ("import t2t.__main__; t2t.__main__.describe_usage()", {"jax", "absl", "t2t.train"}),
        ("import t2t.api.train_run", {"t2t.decoding", "t2t.evaluation.measures", "t2t.model.rnn"}),
    ],
)
def test_programs_wait_for_no_import_that_they_do_not_need(code: str, heavy: set[str]) -> None:
    code += "; import sys; print(*sys.modules)"
    done = programs.run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert heavy & set(done.stdout.split()) == set()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("trian", "perhaps train"),
        ("__main__", "`t2t --help` lists them"),
    ],
)
def test_unknown_program_is_refused_with_the_nearest(
    tmp_path: Path, name: str, advice: str
) -> None:
    done = call(tmp_path, name)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"t2t {name}: no such program; {advice}")


def test_program_is_the_same_process_with_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is replaced, so signals reach the program and its exit status is returned."""
    started: list[tuple[str, list[str]]] = []

    def stop(path: str, words: list[str]) -> None:
        started.append((path, words))
        raise SystemExit(INTERRUPTED)

    monkeypatch.setattr(os, "execv", stop)
    monkeypatch.delitem(sys.modules, "t2t.__main__", raising=False)  # other tests import it
    monkeypatch.setattr(sys, "argv", ["/usr/bin/t2t", "train", "--workdir=a b"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("t2t", run_name="__main__")
    assert ended.value.code == INTERRUPTED
    assert started == [(sys.executable, [sys.executable, "-m", "t2t.train", "--workdir=a b"])]


PLUGIN = """
import optax
from t2t.config.variants import register

@register("training.schedule", "mine")
def mine(training, d_model):
    raise SystemExit("the schedule of this folder")
"""

RECIPE = """
from t2t.config import Config, DataConfig, TrainingConfig

def get_config():
    return Config(plugins=("plugin_here",), training=TrainingConfig(schedule="mine"))
"""


def test_recipes_and_plugins_of_the_current_folder_are_found(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "base.py").write_text(RECIPE)
    (tmp_path / "plugin_here.py").write_text(PLUGIN)
    done = call(tmp_path, "plan", "--config=configs/base.py", "--topology=cpu:1")
    assert "the schedule of this folder" in done.stderr, done.stderr
