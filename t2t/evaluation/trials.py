"""Chooses the best of several trials of a setting, without an advantage for the one chosen.

The best of nine equal systems looks better than one system for two reasons. Its score was the
highest on the sentences on which it was chosen, so it is judged on others: `halve` divides a test
set. And its run may have had a lucky seed, which helps it on all sentences, so the runs that are
judged have other seeds than `TRIAL_SEED`. `benchmarks/tuned_verdicts.py` simulates both.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from t2t.config.fields import ConfigError
from t2t.evaluation.measure import MIN_SENTENCES, Measure, Statistics, TestSet
from t2t.evaluation.saved_evaluations import EvaluationError

# Added to the base's seed for trials. No run that is judged may have it: the best of nine runs of
# equal systems, kept as one of two or three seeds, gives a false verdict in up to 12% of cases.
TRIAL_SEED = 1000


class Halves(NamedTuple):
    """A test set twice; each counts other sentences (`TestSet.part`)."""

    choosing: TestSet  # on which trials are compared with each other
    judging: TestSet  # on which the systems that were chosen are compared


class TrialChoice(NamedTuple):
    """The best of several trials."""

    value: float  # of the setting
    score: float  # on the sentences on which it was chosen
    edge: str  # "smallest" or "largest" if the value is that of several; else ""
    curve: Mapping[float, float]  # the score at each value, by value; NaN where the trial failed


def halve(test_set: TestSet) -> Halves:
    """Divides a test set into a half on which trials are chosen and a half that judges.

    Documents stay whole, if they are known; otherwise sentences with equal sources stay together,
    and so do equal documents. They are sorted by the SHA-256 of their sources, and each goes to the
    half that is the smaller one so far. So the halves depend on nothing but the sources: all rows
    and seeds have the same ones.

    Raises:
        ConfigError: a half has fewer than `MIN_SENTENCES` sentences or documents.
    """
    units = test_set.documents
    if units is None:
        units = np.arange(len(test_set.sources))
    texts: dict[int, str] = {}
    for unit, source in zip(units.tolist(), test_set.sources, strict=True):
        texts[unit] = f"{texts[unit]}\n{source}" if unit in texts else source
    equal: dict[bytes, list[int]] = {}  # the units of each text
    for unit, text in texts.items():
        equal.setdefault(hashlib.sha256(text.encode()).digest(), []).append(unit)
    halves: tuple[list[int], list[int]] = ([], [])
    for _, members in sorted(equal.items()):
        min(halves, key=len).extend(members)
    if (size := min(map(len, halves))) < MIN_SENTENCES:
        raise ConfigError(
            f"a half of the {test_set.name or 'validation'} split has {size} {test_set.unit}, and "
            f"an interval needs {MIN_SENTENCES}: trials are chosen on one half and judged on the "
            "other; use a split with more, or leave out --tune"
        )
    choosing, judging = (
        test_set._replace(part=np.flatnonzero(np.isin(units, half))) for half in halves
    )
    return Halves(choosing, judging)


def choose_trial(
    setting: str,
    trials: Mapping[float, Statistics | None],
    own: float,
    measure: Measure,
    test_set: TestSet,
) -> TrialChoice:
    """Returns the trial with the best score on the sentences of `test_set` that count.

    `trials` has the statistics of all sentences by value of the setting, None where the trial
    failed, in the user's order. A score that is not finite never wins. Of equal scores the one
    wins whose value is nearest to `own`, the row's value without trials, by its ratio if both are
    positive; of equally near ones the first.

    Raises:
        EvaluationError: no trial has a finite score.
    """
    curve = {value: _score(trials[value], measure, test_set) for value in sorted(trials)}
    finite = [value for value in trials if math.isfinite(curve[value])]
    if not finite:
        states = (
            f"{value:g} {'failed' if trials[value] is None else f'has {score}'}"
            for value, score in curve.items()
        )
        raise EvaluationError(
            f"no trial of {setting} has a finite {measure.name}: {', '.join(states)}; give other "
            "values to tune"
        )
    sign = -1 if measure.higher_is_better else 1
    best = min(finite, key=lambda value: (sign * curve[value], _find_distance(value, own)))
    edges = {min(curve): "smallest", max(curve): "largest"} if len(curve) > 1 else {}
    return TrialChoice(best, curve[best], edges.get(best, ""), curve)


def _score(statistics: Statistics | None, measure: Measure, test_set: TestSet) -> float:
    """Returns the mean score over seeds; NaN for a trial that failed."""
    if statistics is None:
        return math.nan
    counted = test_set.take_part(statistics)
    return float(np.mean([measure.aggregate(one.sum(axis=0)) for one in counted]))


def _find_distance(value: float, own: float) -> float:
    """Returns how far a value is from the row's own; 0.5 and 2 times as much are equally far."""
    if value > 0 and own > 0:
        return round(abs(math.log(value / own)), 9)
    return abs(value - own)
