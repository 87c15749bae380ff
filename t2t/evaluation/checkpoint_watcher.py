"""Follows a run directory: scores its checkpoints, keeps the best one, tells training to stop.

What was scored is what lies in `evaluations/`, so a watch that was killed goes on where it was. All
that is its own lies in a folder, `evaluations/SPLIT-watch-...`:

    scores.jsonl   a line for each checkpoint, by step      best   a link to LABEL
    LABEL/         the best parameters so far, as a run directory: training may remove its own
"""

import json
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from t2t.config.files import load_config
from t2t.evaluation.saved_evaluations import Evaluation
from t2t.evaluation.scores import format_interval, make_measure
from t2t.model.interface import Params
from t2t.runtime.text_tables import format_table
from t2t.storage.atomic_files import atomic_path, write_file
from t2t.training.checkpoint import average_params, save_params
from t2t.training.early_stopping import find_path, read_stop_request, request_stop
from t2t.training.run_directory import (
    RunError,
    list_last_steps,
    list_regular_steps,
    list_steps,
    lock,
)

_log = logging.getLogger(__name__)

POLL_SECONDS = 2.0

Candidate = tuple[int, int]  # step, and how many checkpoints up to it are averaged


@runtime_checkable
class Scorer(Protocol):
    """What `t2t.evaluation.evaluator.Evaluator` does."""

    def list_saved(self, measure: str) -> Mapping[str, Evaluation]:
        """Evaluations that need no repetition, by label."""
        ...

    def evaluate(self, params: Params, label: str) -> Sequence[Evaluation]:
        """Scores parameters, and saves that."""
        ...


def wait_for_checkpoint(workdir: Path, timeout: float, poll: float = POLL_SECONDS) -> bool:
    """Until the run directory holds one; whether it came within `timeout` seconds (0: forever)."""
    started = time.monotonic()
    if not list_steps(workdir):
        _log.info("waiting for a first checkpoint in %s", workdir)
    while not list_steps(workdir):
        if timeout and time.monotonic() - started > timeout:
            return False
        time.sleep(poll)
    return True


def make_label(step: int, count: int) -> str:
    """As `t2t.evaluate` calls a checkpoint, or an average, in file names and scores."""
    return str(step) if count == 1 else f"avg{count}-{step}"


