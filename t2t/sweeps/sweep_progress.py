"""Shows the progress of all runs: bars on a terminal, otherwise a log line for each event."""

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tqdm

from t2t.evaluation.saved_evaluations import load_evaluation
from t2t.storage.paths import is_bucket
from t2t.sweeps.sweep_directory import find_score
from t2t.sweeps.sweep_rows import Run
from t2t.training.run_directory import read_metrics

_log = logging.getLogger(__name__)

_BAR = "|{bar:20}| {percentage:3.0f}% {desc}{postfix}"
BUCKET_SECONDS = 60  # between two looks at the metrics of a run in a bucket


class Progress:
    """The progress bars of a sweep's runs."""

    def __init__(self, workdir: Path, runs: Sequence[Run], measure: str):
        """Creates a bar for each run, and reports those that are already finished."""
        self._workdir, self._measure = workdir, measure
        self._versions: dict[str, int] = {}  # size of each metrics.jsonl when it was last read
        self._bars = {
            run.name: tqdm.tqdm(
                desc=run.name,
                total=run.config.training.steps,
                bar_format=_BAR,
                postfix="waiting",
                position=place,
                dynamic_ncols=True,
                disable=not sys.stderr.isatty(),
            )
            for place, run in enumerate(runs)
        }
        for run in runs:
            if find_score(workdir, run).exists():
                self.finish(run)

    def close(self) -> None:
        """Closes the bars and leaves them on the screen."""
        for bar in self._bars.values():
            bar.close()

    def begin(self, run: Run, stage: str) -> None:
        """Reports that a stage of a run begins, and starts its clock."""
        self.report(run, stage)
        bar = self._bars[run.name]
        if bar.disable:
            return
        step = bar.n
        if metrics := self._read_new(run):
            step = metrics[-1]["step"]
        bar.reset()
        bar.initial = bar.n = step
        bar.set_postfix_str("starting and compiling" if stage == "training" else stage)

    def report(self, run: Run, event: str) -> None:
        """Reports an event of a run."""
        bar = self._bars[run.name]
        bar.bar_format = _BAR
        bar.set_postfix_str(event)
        if bar.disable:
            _log.info("%s: %s", run.name, event)

    def update(self, run: Run) -> None:
        """Moves the bar of a run to the last step in its metrics, and shows its time.

        The time is that since the stage began and, in training, an estimate of the time left.
        """
        bar = self._bars[run.name]
        if bar.disable:
            return
        if metrics := self._read_new(run):
            bar.n = metrics[-1]["step"]
            losses = [line["train/loss"] for line in metrics if "train/loss" in line]
            shown = f"{losses[-1]:.3f}" if losses and losses[-1] is not None else "not finite"
            bar.set_postfix_str(f"training, loss {shown}", refresh=False)
        is_training = bar.initial < bar.n < run.config.training.steps
        bar.bar_format = _BAR + (", {elapsed}<{remaining}" if is_training else ", {elapsed}")
        bar.refresh()

    def _read_new(self, run: Run) -> list[dict[str, Any]]:
        """Reads the metrics of a run; empty if their file is as it was at the last call.

        In a bucket, where each look is a request, it is read once a minute.
        """
        path = self._workdir / run.name / "metrics.jsonl"
        if is_bucket(path):
            version = int(time.monotonic() // BUCKET_SECONDS)
        else:
            version = path.stat().st_size if path.exists() else 0
        if version == self._versions.get(run.name, 0):
            return []
        self._versions[run.name] = version
        return read_metrics(self._workdir / run.name)

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
