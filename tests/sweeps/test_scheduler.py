"""What is started when, with programs that take no time."""

import dataclasses
import importlib.util
import io
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from t2t.config.fields import Config, ConfigError
from t2t.config.files import complete_options, override, save_config
from t2t.runtime import child_programs
from t2t.runtime.child_programs import assign_resources, find_gpus, uses_tpu
from t2t.storage.atomic_files import make_folder
from t2t.storage.locks import lock
from t2t.sweeps.scheduler import Programs, RunProgress, sweep
from t2t.sweeps.sweep_directory import EvaluationProtocol
from t2t.sweeps.sweep_rows import Row, SweepRun, make_runs
from t2t.training.provenance import save_plugins
from t2t.training.run_directory import RunError
from t2t.training.stop_request import STOPPED_EARLY
from tests.evaluation.saved_evaluations import save, spoil

ROWS = [Row("base"), Row("one_head", {"model.num_heads": 1}), Row("small", {"model.d_ff": 8})]


@dataclasses.dataclass(frozen=True)
class ShortPrograms(Programs):
    """They print, write or fail at once; what is in `scripts` is done instead of training."""

    scripts: dict[str, str]  # by row

    def train(self, run: SweepRun) -> list[str]:
        return [sys.executable, "-c", self.scripts.get(run.row.name, "print('trained')")]

    def evaluate(self, run: SweepRun) -> list[str]:
        return ["cp", "-r", str(run.workdir.parent / "scored" / "evaluations"), str(run.workdir)]


@pytest.fixture
def runs(tmp_path: Path) -> list[SweepRun]:
    save(tmp_path / "scored", spoil(8), name="sweep")
    return make_runs(Config(), ROWS, tmp_path)[0]


def work(
    workdir: Path,
    runs: list[SweepRun],
    workers: int = 1,
    index: int | None = None,
    /,
    **scripts: str,
) -> bool:
    programs = ShortPrograms("recipe.py", {}, EvaluationProtocol("test", "last"), scripts)
    for run in runs:  # as training does
        make_folder(run.workdir)
        if not (run.workdir / "config.json").exists():
            save_config(run.config, run.workdir / "config.json")
    return sweep(workdir, programs, runs, workers, index)


def test_commands_are_what_a_user_would_type(tmp_path: Path) -> None:
    protocol = EvaluationProtocol("dev", "avg:5", "ter")
    programs = Programs("recipe.py:en-de", {"plugins": ("json", "re")}, protocol)
    rows = [Row("base"), Row("ema", {"training.ema_decay": 0.9}, checkpoint="ema")]
    base, run = make_runs(Config(plugins=("json", "re"), seed=7), rows, tmp_path)[0]
    assert " ".join(programs.train(run)[1:]) == (
        f"-m t2t.train --workdir={run.workdir} --config=recipe.py:en-de --config.plugins="
        "('json', 're') --config.training.ema_decay=0.9 --config.seed=7 --allow_unused"
    )
    assert " ".join(programs.evaluate(run)[1:]) == (
        f"-m t2t.evaluate --workdir={run.workdir} --split=dev --checkpoint=ema "
        f"--measures=default,ter --plugins=json,re --output={run.score}"
    )
    assert "--checkpoint=avg:5" in programs.evaluate(base)


