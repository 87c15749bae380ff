"""What a run shows: each figure in each place, one step late, none lost, none that is not so."""

import io
import json
import logging
import math
import re
import shutil
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import pytest
from tensorboardX.proto import event_pb2

from t2t.config import Config, ConfigError, TrainingConfig
from t2t.config.variants import register
from t2t.storage import growing_files
from t2t.training.losses import REPORTED_FIGURES
from t2t.training.metric_writers import MetricWriter, check_writers, open_writers
from t2t.training.report import Report
from t2t.training.run_directory import RunError
from t2t.training.step import Metrics


def make_metrics(
    loss: float = 2.0, tokens: int = 80, *, skipped: int = 0, in_a_row: int = 0, **figures: float
) -> Metrics:
    """Makes the metrics of 100 positions, where half of the tokens are predicted.

    `figures` are means over these.
    """
    return Metrics(
        loss=jnp.asarray(loss),
        predicted=jnp.asarray(tokens / 2),
        tokens=jnp.asarray(tokens),
        padding=jnp.asarray(100 - tokens),
        gradient_norm=jnp.asarray(0.5),
        learning_rate=jnp.asarray(0.25),
        skipped=jnp.asarray(skipped),
        skipped_in_a_row=jnp.asarray(in_a_row),
        auxiliary={name: jnp.asarray(mean * tokens / 2) for name, mean in figures.items()},
    )


def make_report(
    workdir: Path,
    writers: Mapping[str, MetricWriter] | None = None,
    start_step: int = 0,
    every: int = 2,
    last: int = 100,
) -> Report:
    training = TrainingConfig(steps=last, log_every=every, max_nonfinite_steps=3)
    return Report(workdir, training, start_step, writers)


def read_lines(workdir: Path) -> list[dict[str, Any]]:
    """What `metrics.jsonl` says, as strict JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = (workdir / "metrics.jsonl").read_text()
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def read_events(workdir: Path) -> list[tuple[int, str, float]]:
    """(step, name, value) of the scalars as TensorBoard shows them.

    The start of a log hides what earlier ones have of its step and later ones.
    """
    scalars: list[tuple[int, str, float]] = []
    for path in sorted((workdir / "tensorboard").iterdir()):
        data, position = path.read_bytes(), 0
        while position < len(data):
            (length,) = struct.unpack_from("<Q", data, position)
            start = position + 12  # behind the length and its checksum
            event = event_pb2.Event.FromString(data[start : start + length])
            if event.session_log.status == event_pb2.SessionLog.START:
                scalars = [scalar for scalar in scalars if scalar[0] < event.step]
            scalars += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
            position = start + length + 4
    return scalars


def report_steps(workdir: Path, *metrics: Metrics, **options: Any) -> list[dict[str, Any]]:
    """Reports the metrics of steps 1, 2, ...; returns the lines of `metrics.jsonl`."""
    report = make_report(workdir, **options)
    for step, each in enumerate(metrics, start=1):
        report.add(step, each)
    report.flush()
    report.close()
    return read_lines(workdir)


def test_every_figure_is_in_the_file_and_in_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time in a pause does not count, apart from the seconds of compiling."""
    # 10.0: start; 12.5, 15.0 and 80.0: reads; 70.0: all is compiled; 75.0: end of a pause.
    clock = iter([10.0, 10.5, 11.0, 11.0, 12.5, 12.5, 15.0, 70.0, 75.0, 80.0])
    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: next(clock))
        report = make_report(tmp_path, every=3)
        with report.waiting():
            pass
        report.add(1, make_metrics(loss=3.0, tokens=60, own=1.0))
        with report.waiting():
            pass
        report.add(2, make_metrics(loss=2.0, tokens=90, own=2.0))
        with report.paused():
            report.note_compiled()
        report.add(3, make_metrics(loss=4.0, tokens=50, own=3.0))
        report.flush()
    report.validation(3, {"loss": 1.5, "perplexity": 4.5, "bleu": 30.0})
    report.close()
    train, validation = read_lines(tmp_path)
    figures = {
        "train/loss": (3 * 60 + 2 * 90 + 4 * 50) / 200,
        "train/learning_rate": 0.25,
        "train/gradient_norm": 0.5,
        "train/tokens_per_second": 200 / 10,
        "train/padding_share": 1 - 200 / 300,
        "train/data_wait_share": 2 / 10,
        "train/skipped": 0,
        "train/compile_seconds": 60.0,
    }
    assert {*figures} == {f"train/{name}" for name in REPORTED_FIGURES}
    figures["train/own"] = (1 * 60 + 2 * 90 + 3 * 50) / 200
    scores = {"validation/loss": 1.5, "validation/perplexity": 4.5, "validation/bleu": 30.0}
    assert abs(train["time"] - validation["time"]) < 60
    assert train == pytest.approx({"step": 3, "time": train["time"]} | figures)
    assert validation == {"step": 3, "time": validation["time"]} | scores
    events = read_events(tmp_path)
    assert {step for step, _, _ in events} == {3}
    assert {name: value for _, name, value in events} == pytest.approx(figures | scores)


