"""Where figures go: `metrics.jsonl`, TensorBoard, and registered writers such as that of W&B.

Training opens them in its first process alone. A run that continues leaves each step once in each.
"""

import json
import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from t2t.config.fields import Config, ConfigError
from t2t.config.variants import CHOICES, call_variant, choices
from t2t.runtime.distributed import is_first
from t2t.storage.atomic_files import write_file

_log = logging.getLogger(__name__)

FIELD = "training.writer"  # no field of the config: --writers of t2t.train


@runtime_checkable
class MetricWriter(Protocol):
    """Takes the figures of steps, in the order of the steps."""

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Writes the figures of a step by name, such as "train/loss"; some may not be finite."""

    def close(self) -> None:
        """Ends the log; called once, also if training is interrupted or fails."""


class JsonLines:
    """`metrics.jsonl`: a line for each call, with the time in seconds; null is not finite.

    Attributes:
        dropped: (step, name) of the figures that an earlier process wrote of later steps.
    """

    def __init__(self, folder: Path, start_step: int):
        """Drops the lines of steps after `start_step`, at which training continues."""
        self._path = folder / "metrics.jsonl"
        self.dropped = _drop_lines_after(self._path, start_step)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Appends a line; JSON has no NaN and no infinity, which become null."""
        safe = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        line = json.dumps({"step": step, "time": time.time()} | safe) + "\n"
        with self._path.open("a", encoding="utf-8") as lines:
            lines.write(line)

    def close(self) -> None:
        """Does nothing: the file is closed after each line."""


class TensorBoard:
    """`tensorboard/`: a new event file for each process.

    Like tensorboardX's SummaryWriter(purge_step=start_step + 1), but written without its background
    thread. That thread dies if the disk is full for a moment; then a later `add_scalar`, or the end
    of the process, waits forever.
    """

    def __init__(self, folder: Path, start_step: int):
        """Opens the file; TensorBoard hides what earlier files have of later steps."""
        (folder / "tensorboard").mkdir(exist_ok=True)
        self._events = EventsWriter(str(folder / "tensorboard" / "events"))
        start = SessionLog(status=SessionLog.START)
        self._events.write_event(Event(step=start_step + 1, session_log=start))

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Appends an event for each figure."""
        for name, value in figures.items():
            self._events.write_event(
                Event(step=step, wall_time=time.time(), summary=scalar(name, value))
            )
        self._events.flush()

    def close(self) -> None:
        """Closes the file."""
        self._events.close()


class Forwarder:
    """Passes figures on to registered writers: none twice, and only what `metrics.jsonl` keeps.

    So a writer needs no memory of its own: after a kill, the figures that `metrics.jsonl` had of
    the steps that are repeated are left out. An error of a writer is a warning, and training goes
    on.
    """

    def __init__(
        self, writers: Mapping[str, MetricWriter], written: Collection[tuple[int, str]] = ()
    ):
        """`written` has (step, name) of figures that an earlier process passed on."""
        self._writers, self._written = writers, frozenset(written)
        self._waiting: list[tuple[int, dict[str, float]]] = []

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        """Holds the figures back until `send`."""
        new = {n: value for n, value in figures.items() if (step, n) not in self._written}
        if new and self._writers:
            self._waiting.append((step, new))

    def send(self) -> None:
        """Passes on what was added, once `metrics.jsonl` has it where it stays."""
        for line in self._waiting:
            self._call(f"left out step {line[0]}", "write", *line)
        self._waiting = []

    def close(self) -> None:
        """Sends the rest and closes the writers."""
        self.send()
        self._call("could not end its log", "close")

    def _call(self, failure: str, method: str, *arguments: Any) -> None:
        for name, writer in self._writers.items():
            try:
                getattr(writer, method)(*arguments)
            except Exception as error:  # whatever a client raises, such as without a network
                _log.warning("the writer %s %s: %s: %s", name, failure, type(error).__name__, error)


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
    """Opens registered writers by name; none but in the first process.

    Raises:
        ConfigError: there is no such writer, or it is not as `EXTENSIBLE` says.
    """
    check_writers(names)
    if not is_first():
        return {}
    return {
        name: call_variant(
            FIELD, name, config, workdir, is_valid=lambda made: isinstance(made, MetricWriter)
        )
        for name in dict.fromkeys(names)
    }


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