class Watch:
    """The scores of a run's checkpoints, as they come."""

    def __init__(
        self,
        workdir: Path,
        folder: Path,
        counts: Sequence[int],
        measure: str,
        tgt_language: str,
        patience: int = 0,
    ):
        """Each new checkpoint is scored for each of `counts`: 1 is itself, n the last n's mean.

        After `patience` checkpoints without a better score training is told to stop; 0: never.
        """
        self._workdir, self._folder = workdir, folder
        self._counts, self._measure, self._patience = counts, measure, patience
        self._higher_is_better = make_measure(measure, tgt_language).higher_is_better
        self._rows: dict[Candidate, Evaluation] = {}
        self._left_out: set[Candidate] = set()

    def follow(self, scorer: Scorer, timeout: float = 0.0, poll: float = POLL_SECONDS) -> bool:
        """Scores until training is at its end, or no checkpoint has come for `timeout` seconds.

        Returns:
            Whether training is at its end.

        Raises:
            RunError: another watch is at work, or something cannot be written.
        """
        with lock(
            self._folder,
            f"another watch with these settings is at work on {self._workdir}; wait for its end",
        ):
            self._take_over(scorer)
            busy = time.monotonic()
            while True:
                is_over = self._is_over()  # asked first: or the last checkpoint could come between
                if self._score_next(scorer):
                    busy = time.monotonic()
                elif is_over:
                    return True
                elif timeout and time.monotonic() - busy > timeout:
                    return False
                else:
                    time.sleep(poll)

    def describe(self) -> str:
        """The table for people."""
        best = self._find_best()
        rows = [
            [
                candidate[0],
                make_label(*candidate),
                f"{self._value(candidate):.2f}",
                self._describe_interval(candidate),
                "best" if candidate == best else "",
            ]
            for candidate in sorted(self._rows)
        ]
        header = ["step", "checkpoint", self._measure, "95% over sentences", ""]
        table = format_table(rows, header, align="rlr")
        return f"{table}\nthe best parameters: {self._folder / 'best'}" if best else table

    def _take_over(self, scorer: Scorer) -> None:
        """What an earlier watch has scored, and what it could not finish after that."""
        saved = scorer.list_saved(self._measure)
        for label, evaluation in saved.items():
            count, _, step = label.rpartition("-")
            number = int(count.removeprefix("avg")) if count.startswith("avg") else 1
            candidate = int(step), number
            if number in self._counts and make_label(*candidate) == label:
                self._rows[candidate] = evaluation
        if self._rows:
            _log.info("%d scores are there already", len(self._rows))
        self._settle()

    def _score_next(self, scorer: Scorer) -> bool:
        """Takes the oldest checkpoint that waits: it is removed first. Whether there was one."""
        steps = list_regular_steps(self._workdir)
        candidates = ((step, count) for step in steps for count in self._counts)
        known = self._rows.keys() | self._left_out
        candidate = next((each for each in candidates if each not in known), None)
        if candidate is None:
            return False
        params = self._read(candidate)
        if params is None:
            self._left_out.add(candidate)
            return True
        [self._rows[candidate]] = scorer.evaluate(params, make_label(*candidate))
        is_best = self._find_best() == candidate
        _log.info(
            "checkpoint %s: %s %.2f %s%s",
            make_label(*candidate), self._measure, self._value(candidate),
            self._describe_interval(candidate), ", the best so far" * is_best,
        )  # fmt: skip
        self._settle(params if is_best else None)
        return True

    def _read(self, candidate: Candidate) -> Params | None:
        """None, with the reason in the log, where the checkpoints are not there, or not whole.

        Training removes old checkpoints at any time, also while they are read. Orbax reads one
        as it was written or not at all, whichever of its files is missing.
        """
        step, count = candidate
        steps = list_last_steps(self._workdir, count, step)
        is_there = steps[-1:] == [step]
        if is_there and len(steps) < count:
            _log.info(
                "step %d: no mean of %d, for it has only %d checkpoints in a row up to it",
                step, count, len(steps),
            )  # fmt: skip
            return None
        try:
            if is_there:
                return average_params(self._workdir, steps)
        except RunError as error:
            if set(steps) <= set(list_steps(self._workdir)):
                _log.warning("step %d: left out; %s", step, error)
                return None
        _log.warning(
            "step %d: left out, for training removed checkpoints before they were read; "
            "checkpoints.keep_last keeps more",
            step,
        )
        return None

    def _settle(self, best_params: Params | None = None) -> None:
        """Brings table, best parameters and request up to the scores; safe to be done again."""
        best = self._find_best()
        if best is None:
            return
        self._write_table(best)
        self._keep(best, best_params)
        stale = len({step for step, _ in self._rows if step > best[0]})
        if self._patience and stale >= self._patience and not self._is_trained():
            value = self._value(best)
            reason = (
                f"{stale} checkpoints without a better {self._measure} than {value:.2f} "
                f"of {make_label(*best)} (t2t.evaluate --watch --patience={self._patience})"
            )
            if not find_path(self._workdir).exists():
                _log.info("asking training to stop: %s", reason)
            request_stop(self._workdir, reason)

    def _write_table(self, best: Candidate) -> None:
        rows = [
            {
                "step": candidate[0],
                "checkpoint": make_label(*candidate),
                "best": candidate == best,
                "evaluation": evaluation.path.name,
                **{name: score["value"] for name, score in evaluation.result["measures"].items()},
            }
            for candidate, evaluation in sorted(self._rows.items())
        ]
        path = self._folder / "scores.jsonl"
        try:
            write_file(path, "".join(f"{json.dumps(row)}\n" for row in rows))
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}; make room there") from None

    def _keep(self, best: Candidate, params: Params | None) -> None:
        """Saves the best parameters, then points the link to them, then removes the former ones."""
        label, link = make_label(*best), self._folder / "best"
        target = self._folder / label
        is_kept = target.is_dir() and link.is_symlink() and link.readlink() == Path(label)
        if not is_kept and not target.is_dir():
            params = self._read(best) if params is None else params
            if params is None:
                _log.warning("%s stays as it is: the parameters of %s are gone", link, label)
                return
        if params is not None:
            shutil.rmtree(target, ignore_errors=True)
            with atomic_path(target) as draft:
                save_params(self._workdir, draft, params, best[0])
        if not is_kept:
            with atomic_path(link) as draft:
                draft.symlink_to(label)
        for path in self._folder.iterdir():
            if path.is_dir() and not path.is_symlink() and path != target:
                shutil.rmtree(path, ignore_errors=True)

    def _is_over(self) -> bool:
        """Whether no checkpoint is to come: training is at its last step, or has obeyed."""
        request = read_stop_request(self._workdir)
        return self._is_trained() or (request is not None and request.obeyed_at is not None)

    def _is_trained(self) -> bool:
        last = load_config(self._workdir / "config.json").training.steps
        return max(list_steps(self._workdir), default=0) >= last

    def _find_best(self) -> Candidate | None:
        """Of equal scores the earliest."""
        sign = 1 if self._higher_is_better else -1
        order = sorted(self._rows)
        return max(order, key=lambda each: sign * self._value(each), default=None)

    def _value(self, candidate: Candidate) -> float:
        return float(self._rows[candidate].result["measures"][self._measure]["value"])

    def _describe_interval(self, candidate: Candidate) -> str:
        return format_interval(self._rows[candidate].result["measures"][self._measure]["interval"])
