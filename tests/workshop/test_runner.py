"""What runs when, with programs that take no time."""

import logging
import os
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from t2t.config.fields import ConfigError
from t2t.runtime.command_line import INTERRUPTED
from t2t.training.stop_request import STOPPED_EARLY
from t2t.workshop.pipeline_report import write_report
from t2t.workshop.records import RECORD, Record, plan_steps, read_record
from t2t.workshop.runner import Runner
from t2t.workshop.steps import STEPS, Step
from tests.full_disk import full_disk
from tests.workshop.short_programs import FAIL, TRAIN, ShortPrograms, make_steps, run


def read(workdir: Path, name: str) -> Record:
    record = read_record(workdir / STEPS / name)
    assert record
    return record


@pytest.mark.parametrize("workers", [1, 5])
def test_a_failed_step_keeps_only_its_dependants_from_running_and_is_tried_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    workers: int,
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    caplog.set_level(logging.INFO)
    (text := tmp_path / "text").write_text("a\n")
    steps = make_steps(text)
    ran, failures = run(steps, tmp_path, workers, translated=f"print('step 1'); {FAIL}")
    assert {*ran.split()} == {"other", "teacher", "translated"}
    assert failures == {"translated": "no space"}  # the last line, in the order of a terminal
    assert "translated: failed: no space" in caplog.messages
    workshop = ShortPrograms(steps, tmp_path)
    report = write_report(workshop, plan_steps(workshop))
    assert "- Not finished: translated (failed: no space), student (not begun)\n" in report
    page = (tmp_path / "report.md").read_text()
    assert re.search(r"\| translated \| translate +\| failed: no space +\|", page)
    assert re.search(r"\| student +\| export +\| not begun +\|", page)
    record = read(tmp_path, "translated")
    assert (record.finished, record.starts[0]["status"]) == ("", 1)
    assert run(steps, tmp_path) == ("translated student ", {})
    assert [start["status"] for start in read(tmp_path, "translated").starts] == [1, 0]
    assert read(tmp_path, "other").bytes > 0
    assert read(tmp_path, "other").sum_up("core_seconds") > 0


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import sys; sys.excepthook = lambda *a: print('ValueError: no\\n--\\nnote')\n1 / 0",
         "ValueError: no"),
        ("print('RuntimeError: a thread has ended\\nthe disk is full'); raise SystemExit(2)",
         "the disk is full"),
        ("raise SystemExit(3)", "exit status 3"),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("os.kill(os.getpid(), 40)", "killed by signal 40"),
        (f"raise SystemExit({STOPPED_EARLY})", ""),  # of a training, which is as it should be
    ],
)  # fmt: skip
def test_the_end_of_a_program_is_told_by_its_exception_or_status(
    tmp_path: Path, script: str, reason: str
) -> None:
    _, failures = run([Step("a", "train")], tmp_path, a=script)
    assert (failures.get("a", ""), read(tmp_path, "a").failure) == (reason, reason)


def test_program_that_crashes_is_started_a_second_time_and_no_third(tmp_path: Path) -> None:
    """XLA crashed in three of 140 steps of a sweep, in native code; each then ran to its end."""
    before = tmp_path / "before"
    crash = "os.kill(os.getpid(), 11)"
    first = f"exists = os.path.exists({str(before)!r}); open({str(before)!r}, 'w')\n"
    steps = [Step("a", "train"), Step("b", "train")]
    _, failures = run(steps, tmp_path, a=f"{first}if not exists: {crash}", b=crash)
    assert failures == {"b": "killed by SIGSEGV"}
    for name, statuses in {"a": [-11, 0], "b": [-11, -11]}.items():
        assert [start["status"] for start in read(tmp_path, name).starts] == statuses