@pytest.mark.parametrize("workers", [1, 5])
def test_failed_row_is_told_and_does_not_stop_the_others(
    tmp_path: Path,
    runs: list[SweepRun],
    workers: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    caplog.set_level("INFO")
    fault = "print('step 1'); exit('step 3: loss is not finite')"
    assert not work(tmp_path, runs, workers, one_head=fault)
    assert [run.score.exists() for run in runs] == [True, False, True]
    reason = "training failed: step 3: loss is not finite"
    assert runs[1].failure.read_text() == f"{reason}\n"
    assert f"one_head-seed0: {reason}" in caplog.messages
    assert "small-seed0: finished, bleu " in caplog.text


@pytest.mark.usefixtures("runs")
def test_several_workers_take_the_longest_runs_first(tmp_path: Path) -> None:
    """The two longest wait for each other, and the others fail if one of these has not begun."""
    rows = [*ROWS, Row("long", {"training.steps": 200_000}), Row("deep", {"model.num_layers": 8})]
    begin = "import os, time; from os.path import exists\n"
    places = {name: str(tmp_path / name) for name in ("long", "deep")}
    all_begun = f"all(map(exists, {[*places.values()]}))"
    scripts = {row.name: f"{begin}exit(not {all_begun})" for row in ROWS} | {
        name: f"{begin}open({place!r}, 'w')\nwhile not {all_begun}: time.sleep(0.01)"
        for name, place in places.items()
    }
    assert work(tmp_path, make_runs(Config(), rows, tmp_path)[0], 2, **scripts)


def test_terminal_shows_the_steps_of_a_run(
    runs: list[SweepRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "40")
    progress = RunProgress(runs[0], "bleu", 0)
    progress.begin("training")
    metrics = runs[0].workdir / "metrics.jsonl"
    metrics.parent.mkdir()
    metrics.write_text('{"step": 1000, "train/loss": 2}\n')
    progress.update()
    progress.close()
    assert re.search(r"base-seed0: +1%.* 1000/\d+ .*, training, loss 2\.000\]", terminal.getvalue())


def test_end_of_a_program_is_told_by_its_exception_or_status(
    tmp_path: Path, runs: list[SweepRun]
) -> None:
    raising = "import sys; sys.excepthook = lambda *a: print('ValueError: no\\n---\\nnote')\n1 / 0"
    work(tmp_path, runs[:1], base=raising)
    assert runs[0].failure.read_text() == "training failed: ValueError: no\n"
    work(tmp_path, runs[:1], base="import os; os.kill(os.getpid(), 9)")
    assert "killed by SIGKILL" in runs[0].failure.read_text()
    work(tmp_path, runs[:1], base=f"exit({STOPPED_EARLY})")  # no failure
    assert runs[0].score.exists()


def test_row_trained_with_an_edited_recipe_has_failed(tmp_path: Path, runs: list[SweepRun]) -> None:
    # The trainer chooses the dtype that auto stands for, so that is no edit.
    for run, changes in ((runs[0], {}), (runs[1], {"model.d_ff": 8, "data.directory": "/else"})):
        run.workdir.mkdir()
        config = override(run.config, {"model.dtype": "mixed", **changes})
        save_config(config, run.workdir / "config.json")
    work(tmp_path, runs)
    assert runs[1].failure.read_text() == (
        "not as in sweep.json, since the recipe has changed: model.d_ff: 2048 -> 8\n"
    )
    assert not runs[1].score.exists()
    assert runs[0].score.exists()


def test_finished_rows_are_skipped_and_failed_ones_tried_again(
    tmp_path: Path, runs: list[SweepRun]
) -> None:
    assert work(tmp_path, runs, 1, 2)  # the last run, as a task of a job array
    assert [run.score.exists() for run in runs] == [False, False, True]
    work(tmp_path, runs, one_head="exit('no')")
    work(tmp_path, runs, base="exit('again')", small="exit('again')")
    assert all(run.score.exists() for run in runs)
    assert not any(run.failure.exists() for run in runs)


def test_two_sweeps_do_not_share_a_directory_but_tasks_of_an_array_do(
    tmp_path: Path, runs: list[SweepRun]
) -> None:
    place, refused = tmp_path / "lock", "another sweep is running in"
    with lock(place, shared=True):
        assert work(tmp_path, runs, 1, 2)
        with pytest.raises(RunError, match=refused):
            work(tmp_path, runs)
    with lock(place), pytest.raises(RunError, match=refused):
        work(tmp_path, runs, 1, 2)


def test_a_finished_row_whose_plugin_has_changed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "sweep_plugin.py").write_text("import sweep_helper\n")
    (helper := tmp_path / "sweep_helper.py").write_text("x = 1\n")
    save(tmp_path / "scored", spoil(8), name="sweep")
    runs, _ = make_runs(complete_options(Config(plugins=("sweep_plugin",))), ROWS[:1], tmp_path)
    make_folder(runs[0].workdir)
    save_plugins(runs[0].workdir, ["sweep_plugin"])
    assert work(tmp_path, runs)
    work(tmp_path, runs)
    assert caplog.text == ""
    helper.write_text("x = 2\n")
    work(tmp_path, runs)
    assert (
        "base-seed0: its plugins have changed since it was trained (sweep_helper.py)" in caplog.text
    )


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM] * 2], ids=["^C", "TERM"])
def test_interrupted_sweep_waits_until_its_programs_have_saved(
    tmp_path: Path, runs: list[SweepRun], signals: list[signal.Signals]
) -> None:
    saving = (
        "import pathlib, signal, time\n"
        "path, sent = pathlib.Path({path!r}), pathlib.Path({sent!r})\n"
        "def save(*_):\n"
        "    path.with_suffix('.told').touch()\n"
        "    while not sent.exists(): time.sleep(0.01)\n"
        "    path.touch(); exit(75)\n"
        "signal.signal(signal.SIGTERM, save)\npath.with_suffix('.up').touch()\n"
        "time.sleep(600)"
    )
    sent = tmp_path / "sent"
    places = {run.row.name: str(tmp_path / run.row.name) for run in runs[:2]}

    def interrupt() -> None:
        for number, file in zip(signals, ("up", "told"), strict=False):
            while not all(Path(f"{place}.{file}").exists() for place in places.values()):
                time.sleep(0.05)
            os.kill(os.getpid(), number)
        time.sleep(0.2)  # a sweep that did not wait would end now
        sent.touch()

    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        work(
            tmp_path, runs, 2,
            **{name: saving.format(path=place, sent=str(sent)) for name, place in places.items()},
        )  # fmt: skip
    signal.signal(signal.SIGTERM, previous)
    assert all(Path(place).exists() for place in places.values())
    assert not any(run.failure.exists() for run in runs)


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
