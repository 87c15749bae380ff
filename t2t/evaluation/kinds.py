"""Scores by kind of sentence: of each kind, their unweighted mean, and verdicts on each kind.

Kinds are names that a test set gives to its sentences, such as what a sentence tests. Their mean
counts each kind once, however many sentences it has.
"""

import dataclasses
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from t2t.evaluation.measure import MIN_SENTENCES, Measure, Statistics, TestSet
from t2t.evaluation.number_format import format_difference, format_interval, format_score
from t2t.evaluation.significance import Judgement, SystemComparison, adjust, judge
from t2t.evaluation.verdict import name_verdict
from t2t.runtime.text_tables import Table

MEAN = "mean of kinds"


@dataclasses.dataclass(frozen=True)
class KindJudgement:
    """The scores of all systems on each kind, and their comparisons with the first system."""

    measure: str
    by_kind: Mapping[str, Judgement]  # p-values and intervals are corrected for all of them
    means: Mapping[str, float]  # the unweighted mean of the kinds, by system
    mean: Judgement | None  # its verdicts; None if a kind has too few sentences for resamples

    def describe(self) -> list[str]:
        """Says what the verdicts on kinds are corrected for, and what the mean is."""
        count = sum(len(each.comparisons) for each in self.by_kind.values())
        few = [name for name, each in self.by_kind.items() if each.num_units < MIN_SENTENCES]
        unit = next(iter(self.by_kind.values())).unit
        found = [
            f"{MEAN}: each kind counts once, however many {unit} it has. Intervals of scores are "
            f"95% over {unit}, those of differences also over seeds, if there are several."
        ]
        if count:
            found.append(
                f"p-values and intervals of kinds are corrected for {count} comparisons (Holm), "
                "those of the mean for its own."
            )
        if few:
            found.append(
                f"No interval of fewer than {MIN_SENTENCES} {unit}: {', '.join(few)}, and so "
                "none of the mean."
            )
        return found

    def make_table(self) -> Table:
        """Makes a table with a line for each kind, and one for their mean."""
        first, *others = self.means
        rows = []
        for kind, judged in [*self.by_kind.items(), (MEAN, self.mean)]:
            scores = judged.scores if judged else {}
            values = {name: scores[name].value for name in scores} or self.means
            interval = scores[first].over_sentences if scores else None
            cells = [_join(format_score(values[first]), format_interval(interval, values[first]))]
            for name in others:
                comparison = judged.comparisons[name] if judged else None
                cells.append(_join(format_score(values[name]), _show(comparison)))
            size = str(judged.num_units) if judged and kind != MEAN else ""
            rows.append([kind, size, *cells])
        unit = next(iter(self.by_kind.values())).unit
        return Table(["kind", unit, *self.means], rows, "lr" + "l" * len(self.means))

    def record(self) -> list[dict[str, Any]]:
        """Returns the lines of the table for programs, with all digits."""
        found = []
        for kind, judged in [*self.by_kind.items(), (MEAN, self.mean)]:
            for name, mean in self.means.items():
                score = judged.scores[name] if judged else None
                comparison = judged.comparisons.get(name) if judged else None
                found.append(
                    {
                        "kind": kind,
                        "system": name,
                        "measure": self.measure,
                        "score": score.value if score else mean,
                        "seeds": list(score.seeds) if score else [],
                        "over_sentences": score and score.over_sentences,
                        "over_seeds": score and score.over_seeds,
                        "num_sentences": judged.num_units if judged else None,
                        "verdict": name_verdict(comparison) if comparison else "",
                        "difference": comparison and comparison.difference,
                        "interval": comparison and comparison.interval,
                        "p_corrected": _finite(comparison.adjusted) if comparison else None,
                    }
                )
        return found


def list_kinds(test_set: TestSet) -> dict[str, Int[np.ndarray, "_"]]:
    """Returns the numbers of the sentences of each kind that count, by name of the kind.

    It is empty if the test set names no kinds.
    """
    if test_set.kinds is None:
        return {}
    numbers: dict[str, list[int]] = {}
    counted = range(len(test_set.kinds)) if test_set.part is None else test_set.part.tolist()
    for number in counted:
        numbers.setdefault(test_set.kinds[number], []).append(number)
    return {kind: np.array(numbers[kind]) for kind in sorted(numbers)}


