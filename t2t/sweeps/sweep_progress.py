"""Shows the progress of all runs: bars on a terminal, otherwise a log line for each event."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import tqdm

from t2t.evaluation.saved_evaluations import load_evaluation
from t2t.sweeps.sweep_directory import find_score
from t2t.sweeps.sweep_rows import Run
from t2t.training.run_directory import read_metrics

_log = logging.getLogger(__name__)


class Progress:
    """The progress bars of a sweep's runs."""

    def __init__(self, workdir: Path, runs: Sequence[Run], measure: str):
        """Creates a bar for each run, and reports those that are already finished."""
        self._workdir, self._measure = workdir, measure
        self._sizes: dict[str, int] = {}  # size of each metrics.jsonl when it was last read
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
            if find_score(workdir, run).exists():
                self.finish(run)

    def close(self) -> None:
        """Closes the bars and leaves them on the screen."""
        for bar in self._bars.values():
            bar.close()

    def report(self, run: Run, event: str) -> None:
        """Reports an event of a run."""
        bar = self._bars[run.name]
        bar.set_postfix_str(event)
        if bar.disable:
            _log.info("%s: %s", run.name, event)

    def update(self, run: Run) -> None:
        """Moves the bar of a run to the last step in its metrics."""
        bar = self._bars[run.name]
        path = self._workdir / run.name / "metrics.jsonl"
        size = path.stat().st_size if path.exists() else 0
        if bar.disable or size == self._sizes.get(run.name, 0):
            return
        self._sizes[run.name] = size
        metrics = read_metrics(self._workdir / run.name)
        if metrics:
            bar.n = metrics[-1]["step"]
            losses = [line["train/loss"] for line in metrics if "train/loss" in line]
            shown = f"{losses[-1]:.3f}" if losses and losses[-1] is not None else "not finite"
            bar.set_postfix_str(f"training, loss {shown}")

    def finish(self, run: Run) -> None:
        """Reports that a run is finished, with its score."""
        bar = self._bars[run.name]
        bar.n = run.config.training.steps
        measures = load_evaluation(find_score(self._workdir, run)).result["measures"]
        self.report(run, f"finished, {self._measure} {measures[self._measure]['value']:.2f}")