class UnderWay:
    """The loss of a step that is still being computed."""

    def is_ready(self) -> bool:
        return False

    def __float__(self) -> float:
        return 2.0


def test_data_that_comes_while_a_step_is_at_work_is_not_waited_for(tmp_path: Path) -> None:
    report, done = make_report(tmp_path, every=1), jax.block_until_ready(make_metrics())
    under_way = make_metrics()._replace(loss=cast(jax.Array, UnderWay()))
    for step, metrics in enumerate([done, under_way, done], start=1):
        with report.waiting():
            time.sleep(0.01)
        report.add(step, metrics)
    report.flush()
    report.close()
    shares = [line["train/data_wait_share"] for line in read_lines(tmp_path)]
    # Batch 2 came when step 1 was done, batch 3 while step 2 was at work.
    assert [share > 0 for share in shares] == [True, False, False]


def test_step_is_read_when_the_next_is_under_way_and_none_is_lost(tmp_path: Path) -> None:
    report = make_report(tmp_path, last=5)
    seen = []
    for step in range(1, 6):
        report.add(step, make_metrics(loss=step))
        seen.append(len(read_lines(tmp_path)) if (tmp_path / "metrics.jsonl").exists() else 0)
    assert seen == [0, 0, 1, 1, 2]
    report.flush()
    report.flush()
    report.close()
    lines = read_lines(tmp_path)
    assert [(line["step"], line["train/loss"]) for line in lines] == [(2, 1.5), (4, 3.5), (5, 5)]


