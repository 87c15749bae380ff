"""Scores a run's checkpoints as training writes them, keeps the best, and can stop training early.

The scores are ordinary evaluations in `evaluations/`, so a watch that was killed continues where it
stopped. The watch's other files are in one folder, `evaluations/SPLIT-watch-...`:

    scores.jsonl   a line for each checkpoint, by step
    LABEL/         the best parameters so far, as a run directory; training may remove its copy
    best           a symbolic link to LABEL; in a bucket, which has none, an object with this name
"""

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from t2t.config.files import load_config
from t2t.config.measures import REFERENCE_MEASURES, translates
from t2t.evaluation.evaluator import Evaluator
from t2t.evaluation.number_format import format_score
from t2t.evaluation.saved_evaluations import Evaluation
from t2t.model.parameters import Params
from t2t.runtime.text_tables import format_table
from t2t.storage.atomic_files import (
    explain_write_errors,
    name_linked,
    remove_folder,
    write_file,
    write_link,
)
from t2t.storage.locks import lock
from t2t.storage.paths import choose_interval
from t2t.training.checkpoint import average_params, rank, save_params
from t2t.training.patience import count_stale
from t2t.training.run_directory import (
    RunError,
    list_last_steps,
    list_regular_steps,
    list_steps,
)
from t2t.training.stop_request import read_stop_request, request_stop

_log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
BUCKET_POLL_SECONDS = 15.0  # at least, in a bucket, where each look is several requests

Candidate = tuple[int, int]  # (step of the last checkpoint, number of checkpoints to average)


def wait_for_checkpoint(workdir: Path, timeout: float, poll: float = POLL_SECONDS) -> bool:
    """Waits until the run directory holds a checkpoint, for at most `timeout` seconds.

    With a timeout of 0 it waits forever. Returns whether there is a checkpoint.
    """
    started = time.monotonic()
    if not list_steps(workdir):
        _log.info("waiting for the first checkpoint in %s", workdir)
    while not list_steps(workdir):
        if timeout and time.monotonic() - started > timeout:
            return False
        _pause(workdir, poll)
    return True


def make_label(step: int, count: int) -> str:
    """Returns the label of a checkpoint or average in the names and content of evaluations."""
    return str(step) if count == 1 else f"avg{count}-{step}"


