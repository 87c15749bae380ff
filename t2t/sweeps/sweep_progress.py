"""Shows the progress of all runs: bars on a terminal, otherwise a log line for each event."""

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tqdm

from t2t.evaluation.saved_evaluations import load_evaluation
from t2t.storage.growing_files import measure_growth
from t2t.sweeps.sweep_directory import find_score
from t2t.sweeps.sweep_rows import Run
from t2t.training.run_directory import read_metrics

_log = logging.getLogger(__name__)


class Progress:
    """The progress bars of a sweep's runs."""

    def __init__(self, workdir: Path, runs: Sequence[Run], measure: str):
        """Creates a bar for each run, and reports those that are already finished."""
        self._workdir, self._measure = workdir, measure
        self._versions: dict[str, int] = {}  # size of each metrics.jsonl when it was last read
        self._events: dict[str, str] = {}  # what each run that has begun does
        self._starts: dict[str, tuple[float, int]] = {}  # time and step at which its stage began
        self._bars = {
            run.name: tqdm.tqdm(
                desc=run.name,
                total=run.config.training.steps,
                bar_format="|{bar:20}| {percentage:3.0f}% {desc}{postfix}",
                position=place,
                dynamic_ncols=True,
                disable=not sys.stderr.isatty(),
            )
            for place, run in enumerate(runs)
        }
        for run in runs:
            self._bars[run.name].set_postfix_str("waiting")
            if find_score(workdir, run).exists():
                self.finish(run)

    def close(self) -> None:
        """Closes the bars and leaves them on the screen."""
        for bar in self._bars.values():
            bar.close()

    def begin(self, run: Run, stage: str) -> None:
        """Reports that a stage of a run begins, and starts its clock."""
        self.report(run, stage)
        bar, metrics = self._bars[run.name], self._read_new(run)
        bar.n = metrics[-1]["step"] if metrics else bar.n
        self._starts[run.name] = time.monotonic(), int(bar.n)
        self._events[run.name] = "starting and compiling" if stage == "training" else stage

    def report(self, run: Run, event: str) -> None:
        """Reports an event of a run."""
        bar = self._bars[run.name]
        bar.set_postfix_str(event)
        if bar.disable:
            _log.info("%s: %s", run.name, event)

    def update(self, run: Run) -> None:
        """Moves the bar of a run to the last step in its metrics, and shows its time."""
        bar = self._bars[run.name]
        if bar.disable:
            return
        if metrics := self._read_new(run):
            bar.n = metrics[-1]["step"]
            losses = [line["train/loss"] for line in metrics if "train/loss" in line]
            shown = f"{losses[-1]:.3f}" if losses and losses[-1] is not None else "not finite"
            self._events[run.name] = f"training, loss {shown}"
        bar.set_postfix_str(f"{self._events[run.name]}, {self._format_time(run)}")

    def _read_new(self, run: Run) -> list[dict[str, Any]]:
        """Reads the metrics of a run; empty if their file is as it was at the last call."""
        version = measure_growth(self._workdir / run.name / "metrics.jsonl")
        if version == self._versions.get(run.name, 0):
            return []
        self._versions[run.name] = version
        return read_metrics(self._workdir / run.name)

    def _format_time(self, run: Run) -> str:
        """Formats the time since the stage began and, in training, an estimate of the time left."""
        begun, first = self._starts[run.name]
        elapsed, step = time.monotonic() - begun, self._bars[run.name].n
        left = run.config.training.steps - step
        shown = tqdm.tqdm.format_interval(elapsed)
        if left and step > first:
            shown += f"<{tqdm.tqdm.format_interval(elapsed * left / (step - first))}"
        return str(shown)

    def finish(self, run: Run) -> None:
        """Reports that a run is finished, with its score."""
        bar = self._bars[run.name]
        bar.n = run.config.training.steps
        measures = load_evaluation(find_score(self._workdir, run)).result["measures"]
        if self._measure in measures:
            score = f", {self._measure} {measures[self._measure]['value']:.2f}"
        else:  # the references turned out to be without spaces
            score = ""
        self.report(run, f"finished{score}")
