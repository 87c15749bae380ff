"""The command `t2t NAME`, which starts a program from any folder."""

import subprocess
from pathlib import Path

import pytest

from tests import programs
from tests.programs import ROOT

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
        ("; ".join(f"import t2t.{x}" for x in sorted(PROGRAMS)), {"jax", "numpy", "sacrebleu"}),
        ("import t2t; t2t.train, t2t.evaluate, t2t.evaluate_output, t2t.compare", {"jax", "numpy"}),
        ("import t2t.__main__; t2t.__main__.describe_usage()", {"jax", "absl", "t2t.train"}),
        ("import t2t.api.train_run", {"t2t.decoding", "t2t.evaluation.measure", "t2t.model.rnn"}),
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


PLUGIN = """
import os
from t2t.config.variants import register

@register("training.schedule", "mine")
def mine(training, d_model):
    raise SystemExit(f"the schedule of this folder in process {os.getpid()}")
"""

RECIPE = """
from t2t.config import Config, DataConfig, TrainingConfig

def get_config():
    return Config(plugins=("plugin_here",), training=TrainingConfig(schedule="mine"))
"""


def test_program_is_the_same_process_and_finds_what_is_in_the_current_folder(
    tmp_path: Path,
) -> None:
    """Signals thus reach the program, and its exit status is returned."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "base.py").write_text(RECIPE)
    (tmp_path / "plugin_here.py").write_text(PLUGIN)
    flags = f"--output={tmp_path}/a b.json", "--topology=cpu:1", "--config=configs/base.py"
    with programs.Program("t2t", "plan", *flags, folder=tmp_path) as program:
        assert program.wait() == 1
    assert f"the schedule of this folder in process {program.pid}" in program.stderr