class Watch:
    """Scores the checkpoints of one run while it trains."""

    def __init__(
        self,
        workdir: Path,
        folder: Path,
        counts: Sequence[int],
        measure: str,
        patience: int = 0,
        *,
        higher_is_better: bool = True,
    ):
        """Initialises a watch of `workdir` that keeps its files in `folder`.

        Each checkpoint is scored once for each of `counts`: 1 scores the checkpoint, n the mean of
        the last n. After `patience` checkpoints without a better score, training is told to stop;
        0: never. More of the measure is better, or less.
        """
        self._workdir, self._folder = workdir, folder
        self._counts, self._measure, self._patience = counts, measure, patience
        self._higher_is_better = higher_is_better
        self._rows: dict[Candidate, Evaluation] = {}
        self._skipped: set[Candidate] = set()

    def follow(self, scorer: Evaluator, timeout: float = 0.0, poll: float = POLL_SECONDS) -> bool:
        """Scores checkpoints until training has ended, or none has come for `timeout` seconds.

        Returns whether training has ended.

        Raises:
            RunError: another watch is running, or a file cannot be written.
        """
        refusal = (
            f"another watch with these settings is running on {self._workdir}; wait until it ends"
        )
        with lock(self._folder / "lock", refusal, RunError):
            self._load_saved(scorer)
            last_scored = time.monotonic()
            while True:
                # Asked first: if training writes its last checkpoint and ends after the look for
                # checkpoints, the next round still scores it.
                has_ended = self._has_ended()
                if self._score_next(scorer):
                    last_scored = time.monotonic()
                elif has_ended:
                    return True
                elif timeout and time.monotonic() - last_scored > timeout:
                    return False
                else:
                    _pause(self._workdir, poll)

    def describe(self) -> str:
        """Returns the scores as a table, and the path of the best parameters."""
        best = self._find_best()
        measure = self._measure
        rows = [
            [step, make_label(step, count), format_score(evaluation.value(measure)),
             evaluation.interval(measure), "best" * ((step, count) == best)]
            for (step, count), evaluation in sorted(self._rows.items(), key=lambda row: row[0])
        ]  # fmt: skip
        units = dict.fromkeys(evaluation.unit for evaluation in self._rows.values())
        over = f"95% over {' or '.join(units) or 'sentences'}"
        header = ["step", "checkpoint", self._measure, over, ""]
        table = format_table(rows, header, align="rlr")
        if best is None:
            return table
        return f"{table}\nthe best parameters: {name_linked(self._folder / 'best')}"

    def _load_saved(self, scorer: Evaluator) -> None:
        """Reads the scores of an earlier watch, and updates the files that depend on them."""
        saved = scorer.list_saved()
        for label, evaluation in saved.items():
            prefix, _, step = label.rpartition("-")  # of labels such as "3000" and "avg5-3000"
            count = int(prefix.removeprefix("avg")) if prefix.startswith("avg") else 1
            candidate = int(step), count
            # Other labels, such as "ema-3000", differ from that of the candidate.
            if count in self._counts and make_label(*candidate) == label:
                self._rows[candidate] = evaluation
        if self._rows:
            dates = sorted(evaluation.date for evaluation in self._rows.values())
            _log.info(
                "used again: %d scores that were saved from %s to %s",
                len(self._rows), dates[0], dates[-1],
            )  # fmt: skip
        self._update_files()

    def _score_next(self, scorer: Evaluator) -> bool:
        """Scores the unscored checkpoint that training would remove first; False: there is none."""
        steps = list_regular_steps(self._workdir)
        candidates = ((step, count) for step in steps for count in self._counts)
        known = self._rows.keys() | self._skipped
        candidate = next((each for each in candidates if each not in known), None)
        if candidate is None:
            return False
        params = self._load_params(candidate)
        if params is None:
            self._skipped.add(candidate)
            return True
        [self._rows[candidate]] = scorer.evaluate(params, make_label(*candidate))
        is_best = self._find_best() == candidate
        _log.info(
            "checkpoint %s: %s %s %s%s", make_label(*candidate), self._measure,
            format_score(self._rows[candidate].value(self._measure)),
            self._rows[candidate].interval(self._measure), ", the best so far" * is_best,
        )  # fmt: skip
        self._update_files(params if is_best else None)
        return True

    def _load_params(self, candidate: Candidate) -> Params | None:
        """Loads the parameters; returns None, and logs why, if a checkpoint is missing or damaged.

        Training may remove old checkpoints at any time, also while they are read. Orbax then
        raises an error, whichever file is missing; it never returns part of a checkpoint.
        """
        step, count = candidate
        steps = list_last_steps(self._workdir, count, step)
        exists = steps[-1:] == [step]
        if exists and len(steps) < count:
            _log.info(
                "step %d: skipped the mean of %d; only %d consecutive checkpoints end at this step",
                step, count, len(steps),
            )  # fmt: skip
            return None
        if exists:
            try:
                return average_params(self._workdir, steps)
            except RunError as error:
                is_damaged = set(steps) <= set(list_steps(self._workdir))  # none was removed
                if is_damaged:
                    _log.warning("step %d: skipped; %s", step, error)
                    return None
        _log.warning(
            "step %d: skipped, since training removed checkpoints before they were read; "
            "increase checkpoints.keep_last",
            step,
        )
        return None

    def _update_files(self, best_params: Params | None = None) -> None:
        """Updates the table, the best parameters and the stop request; idempotent."""
        best = self._find_best()
        if best is None:
            return
        self._write_table(best)
        self._save_best(best, best_params)
        start = load_config(self._workdir / "config.json").training.schedule_start
        # A loss says something long before any BLEU.
        is_loss = self._measure in REFERENCE_MEASURES
        translating = [
            step
            for (step, _), x in self._rows.items()
            if is_loss or translates({name: x.value(name) for name in x.result["measures"]})
        ]
        stale = count_stale([step for step, _ in self._rows], best[0], translating, start)
        if self._patience and stale is None:
            _log.info("patience counts from the first checkpoint that translates")
        elif self._patience and (stale or 0) >= self._patience and not self._is_trained():
            value = self._rows[best].value(self._measure)
            reason = (
                f"{stale} checkpoints without a better {self._measure} than {format_score(value)} "
                f"of {make_label(*best)} (t2t.watch --patience={self._patience})"
            )
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
        with explain_write_errors(RunError, path):
            write_file(path, "".join(f"{json.dumps(row)}\n" for row in rows))

    def _save_best(self, best: Candidate, params: Params | None) -> None:
        """Saves the best parameters, then updates the link, then removes the previous ones."""
        label, link = make_label(*best), self._folder / "best"
        target = self._folder / label
        if params is None and not (target / "config.json").exists():
            params = self._load_params(best)
            if params is None:
                _log.warning("%s is not updated: the checkpoints of %s were removed", link, label)
                return
        if params is not None:
            remove_folder(target)
            save_params(self._workdir, target, params, best[0])
        write_link(link, label)
        for path in self._folder.iterdir():
            if path.is_dir() and path.name not in (label, link.name):
                remove_folder(path)

    def _has_ended(self) -> bool:
        """Returns whether training has ended: at its last step, or by a stop request."""
        request = read_stop_request(self._workdir)
        return self._is_trained() or (request is not None and request.obeyed_at is not None)

    def _is_trained(self) -> bool:
        last = load_config(self._workdir / "config.json").training.steps
        return max(list_steps(self._workdir), default=0) >= last

    def _find_best(self) -> Candidate | None:
        """Returns the candidate with the best score, the earliest of equal ones."""
        scores = {each: evaluation.value(self._measure) for each, evaluation in self._rows.items()}
        return next(iter(rank(scores, higher_is_better=self._higher_is_better)), None)


def _pause(workdir: Path, poll: float) -> None:
    time.sleep(choose_interval(workdir, poll, BUCKET_POLL_SECONDS))
