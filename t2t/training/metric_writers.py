"""Writes figures to `metrics.jsonl`, TensorBoard, and registered writers such as W&B's.

Training opens them in its first process alone. A run that continues leaves each step once in each.
"""

import functools
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from t2t.config.fields import Config, ConfigError
from t2t.config.variants import CHOICES, call_variant, choices
from t2t.runtime.distributed import is_first
from t2t.storage.atomic_files import explain_write_errors, write_file
from t2t.storage.growing_files import GrowingFiles
from t2t.training.run_directory import RunError

_log = logging.getLogger(__name__)

# Whatever a client raises, such as without a network; some end the program without a key.
_FAILURES = Exception, SystemExit
FIELD = "training.writer"  # no field of the config: --writers of t2t.train


@runtime_checkable
class MetricWriter(Protocol):
    """Takes the figures of steps, in the order of the steps."""

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Writes the figures of a step by name, such as "train/loss"; some may not be finite."""

    def close(self) -> None:
        """Ends the log; called once, also if training is interrupted or fails."""


class MetricLog:
    """Writes figures to `metrics.jsonl`, to `tensorboard/`, and to registered writers.

    A line of `metrics.jsonl` has the time in seconds, and null for what is not finite.
    `tensorboard/` has an event file for each process.

    Registered writers get no figure twice, and only what `metrics.jsonl` keeps. So they need no
    memory of their own: in a bucket they wait for its upload, and after a kill, the figures that it
    had of the steps that are repeated are left out. An error of a writer is a warning, and training
    goes on.
    """

    def __init__(self, workdir: Path, start_step: int, writers: Mapping[str, MetricWriter]):
        """Drops the lines of steps after `start_step`, at which training continues.

        `writers` are the registered ones by name, which `close` closes.

        Raises:
            RunError: the run directory cannot be written; other methods raise it, too.
        """
        self._writers = writers
        self._waiting: list[tuple[int, dict[str, float]]] = []  # for the registered writers
        remedy = "then the same command continues from the last checkpoint"
        self._explain_errors = functools.partial(explain_write_errors, RunError, workdir, remedy)
        with self._explain_errors():
            self._files = GrowingFiles(workdir, "metrics.jsonl")
            self._lines = self._files.local / "metrics.jsonl"
            self._dropped = _drop_lines_after(self._lines, start_step)
            self._events = _open_events(self._files.local / "tensorboard", start_step)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Writes the figures of a step by name, such as "train/loss"."""
        # JSON has no NaN and no infinity.
        safe = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        with self._explain_errors():
            with self._lines.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"step": step, "time": time.time()} | safe) + "\n")
            for name, value in figures.items():
                self._events.write_event(
                    Event(step=step, wall_time=time.time(), summary=scalar(name, value))
                )
            self._events.flush()
        new = {n: value for n, value in figures.items() if (step, n) not in self._dropped}
        if new:
            self._waiting.append((step, new))
        if self._files.upload_when_due():
            self._pass_on()

    def flush(self) -> None:
        """Writes what a bucket lacks."""
        with self._explain_errors():
            self._files.upload()
        self._pass_on()

    def close(self) -> None:
        """As `flush`, and ends all logs."""
        with self._explain_errors():
            self._events.close()
            self._files.close()
        self._pass_on()
        for name, writer in self._writers.items():
            try:
                writer.close()
            except _FAILURES as error:
                _warn(name, "could not end its log", error)

    def _pass_on(self) -> None:
        """Gives registered writers what waits for them; `metrics.jsonl` has it where it stays."""
        for step, figures in self._waiting:
            for name, writer in self._writers.items():
                try:
                    writer.write(step, figures)
                except _FAILURES as error:
                    _warn(name, f"left out step {step}", error)
        self._waiting = []


def _open_events(folder: Path, start_step: int) -> EventsWriter:
    """Opens an event file; TensorBoard hides what earlier files have of later steps.

    Like tensorboardX's SummaryWriter(purge_step=start_step + 1), but written without its background
    thread. That thread dies if the disk is full for a moment; then a later `add_scalar`, or the end
    of the process, waits forever.
    """
    folder.mkdir(exist_ok=True)
    events = EventsWriter(str(folder / "events"))
    start = SessionLog(status=SessionLog.START)
    events.write_event(Event(step=start_step + 1, session_log=start))
    return events


def check_writers(names: Sequence[str]) -> None:
    """Raises `ConfigError` if no writer of a name is registered."""
    for name in names:
        if name in CHOICES[FIELD]:
            raise ConfigError(f"--writers={name} is always written; leave it out")
        if name not in choices(FIELD):
            known = ", ".join(choices(FIELD)[len(CHOICES[FIELD]) :]) or "none"
            raise ConfigError(
                f"--writers={name} is unknown; registered so far: {known}; name the module that "
                "registers it by --plugins, such as examples.writers.wandb_writer"
            )


def open_writers(names: Sequence[str], config: Config, workdir: Path) -> dict[str, MetricWriter]:
    """Opens registered writers (`check_writers`) by name; none but in the first process.

    One that raises an error, for example without a network, is left out with a warning.

    Raises:
        ConfigError: a writer is not as `EXTENSIBLE` says, or raises this error itself.
    """
    opened: dict[str, MetricWriter] = {}
    for name in dict.fromkeys(names if is_first() else ()):
        try:
            opened[name] = call_variant(
                FIELD, name, config, workdir, is_valid=lambda made: isinstance(made, MetricWriter)
            )
        except ConfigError:
            raise
        except _FAILURES as error:
            _warn(name, "cannot be opened, so it gets nothing", error)
    return opened


def _warn(name: str, failure: str, error: BaseException) -> None:
    _log.warning("the writer %s %s: %s: %s", name, failure, type(error).__name__, error)


def _drop_lines_after(path: Path, step: int) -> set[tuple[int, str]]:
    """Removes the lines of later steps, and damaged lines such as a half-written last one.

    Returns (step, name) of the figures of later steps.
    """
    if not path.exists():
        return set()
    kept, dropped = [], set()
    for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), start=1):
        try:
            figures = json.loads(line)
            if figures["step"] <= step:
                kept.append(f"{line}\n")
            else:
                dropped |= {(figures["step"], name) for name in figures}
        except (ValueError, TypeError, KeyError):
            _log.warning("%s, line %d: dropped, since it is damaged", path, number)
    write_file(path, "".join(kept))
    return dropped