def judge_kinds(
    statistics: Mapping[str, Statistics], measure: Measure, test_set: TestSet, share: float = 1.0
) -> KindJudgement | None:
    """Scores all systems on each kind, and compares each with the first.

    Arguments are those of `judge`. Holm's correction goes over all kinds and systems. Returns None
    if the test set has fewer than two kinds.
    """
    kinds = list_kinds(test_set)
    if len(kinds) < 2:
        return None
    judged = {
        kind: judge(statistics, measure, test_set._replace(part=part), share)
        for kind, part in kinds.items()
    }
    pairs = [(kind, name) for kind, each in judged.items() for name in each.comparisons]
    corrected = adjust([judged[kind].comparisons[name] for kind, name in pairs], share)
    by_pair = dict(zip(pairs, corrected, strict=True))
    by_kind = {
        kind: dataclasses.replace(
            each, comparisons={name: by_pair[kind, name] for name in each.comparisons}
        )
        for kind, each in judged.items()
    }
    means = {
        name: fmean(each.scores[name].value for each in judged.values()) for name in statistics
    }
    mean = None
    if all(each.num_units >= MIN_SENTENCES for each in judged.values()):
        spread = {name: spread_kinds(each, kinds) for name, each in statistics.items()}
        mean = judge(spread, average_kinds(measure, len(kinds)), test_set, share)
    return KindJudgement(measure.name, by_kind, means, mean)


def average_kinds(measure: Measure, count: int) -> Measure:
    """Returns the unweighted mean of a measure over `count` kinds, of `spread_kinds` statistics."""

    def average(sums: Float[np.ndarray, "_"]) -> float:
        return fmean(map(measure.aggregate, sums.reshape(count, -1)))

    return dataclasses.replace(
        measure, name=MEAN, segments=None, aggregate=average, is_share=False, describe=None
    )


def spread_kinds(
    statistics: Statistics, kinds: Mapping[str, Int[np.ndarray, "_"]]
) -> Float[np.ndarray, "m n _"]:
    """Puts the statistics of each sentence into the columns of its kind, beside zeros."""
    seeds, sentences, width = statistics.shape
    spread = np.zeros((seeds, sentences, len(kinds), width))
    for place, part in enumerate(kinds.values()):
        spread[:, part, place] = statistics[:, part]
    return spread.reshape(seeds, sentences, -1)


def score_kinds(
    counts: Mapping[str, Float[np.ndarray, "n _"]],
    measures: Mapping[str, Measure],
    test_set: TestSet,
) -> dict[str, dict[str, Any]]:
    """Scores one output by all measures: {kind: {"num_sentences": n, "measures": {...}}}.

    `counts` are the statistics of each sentence, by measure. The last entry is `MEAN`. It is empty
    if the test set has fewer than two kinds.
    """
    judged = {
        name: judge_kinds({"": counts[name][None]}, measure, test_set)
        for name, measure in measures.items()
    }
    found: dict[str, dict[str, Any]] = {}
    for name, each in judged.items():
        if each is None:
            return {}
        for line in each.record():
            own = found.setdefault(
                line["kind"], {"num_sentences": line["num_sentences"], "measures": {}}
            )
            own["measures"][name] = {"value": line["score"], "interval": line["over_sentences"]}
    return found


def make_score_table(scores: Mapping[str, Mapping[str, Any]]) -> Table:
    """Makes the table of what `score_kinds` returned, by the first measure."""
    measure = next(iter(next(iter(scores.values()))["measures"]))
    rows = []
    for kind, own in scores.items():
        value, interval = own["measures"][measure]["value"], own["measures"][measure]["interval"]
        size = "" if kind == MEAN else str(own["num_sentences"])
        rows.append([kind, size, format_score(value), format_interval(interval, value)])
    return Table(["kind", "sentences", measure, "95% interval"], rows, "lrrl")


def _show(comparison: SystemComparison | None) -> str:
    """Shows a difference with its interval and its verdict."""
    if comparison is None:
        return ""
    difference = format_difference(comparison.values, comparison.interval)
    return _join(f"({_join(*difference)})", name_verdict(comparison))


def _join(*parts: str) -> str:
    return " ".join(filter(None, parts))


def _finite(value: float) -> float | None:
    return None if np.isnan(value) else value
