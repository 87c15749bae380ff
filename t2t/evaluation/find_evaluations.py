"""Finds saved evaluations: by the name of their file, or in a run directory."""

import logging
import shlex
from pathlib import Path

from t2t.evaluation.saved_evaluations import Evaluation, EvaluationError, load_evaluation

_log = logging.getLogger(__name__)


def list_evaluations(workdir: Path) -> list[Evaluation]:
    """Returns a run's evaluations, the newest last; skips other files with a warning."""
    found = []
    for path in (workdir / "evaluations").glob("*.json"):
        try:
            found.append(load_evaluation(path))
        except EvaluationError as error:
            _log.warning("skipped: %s", error)
    return sorted(found, key=lambda evaluation: (evaluation.date, evaluation.name))


def is_scores_file(place: Path) -> bool:
    """Returns whether an operand names the .json of an evaluation rather than a run directory."""
    return place.suffix == ".json" and not place.is_dir()


def find_evaluation(
    place: Path, split: str, name: str = "", checkpoint: str = "", task: str = ""
) -> Evaluation:
    """Loads an evaluation from its .json, or from a run directory.

    A run directory holds several. `name` chooses one by the name of its file. Else the newest one
    of `split` is taken, by default of test. `checkpoint`, such as best, last, 300 or avg:5, limits
    them to evaluations of this checkpoint; the one at the latest step is taken, of several the
    newest. `task` limits them to those of a task or a direction, in a run of several; it is needed
    if evaluations of several are saved.

    Raises:
        EvaluationError: no evaluation fits, those that fit are of several tasks, or the file is
            damaged.
    """
    if name and not is_scores_file(place):
        place = place / "evaluations" / f"{name.removesuffix('.json')}.json"
    if is_scores_file(place):
        found = load_evaluation(place)
        if checkpoint and not _has_checkpoint(found, checkpoint):
            raise EvaluationError(
                f"{place} is of {found.passport.describe_origin()}, not of "
                f"--checkpoint={checkpoint}; leave it out, or name the run directory"
            )
        if task and found.passport.task not in ("", task):
            raise EvaluationError(
                f"{place} is of the task {found.passport.task}, not of --task={task}; leave it "
                "out, or name the run directory"
            )
        return found
    split = split or "test"
    listed = [each for each in list_evaluations(place) if each.passport.is_of_run]
    listed = [each for each in listed if each.passport.data["split"] == split]
    flags = f"--workdir={shlex.quote(str(place))} --split={split}"
    if task:
        listed = [each for each in listed if each.passport.task in ("", task)]
        flags += f" --task={task}"
    if checkpoint:
        listed = [each for each in listed if _has_checkpoint(each, checkpoint)]
        listed.sort(key=lambda each: int(each.passport.checkpoint.rpartition("-")[-1]))
        flags += f" --checkpoint={checkpoint}"
    if not listed:
        raise EvaluationError(
            f"{place} holds no evaluation of {split}{f' of the task {task}' * bool(task)}"
            f"{f' at {checkpoint}' * bool(checkpoint)}; create one: python -m t2t.evaluate {flags}"
        )
    if len(tasks := dict.fromkeys(filter(None, (each.passport.task for each in listed)))) > 1:
        raise EvaluationError(
            f"{place} holds evaluations of {split} of the tasks {', '.join(tasks)}; name one with "
            "--task"
        )
    return listed[-1]


def _has_checkpoint(evaluation: Evaluation, checkpoint: str) -> bool:
    """Returns whether an evaluation scored the checkpoint that --checkpoint names."""
    label, kind = evaluation.passport.checkpoint, evaluation.passport.kind
    if checkpoint == "last":
        return label.isdecimal()
    is_named = label == checkpoint.replace(":", "-") or kind == checkpoint.replace(":", "")
    return is_named and label.rpartition("-")[2].isdecimal()  # and is no ensemble
