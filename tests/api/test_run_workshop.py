"""What is asked of steps: to run all or some, by several workers or processes."""

import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from t2t.api.run_workshop import carry_out
from t2t.config.fields import ConfigError
from t2t.runtime.command_line import INTERRUPTED
from t2t.storage.locks import lock
from t2t.workshop.requests import WorkshopRequest
from t2t.workshop.steps import Step
from tests.workshop.short_programs import FAIL, TRAIN, ShortPrograms

TEACHER = Step("teacher", "train", TRAIN)
STEPS = [TEACHER, Step("int8", "export", {"workdir": TEACHER}), Step("alone", "train", TRAIN)]


def work(
    workdir: Path,
    steps: list[Step],
    workers: int = 1,
    *,
    only: Collection[str] = (),
    report: bool = False,
    scripts: Mapping[str, str] = {},
) -> tuple[int, str]:
    """Returns the exit status, and the steps that ran."""
    (log := workdir / "ran").unlink(missing_ok=True)
    workshop = ShortPrograms(steps, workdir, scripts)
    request = WorkshopRequest(workers=workers, report=report)
    status = carry_out(request, workshop, lambda _: "REPORT", only=only, jobs={}, arguments={})
    return status, log.read_text() if log.exists() else ""


def test_several_workers_take_the_longest_chains_first(tmp_path: Path) -> None:
    """The two longest wait for each other, and the others fail if one of these has not begun."""
    steps = [Step(f"short{number}", "train", TRAIN) for number in range(3)]
    steps += [Step("long", "train", TRAIN | {"config.training.steps": 2001})]
    first = Step("first", "train", TRAIN)
    steps += [first, Step("next", "train", TRAIN | {"init_from": first})]
    places = {name: tmp_path / f"{name}.begun" for name in ("long", "first")}
    all_begun = f"all(map(os.path.exists, {[*map(str, places.values())]}))"
    scripts = {step.name: f"assert {all_begun}" for step in steps} | {
        name: f"import time; open({str(place)!r}, 'w')\nwhile not {all_begun}: time.sleep(0.01)"
        for name, place in places.items()
    }
    assert work(tmp_path, steps, 2, scripts=scripts)[0] == 0


def test_some_steps_run_alone_when_those_that_they_need_are_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="int8 needs the step teacher, which is not finished"):
        work(tmp_path, STEPS, only=["int8"])
    with pytest.raises(ConfigError, match="--only=ant8 is no step; the steps are teacher, int8, "):
        work(tmp_path, STEPS, only=["ant8"])
    assert work(tmp_path, STEPS, only=["teacher", "teacher"]) == (0, "teacher ")
    assert work(tmp_path, STEPS, only=["teacher", "int8"]) == (0, "int8 ")
    assert capsys.readouterr().out == ""
    assert work(tmp_path, STEPS) == (0, "alone ")
    assert capsys.readouterr().out == "REPORT\n"


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no steps yet; leave out --report to begin"):
        work(tmp_path / "work", STEPS, report=True)
    assert not (tmp_path / "work").exists()


def test_two_do_not_share_a_folder_but_tasks_of_an_array_do_if_not_a_step(tmp_path: Path) -> None:
    refused = f"another process runs the steps of {re.escape(str(tmp_path))}, or a program of one"
    with lock(tmp_path / "lock", shared=True):
        with (
            lock(tmp_path / "steps" / "alone.lock"),
            pytest.raises(ConfigError, match="step alone"),
        ):
            work(tmp_path, STEPS, only=["alone"])
        assert work(tmp_path, STEPS, only=["alone"]) == (0, "alone ")
        with pytest.raises(ConfigError, match=refused):
            work(tmp_path, STEPS)
    with lock(tmp_path / "lock"), pytest.raises(ConfigError, match=refused):
        work(tmp_path, STEPS, only=["teacher"])


def test_the_reason_of_a_failure_stands_below_the_report(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert work(tmp_path, STEPS, scripts={"teacher": FAIL}) == (1, "teacher alone ")
    assert caplog.messages[-1] == "step teacher failed: no space"
    stopped = {"teacher": f"raise SystemExit({INTERRUPTED})"}  # by a launcher, say
    assert work(tmp_path, STEPS, scripts=stopped)[0] == INTERRUPTED
    assert "step teacher failed" not in caplog.messages[-1]
