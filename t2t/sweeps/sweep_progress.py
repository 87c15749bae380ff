"""Shows the progress of runs: bars on a terminal, otherwise a log line for each event."""

import logging
import sys
import time
from pathlib import Path
from typing import Any

import tqdm

from t2t.evaluation.saved_evaluations import load_evaluation
from t2t.storage.growing_files import measure_growth
from t2t.sweeps.sweep_directory import find_score
from t2t.sweeps.sweep_rows import Run
from t2t.training.run_directory import read_metrics

_log = logging.getLogger(__name__)

_BAR = "|{bar:20}| {percentage:3.0f}% {desc}{postfix}"


class Progress:
    """The progress of one run."""

    def __init__(self, workdir: Path, run: Run, measure: str, place: int):
        """Creates the bar, in line `place` of those at the bottom of the terminal."""
        self._workdir, self._run, self._measure = workdir, run, measure
        self._version = 0  # size of metrics.jsonl when it was last read
        self._bar = tqdm.tqdm(
            desc=run.name,
            total=run.config.training.steps,
            bar_format=_BAR,
            postfix="waiting",
            position=place,
            dynamic_ncols=True,
            disable=not sys.stderr.isatty(),
        )
        if find_score(workdir, run).exists():
            self.finish()

    def close(self) -> None:
        """Closes the bar and leaves it on the screen."""
        self._bar.close()

    def begin(self, stage: str) -> None:
        """Reports that a stage begins, and starts its clock."""
        self.report(stage)
        if self._bar.disable:
            return
        if metrics := self._read_new():
            self._bar.n = metrics[-1]["step"]
        self._bar.start_t, self._bar.initial = time.time(), self._bar.n
        self._bar.set_postfix_str("starting and compiling" if stage == "training" else stage)

    def report(self, event: str) -> None:
        """Reports an event."""
        self._bar.bar_format = _BAR
        self._bar.set_postfix_str(event)
        if self._bar.disable:
            _log.info("%s: %s", self._run.name, event)

    def update(self) -> None:
        """Moves the bar to the last step in the metrics, and shows the time.

        The time is that since the stage began and, in training, an estimate of the time left.
        """
        bar, steps = self._bar, self._run.config.training.steps
        if bar.disable:
            return
        if metrics := self._read_new():
            bar.n = metrics[-1]["step"]
            losses = [line["train/loss"] for line in metrics if "train/loss" in line]
            shown = f"{losses[-1]:.3f}" if losses and losses[-1] is not None else "not finite"
            bar.set_postfix_str(f"training, loss {shown}", refresh=False)
        clock = ", {elapsed}<{remaining}" if bar.initial < bar.n < steps else ", {elapsed}"
        bar.bar_format = _BAR + clock
        bar.refresh()

    def _read_new(self) -> list[dict[str, Any]]:
        """Reads the metrics of the run; empty if their file is as it was at the last call."""
        path = self._workdir / self._run.name / "metrics.jsonl"
        version = measure_growth(path)
        if version == self._version:
            return []
        self._version = version
        return read_metrics(path.parent)

    def finish(self) -> None:
        """Reports that the run is finished, with its score."""
        self._bar.n = self._run.config.training.steps
        result = load_evaluation(find_score(self._workdir, self._run)).result
        score = result["measures"].get(self._measure)  # none of references without spaces
        self.report(f"finished, {self._measure} {score['value']:.2f}" if score else "finished")
