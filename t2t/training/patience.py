"""Early stopping: how long scores of validations have not improved.

Training counts its own validations (`checkpoints.patience`), and `t2t.watch` the checkpoints that
it scores. Both ask training to stop by `stop_request`.
"""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from t2t.config.fields import Config
from t2t.config.measures import translates
from t2t.runtime.distributed import is_first
from t2t.training.checkpoint import rank_steps
from t2t.training.run_directory import read_metrics
from t2t.training.stop_request import request_stop

_PREFIX = "validation/"  # of the names in metrics.jsonl


def count_stale(
    steps: Collection[int], best: int, translating: Collection[int], start: int
) -> int | None:
    """Counts the scored steps without a better score, after the best one.

    They count behind the first one that translates, and in a run that was extended behind `start`,
    where its schedule begins. None: no step translates yet.
    """
    if not translating:
        return None
    begin = max(best, start, min(translating))
    return len({step for step in steps if step > begin})


class Patience:
    """Asks training to stop after `checkpoints.patience` validations without a better score."""

    def __init__(self, config: Config, workdir: Path, start: int):
        """Reads the scores up to step `start`, at which training continues."""
        self._workdir, self._rules = workdir, config.checkpoints
        self._start, self._last = config.training.schedule_start, config.training.steps
        self._scores: dict[int, Mapping[str, Any]] = {}  # by step; None is not finite
        for line in read_metrics(workdir) if self._rules.patience and start else ():
            if line["step"] <= start:
                self._keep(line["step"], {k.removeprefix(_PREFIX): v for k, v in line.items()})

    def _keep(self, step: int, scores: Mapping[str, Any]) -> None:
        if self._rules.best_metric in scores:
            self._scores[step] = scores

    def add(self, step: int, scores: Mapping[str, float]) -> None:
        """Adds the scores of a validation; asks training to stop if its patience is at an end.

        Raises:
            RunError: the request cannot be written.
        """
        metric, patience = self._rules.best_metric, self._rules.patience
        self._keep(step, scores)
        if not patience or step not in self._scores or step >= self._last:
            return
        values = {n: _as_number(each[metric]) for n, each in self._scores.items()}
        best = rank_steps(values, metric)[0]
        translating = [
            n
            for n, each in self._scores.items()
            if metric == "loss" or translates({k: _as_number(v) for k, v in each.items()})
        ]
        stale = count_stale(values, best, translating, self._start)
        if stale is not None and stale >= patience and is_first():
            reason = (
                f"{stale} validations without a better {metric} than {values[best]:.4g} of step "
                f"{best} (checkpoints.patience={patience})"
            )
            request_stop(self._workdir, reason)


def _as_number(value: Any) -> float:
    return math.nan if value is None else value
