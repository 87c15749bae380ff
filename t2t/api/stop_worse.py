"""`stop`: stop requests for the runs of systems that are worse before the end of training."""

import dataclasses
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from t2t.evaluation.number_format import format_score
from t2t.evaluation.saved_evaluations import EvaluationError
from t2t.evaluation.significance import judge, judge_look
from t2t.evaluation.systems import (
    check_comparable,
    open_measure,
    read_statistics,
    read_system,
)
from t2t.evaluation.trials import halve
from t2t.storage.atomic_files import explain_write_errors, write_file
from t2t.storage.paths import split_run_paths
from t2t.training.run_directory import RunError
from t2t.training.stop_request import request_stop

_log = logging.getLogger(__name__)

LOOK = "look.json"


def stop(operands: Sequence[str], measure: str | None, output: Path, *, tuned: bool) -> str:
    """Asks the runs of each system that is worse than the first to stop; says which, and why.

    Args:
        operands: of each system, the evaluations of its seeds, files in their runs, joined by
            commas. A system without them has failed, and is left out.
        measure: by which they are compared; None: the usual one.
        output: the folder in which `LOOK` is written.
        tuned: whether to judge by the half of the sentences on which no trial was chosen.

    Raises:
        ConfigError: the test set is too small for halves.
        EvaluationError: the first system has no scores, or they are not comparable.
        RunError: a file cannot be written.
    """
    systems = []
    for number, operand in enumerate(operands):
        try:
            systems.append(read_system(operand, "", "", name=operand))
        except EvaluationError as error:
            if not number:
                raise
            _log.info("%s is not compared: %s", operand, error)
    chosen, _ = open_measure(systems, measure)
    test_set = check_comparable(systems)
    if tuned:
        test_set = halve(test_set).judging
    judgement = judge(read_statistics(systems, chosen, test_set), chosen, test_set)
    worse = judge_look(judgement)
    steps = {each.name: int(each.passport.checkpoint.rpartition("-")[2]) for each in systems}
    stopped = {}
    for name, each in worse.items():
        verdict = dataclasses.asdict(dataclasses.replace(each, estimate=None))
        stopped[name] = {"step": steps[name], "verdict": verdict}
        reason = (
            f"{format_score(each.values[1])} {chosen.name} against {format_score(each.values[0])} "
            f"of {operands[0]}, p {each.adjusted:.2g} after correction"
        )
        for path in split_run_paths(name):
            request_stop(path.parents[1], reason)
    content = {"measure": chosen.name, "compared": len(systems) - 1, "stopped": stopped}
    with explain_write_errors(RunError, output):
        write_file(output / LOOK, json.dumps(content, indent=1) + "\n")
    return "\n".join(f"stopped: {name}" for name in stopped) or "nothing is clearly worse"
