"""`choose`: the best of several trials, and the flag that gives its value to a training."""

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path

from t2t.config.fields import FIELD_TYPES, ConfigError
from t2t.evaluation.measure import Statistics, make_likelihood
from t2t.evaluation.number_format import format_score
from t2t.evaluation.saved_evaluations import EvaluationError
from t2t.evaluation.systems import (
    check_comparable,
    open_measure,
    read_reference_losses,
    read_statistics,
    read_system,
)
from t2t.evaluation.trials import CHOICE, choose_trial, halve
from t2t.runtime.text_tables import format_table
from t2t.storage.atomic_files import explain_write_errors, write_file
from t2t.training.run_directory import RunError

_log = logging.getLogger(__name__)

FLAGS = "flags.txt"  # for --flagfile


def choose(
    setting: str,
    trials: Mapping[str, Path],
    own: float,
    measure: str | None,
    output: Path,
    *,
    by_loss: bool = False,
) -> str:
    """Chooses the best of several runs by one half of the sentences; returns the curve as a table.

    Args:
        setting: the field in which the runs differ.
        trials: the run of each value of the field, or the file of its evaluation. One that was not
            evaluated counts as failed.
        own: the row's value before tuning, which decides ties.
        measure: its name; None: the default of the text (bleu, or what fits).
        output: the folder in which `CHOICE` and `FLAGS` are written.
        by_loss: choose by the log-probability of the references instead of a measure. Runs on text
            alone are always judged by what they predict.

    Raises:
        ConfigError: a value is no number, or the test set is too small for halves.
        EvaluationError: no trial has a finite score, or they are not comparable, or one lacks the
            log-probabilities.
        RunError: the folder cannot be written.
    """
    try:
        runs = {float(text): run for text, run in trials.items()}
    except ValueError:
        raise ConfigError(f"--trials={','.join(trials)}: write NUMBER=RUN") from None
    if len(runs) < len(trials):
        raise ConfigError(f"--trials={','.join(trials)}: two of them are equal; name each once")
    if setting not in FIELD_TYPES or FIELD_TYPES[setting].plain is not float:
        raise ConfigError(
            f"--setting={setting} is no field with a fraction; name one such as "
            "training.learning_rate"
        )
    systems = {}
    for value, run in runs.items():
        try:
            systems[value] = read_system(str(run), "", "", [setting], name=str(value))
        except EvaluationError as error:
            _log.info("%s=%g failed: %s", setting, value, error)
    if not systems:
        raise EvaluationError(f"no trial of {setting} was evaluated; see their logs")
    known_systems = [*systems.values()]
    test_set = halve(check_comparable(known_systems)).choosing
    if by_loss and not known_systems[0].passport.objective:
        losses = read_reference_losses(known_systems, test_set)
        if losses is None:
            raise EvaluationError(
                f"a trial of {setting} was evaluated without log-probabilities of the references; "
                "evaluate it again, or choose by a measure"
            )
        statistics, test_set, token = losses
        chosen = make_likelihood(token)
    else:
        chosen, _ = open_measure(known_systems, measure)
        statistics = read_statistics(known_systems, chosen, test_set)
    known: dict[float, Statistics | None] = {value: statistics.get(str(value)) for value in runs}
    best = choose_trial(setting, known, own, chosen, test_set)
    # A trial that failed has no score; JSON has no NaN.
    curve = {value: score if math.isfinite(score) else None for value, score in best.curve.items()}
    content = {"setting": setting, "measure": chosen.name, **best._asdict(), "curve": curve}
    with explain_write_errors(RunError, output):
        write_file(output / FLAGS, f"--config.{setting}={best.value!r}\n")
        write_file(output / CHOICE, json.dumps(content, indent=1) + "\n")
    rows = [
        (f"{value:g}", format_score(score), "chosen" * (value == best.value))
        for value, score in best.curve.items()
    ]
    lines = [format_table(rows, (setting, chosen.name, ""))]
    if best.edge:
        lines.append(f"the best value is the {best.edge} one tried; try others beyond it")
    return "\n".join(lines)