def test_skipped_step_is_said_and_counts_neither_in_the_loss_nor_in_shares(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A figure that is not a number is null."""
    steps = [(1, [5, 0]), (2, [5, 0]), (0, [1, 3]), (0, [3, 3]), (1, [9, 0]), (0, [1, 9])]
    empty = make_metrics(0.0, 0, skipped=7)._replace(auxiliary={"share": jnp.asarray([5, 0])})
    lines = report_steps(
        tmp_path,
        *(
            make_metrics(loss=math.nan if in_a_row else 2.0, skipped=7, in_a_row=in_a_row)._replace(
                auxiliary={"share": jnp.asarray(counts)}
            )
            for in_a_row, counts in steps
        ),
        empty,
        make_metrics(skipped=7),
    )
    said = [message for message in caplog.messages if message.startswith("step ")]
    assert said == [
        *(f"step {step} skipped: loss or gradient is not finite" for step in (1, 2, 5)),
        "step 7 skipped: its batch has no token to predict",
    ]
    assert [(line["train/loss"], line["train/skipped"]) for line in lines] == [
        (None, 7), (2.0, 7), (2.0, 7), (2.0, 7),
    ]  # fmt: skip
    shares = [[line.get(f"train/share/{i}") for i in (0, 1)] for line in lines]
    assert shares == [[None, None], [0.4, 0.6], [0.1, 0.9], [None, None]]
    assert [name for _, name, _ in read_events(tmp_path)].count("train/share/1") == 2


class Memory:
    """A writer that keeps the losses, until its server is away."""

    def __init__(self, away: int = 0) -> None:
        self.losses: list[tuple[int, str, float]] = []
        self.away, self.closed = away, 0

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        if step == self.away:
            raise ConnectionError("no route to host")
        self.losses += [(step, n, value) for n, value in figures.items() if n.endswith("loss")]

    def close(self) -> None:
        self.closed += 1


def test_each_figure_is_once_everywhere_after_a_kill(tmp_path: Path) -> None:
    """What came after the last checkpoint is dropped where that can be done."""
    memory = Memory()
    report = make_report(tmp_path, {"memory": memory}, every=1)
    for step in range(1, 9):
        report.add(step, make_metrics(loss=step))
        if step == 5:
            report.flush()
            report.validation(5, {"loss": 0.5})
    report.close()  # step 8 was not read: a kill would leave no more
    (events,) = (tmp_path / "tensorboard").iterdir()
    events.rename(events.with_name("events.out.tfevents.1.earlier"))
    report = make_report(tmp_path, {"memory": memory}, start_step=5, every=1)
    for step in range(6, 10):
        report.add(step, make_metrics(loss=10 * step))
    report.close()
    train = [(step, "train/loss", float(step)) for step in range(1, 8)]
    validation, last = (5, "validation/loss", 0.5), (8, "train/loss", 80.0)
    assert memory.losses == [*train[:5], validation, *train[5:], last]
    shown = [each for each in read_events(tmp_path) if each[1].endswith("loss")]
    again = [(step, "train/loss", 10.0 * step) for step in (6, 7, 8)]
    assert shown == [*train[:5], validation, *again]
    assert memory.closed == 2
    assert [line["step"] for line in read_lines(tmp_path)] == [1, 2, 3, 4, 5, 5, 6, 7, 8]


def test_error_of_a_registered_writer_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writers = {"away": Memory(away=2), "memory": Memory()}
    report_steps(tmp_path, *3 * [make_metrics()], writers=writers, every=1)
    steps = [[step for step, *_ in memory.losses] for memory in writers.values()]
    assert steps == [[1, 3], [1, 2, 3]]
    assert caplog.messages == ["the writer away left out step 2: ConnectionError: no route to host"]


def test_registered_writer_waits_until_a_bucket_has_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill would lose the line there, and training would write it again."""
    (tmp_path / "bucket").mkdir()
    monkeypatch.setattr(growing_files, "is_bucket", lambda path: path.name == "bucket")
    (tmp_path / "bucket" / "tensorboard").mkdir()
    monkeypatch.setattr(growing_files, "upload", shutil.copy)
    memory = Memory()
    report = make_report(tmp_path / "bucket", {"memory": memory}, every=1)
    report.add(1, make_metrics())
    report.add(2, make_metrics())
    assert memory.losses == []
    monkeypatch.setattr(growing_files, "INTERVAL", 0.0)
    report.validation(1, {"loss": 0.5})
    assert [step for step, *_ in memory.losses] == [1, 1]
    report.close()
    assert [line["step"] for line in read_lines(tmp_path / "bucket")] == [1, 1]


@pytest.mark.usefixtures("own_variants")
def test_writers_are_opened_by_name_and_left_out_with_a_warning_if_they_cannot_be(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(error: BaseException) -> None:
        raise error

    register("training.writer", "away")(lambda *_: fail(ConnectionError("no route")))
    register("training.writer", "no key")(lambda *_: fail(SystemExit("no key")))
    register("training.writer", "memory")(lambda config, workdir: Memory())
    register("training.writer", "list")(lambda config, workdir: [])
    opened = open_writers(["away", "memory", "no key", "memory"], Config(), Path("run"))
    assert [*opened] == ["memory"]
    start = "the writer {} cannot be opened, so it gets nothing: {}"
    assert caplog.messages == [
        start.format("away", "ConnectionError: no route"),
        start.format("no key", "SystemExit: no key"),
    ]
    with pytest.raises(
        ConfigError, match=r"--writers=wandb is unknown; .*: away, no key, memory, list; "
    ):
        check_writers(["wandb"])
    with pytest.raises(ConfigError, match="--writers=tensorboard is always written; leave it out"):
        check_writers(["tensorboard"])
    with pytest.raises(ConfigError, match=r"'list': .* returned list; expected \(Config, workdir"):
        open_writers(["list"], Config(), Path("run"))


@pytest.mark.parametrize(
    ("end", "kept"),
    [(end, 3) for end in ('{"step": 4, "tr', '{"loss": 2}\n', "[4]\n", "\0\0\0", "\n")]
    + [('{"step": 4}', 4)],  # it only lacks its end
)
def test_damaged_line_is_dropped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, end: str, kept: int
) -> None:
    whole = "".join(json.dumps({"step": step, "train/loss": 1.0}) + "\n" for step in (1, 2, 3))
    (tmp_path / "metrics.jsonl").write_text(whole + end)
    make_report(tmp_path, start_step=5).close()
    assert [line["step"] for line in read_lines(tmp_path)] == [1, 2, 3, 4][:kept]
    dropped = [f"{tmp_path}/metrics.jsonl, line 4: dropped, since it is damaged"]
    assert caplog.messages == (dropped if kept == 3 else [])


def test_terminal_shows_a_bar_with_the_figures_and_the_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        patch.setenv("COLUMNS", "120")
        patch.setenv("LINES", "40")
        report = make_report(tmp_path, start_step=40)
        for step in range(41, 45):
            report.add(step, make_metrics())
        report.flush()
        report.close()
    shown = terminal.getvalue().split("\r")[-1]
    for part in ("44/100", "<", "loss 2.000", "rate 2.50e-01", "tokens/s", "padding 20%"):
        assert part in shown


def test_log_file_gets_lines_instead_of_a_bar(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    report_steps(tmp_path, make_metrics(own=0.5), make_metrics(own=1.0))
    assert re.fullmatch(
        r"step 2/100: loss 2\.000, own 0\.750, rate 2\.50e-01, gradient norm 0\.5, \d+ tokens/s, "
        r"\S+ s/step, \d+:\d\d:\d\d left",
        caplog.messages[0],
    )


def test_run_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    report = make_report(tmp_path)
    (tmp_path / "metrics.jsonl").mkdir()  # in the way
    with pytest.raises(RunError, match=r"cannot be written: .* from the last checkpoint"):
        report.validation(1, {"loss": 1.0})
    report.close()
    with pytest.raises(RunError, match="cannot be written"):
        make_report(tmp_path)
