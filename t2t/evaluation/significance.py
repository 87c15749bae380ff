"""Whether a difference is real: sacreBLEU's paired bootstrap, and Student's test over seeds.

An arm is one way to train; it has the translations of one run, or of several that differ in their
seed alone. A difference can come from the choice of the test sentences or from that of the seeds,
and each source has its own evidence.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.base import Metric, Score
from sacrebleu.significance import PairedTest, Result
from scipy.stats import t as student

from t2t.evaluation.bleu import RESAMPLES, Measure

LEVEL = 0.05  # of a verdict: its intervals hold 95%

Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What one source of chance says about the difference between two arms."""

    interval: Interval  # of the difference, 95%
    p_value: float

    @property
    def convincing(self) -> bool:
        """Whether chance hardly gives such a difference.

        Both have to say so: sacreBLEU's p-value is in effect one-sided, and below 0.05 for one in
        ten pairs of arms that do not differ.
        """
        low, high = self.interval
        return self.p_value < LEVEL and not low <= 0 <= high


@dataclasses.dataclass(frozen=True)
class ArmScore:
    """How an arm did."""

    value: float  # the mean over its seeds
    seeds: tuple[float, ...]  # the score of each
    over_sentences: Interval  # 95%: other sentences, these seeds
    over_seeds: Interval | None  # 95%: other seeds, these sentences; None of a single one


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The second arm against the first."""

    difference: float  # second - first
    better: bool  # the difference is an improvement, if it is one at all
    sentences: Evidence
    seeds: Evidence | None  # None where no arm has several

    @property
    def distinguishable(self) -> bool:
        """Whether no source of chance explains the difference."""
        return all(each.convincing for each in (self.sentences, self.seeds) if each)


class Contrast(Metric):
    """A weighted sum of a metric's scores of several texts, as one score.

    Through it sacreBLEU's bootstrap resamples means over seeds and differences between arms: a
    line holds what each text has for one sentence, joined by line feeds, which no text has inside.
    """

    def __init__(self, metric: Metric, weights: Sequence[float] | None = None):
        """Without weights it is the mean, of however many texts there are."""
        super().__init__()  # type: ignore[no-untyped-call]  # of sacreBLEU
        self._metric, self._weights = metric, weights
        self._width = len(_count(metric, "a", ("a",)))

    def _preprocess_segment(self, sent: str) -> str:
        return "\n".join(map(self._metric._preprocess_segment, sent.split("\n")))

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": tuple(refs)}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[Any]:
        """Those of each text, side by side."""
        references = ref_kwargs["references"]
        lines = hypothesis.split("\n")
        return [number for line in lines for number in _count(self._metric, line, references)]

    def _aggregate_and_compute(self, stats: list[list[Any]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    def _compute_score_from_stats(self, stats: Sequence[Any] | np.ndarray) -> Score:
        starts = range(0, len(stats), self._width)
        scores = [
            self._metric._compute_score_from_stats(list(stats[start : start + self._width])).score
            for start in starts
        ]
        weights = self._weights or [1 / len(scores)] * len(scores)
        total = sum(weight * score for weight, score in zip(weights, scores, strict=True))
        return Score("contrast", float(total))


@functools.lru_cache(1 << 18)
def _count(metric: Metric, line: str, references: tuple[str, ...]) -> list[Any]:
    """A sentence's statistics, once: every comparison asks again, and TER's take milliseconds."""
    return metric._compute_segment_statistics(line, metric._extract_reference_info(references))


Texts = Sequence[Sequence[str]]  # the hypotheses of each seed


def score_arm(measure: Measure, arm: Texts, references: Sequence[str]) -> ArmScore:
    """The arm's score, and what it might have been."""
    seeds = tuple(_score_seeds(measure, arm, references))
    [over_sentences] = _resample(Contrast(measure.metric), measure, [arm], references)
    return ArmScore(
        statistics.fmean(seeds), seeds, _interval(over_sentences), estimate_over_seeds(seeds)
    )


def compare_arms(
    measure: Measure, first: Texts, second: Texts, references: Sequence[str]
) -> Comparison:
    """The second arm against the first, sentence by sentence."""
    weights = [-1 / len(first)] * len(first) + [1 / len(second)] * len(second)
    contrast = Contrast(measure.metric, weights)
    [difference] = _resample(contrast, measure, [[*first, *second]], references)
    _, paired = _resample(Contrast(measure.metric), measure, [first, second], references)
    assert paired.p_value is not None
    scores = [_score_seeds(measure, arm, references) for arm in (first, second)]
    return Comparison(
        difference=difference.score,
        better=(difference.score > 0) == measure.higher_is_better,
        sentences=Evidence(_interval(difference), paired.p_value),
        seeds=compare_over_seeds(*scores),
    )


def estimate_over_seeds(scores: Sequence[float]) -> Interval | None:
    """Student's 95% interval of the mean over all seeds; None of a single score."""
    if len(scores) < 2:
        return None
    mean, freedom = statistics.fmean(scores), len(scores) - 1
    half = _quantile(freedom) * statistics.stdev(scores) / math.sqrt(len(scores))
    return mean - half, mean + half


def compare_over_seeds(first: Sequence[float], second: Sequence[float]) -> Evidence | None:
    """Student's t-test on the difference of means, seeds scattering alike in both arms.

    That assumption lets an arm with one seed be compared with one that has several. None where
    neither has.
    """
    freedom = len(first) + len(second) - 2
    if not freedom:
        return None
    difference = statistics.fmean(second) - statistics.fmean(first)
    squares = sum((score - statistics.fmean(arm)) ** 2 for arm in (first, second) for score in arm)
    error = math.sqrt(squares / freedom * (1 / len(first) + 1 / len(second)))
    half = _quantile(freedom) * error
    if error:
        p_value = float(2 * student.sf(abs(difference) / error, freedom))
    else:
        p_value = float(difference == 0)
    return Evidence((difference - half, difference + half), p_value)


def _quantile(freedom: int) -> float:
    return float(student.ppf(1 - LEVEL / 2, freedom))


def _score_seeds(measure: Measure, arm: Texts, references: Sequence[str]) -> list[float]:
    treated = [*map(measure.treat, references)]
    metric = Contrast(measure.metric)
    return [metric.corpus_score([*map(measure.treat, lines)], [treated]).score for lines in arm]


def _resample(
    metric: Contrast, measure: Measure, arms: Sequence[Texts], references: Sequence[str]
) -> list[Result]:
    """sacreBLEU's bootstrap: the first arm alone, then each other one against it."""
    named: list[tuple[str, Sequence[str]]] = [
        (str(number), ["\n".join(map(measure.treat, lines)) for lines in zip(*arm, strict=True)])
        for number, arm in enumerate(arms)
    ]
    treated = [*map(measure.treat, references)]
    test = PairedTest(named, {"": metric}, [treated], test_type="bs", n_samples=RESAMPLES)
    _, results = test()
    return [result for result in results["contrast"] if isinstance(result, Result)]


def _interval(result: Result) -> Interval:
    assert result.mean is not None
    assert result.ci is not None
    return float(result.mean - result.ci), float(result.mean + result.ci)