SAVE = """
import signal, time
def save(*_):
    open(f"{place}.told", "w")
    while not os.path.exists(sent): time.sleep(0.01)
    open(place, "w")
    os._exit(75)
signal.signal(signal.SIGTERM, save)
open(f"{place}.up", "w")
time.sleep(600)
"""


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM] * 2], ids=["^C", "TERM"])
def test_who_is_interrupted_waits_until_the_programs_have_saved(
    tmp_path: Path, signals: list[signal.Signals]
) -> None:
    sent, places = tmp_path / "sent", {name: tmp_path / f"{name}.saved" for name in "ab"}

    def interrupt() -> None:
        for number, file in zip(signals, ("up", "told"), strict=False):
            while not all(Path(f"{place}.{file}").exists() for place in places.values()):
                time.sleep(0.05)
            os.kill(os.getpid(), number)
        time.sleep(0.2)  # who did not wait would end now
        sent.touch()

    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    scripts = {n: f"place, sent = {str(p)!r}, {str(sent)!r}{SAVE}" for n, p in places.items()}
    with pytest.raises(KeyboardInterrupt):
        run([Step(name, "train") for name in "abc"], tmp_path, 2, **scripts)
    signal.signal(signal.SIGTERM, previous)
    assert all(place.exists() for place in places.values())
    assert not (tmp_path / STEPS / "c").exists()
    for name in places:
        record = read(tmp_path, name)
        assert (record.failure, record.starts[0]["status"]) == ("", INTERRUPTED)
        assert record.sum_up("seconds") > 0


def test_a_step_that_another_process_has_finished_is_skipped(tmp_path: Path) -> None:
    workshop = ShortPrograms(steps := [Step("a", "train")], tmp_path)
    second = Runner(workshop, plan_steps(workshop), 1)
    run(steps, tmp_path)
    second.work(["a"])
    assert (tmp_path / "ran").read_text() == "a "


def test_what_lies_in_the_folder_of_another_step_is_replaced(tmp_path: Path) -> None:
    train = Step("a", "train", TRAIN)
    place = tmp_path / "a" / "evaluations" / "sweep.json"

    def make(split: str) -> list[Step]:
        flags = {"workdir": train, "split": split}
        return [train, Step("b", "evaluate", flags, output=f"{train}/evaluations/sweep.json")]

    assert run(make("test"), tmp_path)[0] == "a b "
    assert run(make("validation"), tmp_path, b=FAIL)[0] == "b "
    assert [*(tmp_path / "old").rglob(RECORD)] == [tmp_path / "old" / STEPS / "b.1" / RECORD]
    assert [*(tmp_path / "old").iterdir()] == [tmp_path / "old" / STEPS]
    place.write_text("of a program that was cut off")
    is_gone = f"assert not os.path.exists({str(place)!r})"
    assert run(make("validation"), tmp_path, b=is_gone) == ("b ", {})
    assert "validation" in place.read_text()


def test_a_training_that_goes_on_with_another_one_begins_with_it_again(tmp_path: Path) -> None:
    def make(width: int) -> list[Step]:
        flags = TRAIN | {"config.model.d_model": width}
        begin = Step("begin", "train", flags | {"until": 5}, "run")
        look = Step("look", "export", {"workdir": begin})
        return [begin, look, Step("run", "train", flags, after=("look",))]

    folder = str(tmp_path / "run")
    note = f"os.makedirs({folder!r}, exist_ok=True); open('{folder}/trained', 'a').write"
    own = {"begin": f"{note}('begin ')", "run": f"{note}('run ')"}
    assert run(make(16), tmp_path, 1, **own)[0] == "begin look run "
    assert run(make(32), tmp_path, 1, **own)[0] == "begin look run "
    assert (tmp_path / "run" / "trained").read_text() == "begin run "
    assert {each.name for each in (tmp_path / "old").iterdir()} == {"begin.1", "look.1", STEPS}
    shutil.rmtree(tmp_path / "run")
    assert run(make(32), tmp_path, 1, **own)[0] == "begin run "


def test_a_disk_that_fills_up_is_named_and_what_is_finished_stays(tmp_path: Path) -> None:
    steps = [Step("a", "train", {}), Step("b", "export", {"workdir": "{a}", "long": "x" * 9000})]
    written = f"{re.escape(str(tmp_path))} cannot be written: .*; the same command continues"
    with full_disk(9000), pytest.raises(ConfigError, match=written):
        run(steps, tmp_path)
    assert run(steps, tmp_path)[0] == "b "
