"""The progress of steps: bars on a terminal, otherwise a log line for each event."""

import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

import tqdm

from t2t.storage.growing_files import measure_growth
from t2t.training.run_directory import read_metrics
from t2t.workshop.steps import Step, Workshop

_log = logging.getLogger(__name__)


class StepProgress:
    """A bar for all steps, and one for the program of each worker."""

    def __init__(self, workshop: Workshop, workers: int):
        self._workshop, self._workers = workshop, workers
        self._is_shown = sys.stderr.isatty()
        self._bars: list[tqdm.tqdm[Any]] = []  # of all steps, and of each worker
        self._steps: dict[int, Step] = {}  # by worker
        self._versions: dict[int, int] = {}  # sizes of metrics.jsonl when they were last read

    @contextlib.contextmanager
    def show(self, count: int) -> Iterator[None]:
        """Shows the bars while the block runs `count` steps."""
        for place in range(self._workers + 1):
            bar: tqdm.tqdm[Any] = tqdm.tqdm(
                total=None if place else count,
                desc="" if place else "steps",
                position=place,
                leave=not place,
                dynamic_ncols=True,
                disable=not self._is_shown,
            )
            self._bars.append(bar)
        try:
            yield
        finally:
            for bar in reversed(self._bars):
                bar.close()
            self._bars.clear()

    def begin(self, worker: int, step: Step, remark: str) -> None:
        """Reports that a program begins, and starts its clock."""
        self._steps[worker], self._versions[worker] = step, 0
        self._tell(f"{step.name}: t2t.{step.program} ({remark})")
        bar = self._bars[worker + 1]
        bar.reset()
        bar.total = None  # of the training before
        bar.set_postfix_str("", refresh=False)
        bar.set_description_str(f"{step.name}, {step.program}", refresh=False)
        self.update(worker)
        bar.start_t, bar.initial = time.time(), bar.n

    def update(self, worker: int) -> None:
        """Moves the bar of a training to the last step in its metrics."""
        step, bar = self._steps[worker], self._bars[worker + 1]
        if not self._is_shown or step.program != "train":
            bar.refresh()
            return
        run = self._workshop.find_output(step.name)
        version = measure_growth(run / "metrics.jsonl")
        if version != self._versions[worker] and (metrics := read_metrics(run)):
            self._versions[worker] = version
            bar.total = json.loads((run / "config.json").read_text("utf-8"))["training"]["steps"]
            losses = [line["train/loss"] for line in metrics if "train/loss" in line]
            bar.n = metrics[-1]["step"]
            if losses:
                shown = "not finite" if losses[-1] is None else f"{losses[-1]:.3f}"
                bar.set_postfix_str(f"loss {shown}", refresh=False)
        bar.refresh()

    def end(self, worker: int, event: str) -> None:
        """Reports how a program has ended."""
        self._steps.pop(worker, None)
        self._tell(event)
        self._bars[0].update()

    def _tell(self, event: str) -> None:
        if self._is_shown:
            tqdm.tqdm.write(event, file=sys.stderr)
        else:
            _log.info("%s", event)
