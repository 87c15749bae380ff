"""Scores of sentences by another program, such as COMET: reading them, and storing them.

Stored scores get an interval, and `t2t.compare` gives verdicts on them. The score of the corpus is
their mean.
"""

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.config.fields import ConfigError, shorten, show
from t2t.config.measures import MEASURE_FIELD
from t2t.config.variants import choices
from t2t.data.corpus import TextFile
from t2t.evaluation.find_evaluations import find_evaluation
from t2t.evaluation.measure import Measure, count_scores
from t2t.evaluation.saved_evaluations import (
    Evaluation,
    format_measures,
    name_segment_scores,
    save_evaluation,
)
from t2t.evaluation.verification import check_unchanged
from t2t.storage.atomic_files import check_writable, explain_write_errors
from t2t.storage.paths import make_path
from t2t.training.run_directory import RunError

NO_DEFINITION = "mean of another program's scores of the sentences, without a definition"
_FACTS = {"definition", "higher_is_better"}  # of a line in JSON, besides its score


def read_segment_scores(
    name: str, path: str, num_sentences: int
) -> tuple[Measure, Sequence[float]]:
    """Reads a number a line, or a JSON object a line; returns the measure and the scores.

    An object has the `score` of a sentence. Any of them, or a first one without a score, may have
    the `definition` of the measure, with its version, and `higher_is_better` (true by default).

    Raises:
        ConfigError: a line is missing or is no finite number, or two definitions differ.
    """
    flag, place = f"--segment_scores={name}={path}", make_path(path)
    file = TextFile(place)
    facts: dict[str, Any] = {}
    found = [
        _read_score(line, facts, f"{flag}: line {number} of {place}", is_first=number == 1)
        for number, line in enumerate(file.read(0, len(file)), 1)
    ]
    values = [value for value in found if value is not None]
    if len(values) != num_sentences:
        raise ConfigError(
            f"{flag}: {place} has {len(values)} scores, but the evaluation {num_sentences} "
            f"sentences; the first line that is missing or too many is that of sentence "
            f"{min(len(values), num_sentences) + 1}"
        )
    definition, higher = facts.get("definition", NO_DEFINITION), facts.get("higher_is_better", True)
    if not isinstance(definition, str) or not isinstance(higher, bool):
        raise ConfigError(
            f"{flag}: {place} has definition {definition!r} and higher_is_better {higher!r}; write "
            "a string, and true or false"
        )
    return Measure(name, definition, higher_is_better=higher), values


def _read_score(line: str, facts: dict[str, Any], where: str, *, is_first: bool) -> float | None:
    """Returns the score of a line, and adds its facts; None if a first line has only facts."""
    entry: Any = None
    try:
        entry = float(line)  # takes ".5", which is no JSON
    except ValueError:
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(line)
    if entry is None:
        raise ConfigError(
            f"{where} is {show(line, 60)}; write one number a line, or JSON such as "
            '{"score": 0.8, "definition": "wmt22-comet-da, unbabel-comet 2.2.7"}'
        )
    if isinstance(entry, Mapping):
        for key in _FACTS & entry.keys():
            if facts.setdefault(key, entry[key]) != entry[key]:
                raise ConfigError(
                    f"{where} has {key} {entry[key]!r}, but a line before it {facts[key]!r}; give "
                    "all lines the same"
                )
        if "score" not in entry:
            if is_first and _FACTS & entry.keys():
                return None
            names = shorten(", ".join(entry), 60) or "nothing"
            raise ConfigError(
                f"{where} has no score, but {names}; rename the field with the number to score"
            )
        entry = entry["score"]
    try:
        value = math.nan if isinstance(entry, bool | str) else float(entry)
    except (OverflowError, TypeError):  # an integer of hundreds of digits, or no number
        value = math.nan
    if not math.isfinite(value):
        shown = show(entry, 60)
        raise ConfigError(f"{where} has the score {shown}; each sentence needs a finite number")
    return value


def add_segment_scores(
    place: Path, split: str, name: str, checkpoint: str, task: str, files: Sequence[str]
) -> str:
    """Adds the scores of another program to a saved evaluation; returns its summary.

    `files` are NAME=FILE, for each measure. For the other arguments see `find_evaluation`.

    Raises:
        ConfigError, EvaluationError: as in `store_segment_scores`, or the evaluation is of another
            split.
    """
    evaluation = find_evaluation(place, split, name, checkpoint, task)
    if split not in ("", own := evaluation.passport.data["split"]):
        raise ConfigError(f"{evaluation.path} is of the split {own}, not of --split={split}")
    with explain_write_errors(RunError, evaluation.path):
        for file in files:
            evaluation = store_segment_scores(evaluation, file)
    return f"{format_measures(evaluation.result['measures'])}\n{evaluation.path}"


def store_segment_scores(evaluation: Evaluation, flag: str) -> Evaluation:
    """Stores scores of an evaluation's hypotheses with it, with their mean and its interval.

    `flag` is NAME=FILE.

    Raises:
        ConfigError: another measure has the name, or as `read_segment_scores`.
        EvaluationError: a file of the evaluation is missing or was edited.
    """
    name, _, path = flag.partition("=")
    flag = f"--segment_scores={flag}"
    stored, test_set = name_segment_scores(name), evaluation.read_test_set()
    measures, texts = evaluation.result["measures"], evaluation.result["texts"]
    if not path or not re.fullmatch(r"[a-z0-9][a-z0-9_.+-]*", name):
        raise ConfigError(f"{flag}: write a lower-case name and a file, such as comet=scores.txt")
    if name in choices(MEASURE_FIELD) or (name in measures and stored not in texts):
        raise ConfigError(f"{flag}: {name} is a measure of t2t; choose another name")
    file = f"{evaluation.path.stem}.{stored}.txt"
    with explain_write_errors(ConfigError, evaluation.path.with_name(file), "shorten NAME"):
        check_writable(evaluation.path.parent, file)
    check_unchanged(evaluation)
    measure, scores = read_segment_scores(name, path, evaluation.result["num_sentences"])
    score = measure.score_counts(count_scores(scores), test_set, with_interval=True)
    result = {
        **evaluation.result,
        "measures": {
            **measures, name: vars(score) | {"higher_is_better": measure.higher_is_better},
        },
        "texts": {**texts, stored: file},
    }  # fmt: skip
    return save_evaluation(evaluation.path, result, {stored: [*map(repr, scores)]})
