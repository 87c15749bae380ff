"""Verifies saved evaluations: their files are unchanged, and their texts give their scores.

So an evaluation can be handed to somebody without its run, and be checked there.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t2t.config.measures import REFERENCE_MEASURES
from t2t.data.sentences import count_empty_references
from t2t.evaluation.corpus_loss import compute_perplexity
from t2t.evaluation.measure import Score, TestSet
from t2t.evaluation.number_format import format_interval, format_score
from t2t.evaluation.saved_evaluations import Evaluation, EvaluationError, compute_digests
from t2t.runtime.text_tables import format_table

_TOLERANCE = 1e-6  # relative; log-probabilities are saved with six digits


def check_unchanged(evaluation: Evaluation) -> None:
    """Raises `EvaluationError` if a file is not the one that was saved, by its SHA-256."""
    saved = evaluation.result["sha256"]
    found = compute_digests(evaluation.path, evaluation.result)
    names = {"scores": evaluation.path.name, **evaluation.result["texts"]}
    if edited := [
        names.get(key, key) for key in {**saved, **found} if saved.get(key) != found.get(key)
    ]:
        raise EvaluationError(
            f"{evaluation.path}: {', '.join(edited)} {'was' if len(edited) == 1 else 'were'} "
            "edited after the evaluation was saved; get the original, or evaluate again"
        )


def verify(evaluation: Evaluation) -> str:
    """Computes every score of an evaluation from its texts; returns a table of them.

    Raises:
        EvaluationError: a file was edited or is missing, a measure has another definition here, or
            a number is not the one that the texts give.
        ConfigError, MeasureError: a measure cannot be computed here.
    """
    check_unchanged(evaluation)
    result, test_set = evaluation.result, evaluation.read_test_set()
    faults: list[str] = []
    definitions: dict[str, str] = {}
    empty = count_empty_references(test_set.sources, test_set.references[0])
    rows, summary = [], {"num_empty_references": float(empty)}
    for name, saved in result["measures"].items():
        found = _compute(evaluation, name, test_set)
        definitions[name] = found.definition
        faults += [f"{name}.{fault}" for fault in _list_differences(saved, vars(found))]
        if name in ("bleu", "chrf"):  # which stand at the top, too
            summary[name] = found.value
        score = format_score(found.value), format_interval(found.interval, found.value)
        rows.append([name, *score, found.definition])
    here = dataclasses.replace(evaluation.passport, measures=definitions)
    unlike = evaluation.passport.diff(here, "measures")
    faults += [f"{name} has another definition here: {each}" for name, each in unlike.items()]
    faults += _list_differences(result, summary)
    if faults:
        raise EvaluationError(f"{evaluation.path} is not verified: {'; '.join(faults)}")
    files = [evaluation.path.name, *result["texts"].values()]
    return (
        f"{evaluation.path}: verified, {len(rows)} measures of {len(test_set.sources)} sentences\n"
        f"{format_table(rows, align='lr')}\n"
        f"files that belong together: {', '.join(files)}"
    )


def _compute(evaluation: Evaluation, name: str, test_set: TestSet) -> Score:
    if not evaluation.passport.objective and name in REFERENCE_MEASURES:
        saved = evaluation.result["measures"][name]
        value = _compute_perplexity(evaluation, test_set, by_words=name.endswith("_word"))
        return Score(value, saved["definition"], saved["detail"])
    measure = evaluation.open_measure(name)
    counts = evaluation.read_statistics(measure, test_set)
    return measure.score_counts(counts, test_set, with_interval=True)


def _compute_perplexity(evaluation: Evaluation, test_set: TestSet, *, by_words: bool) -> float:
    """Returns exp(nats / tokens) of the references that are not too long for the model."""
    losses = evaluation.read_log_probs()
    kept = losses[:, 1] > 0
    words = np.array([len(line.split()) for line in test_set.references[0]])
    tokens = words if by_words else losses[:, 1]
    return compute_perplexity(-losses[kept, 0].sum(), float(tokens[kept].sum()))


def _list_differences(saved: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Names the numbers of a saved evaluation that are not those that were found.

    A number that is not saved, such as an interval of few sentences, claims nothing.
    """
    for name, value in found.items():
        if (claimed := saved.get(name)) is None or name == "definition":
            continue
        try:
            is_equal = bool(np.allclose(claimed, value, rtol=_TOLERANCE, atol=1e-9, equal_nan=True))
        except (TypeError, ValueError):  # a text, or what is no number
            is_equal = claimed == value
        if not is_equal:
            texts = json.dumps(value)
            yield f"{name} is saved as {json.dumps(claimed)}, but the texts give {texts}"
