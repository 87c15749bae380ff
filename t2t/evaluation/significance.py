"""A test of differences between systems that covers chance in both sentences and seeds.

A system is one way to train; it has the translations of one run, or of several that differ in their
seed alone. Sentences are resampled in pairs, as in Koehn (2004), for all runs at once. Few seeds
cannot be resampled (of two, half of all draws hold one twice); their scatter is taken as it is, and
Student's distribution makes up for how little of it was seen.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics.base import Metric
from scipy.stats import t as student

from t2t.evaluation.scores import RESAMPLES, Measure

LEVEL = 0.05  # of a verdict: its intervals hold 95%

Interval = tuple[float, float]
Texts = Sequence[Sequence[str]]  # the hypotheses of each seed
Statistics = Float[np.ndarray, "m n _"]  # of m seeds and n sentences: what a score is made of
ScoreOf = Callable[[Float[np.ndarray, "_"]], float]  # the score that sums of statistics make


@dataclasses.dataclass(frozen=True)
class SystemScore:
    """The score of a system."""

    value: float  # the mean over its seeds
    seeds: tuple[float, ...]  # the score of each
    over_sentences: Interval  # 95%: other sentences, these seeds
    over_seeds: Interval | None  # 95%: other seeds, these sentences; None of a single one
    resampled: Float[np.ndarray, "R m"] = dataclasses.field(repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The second system against the first."""

    difference: float  # second - first
    better: bool  # the difference is an improvement, if it is one at all
    num_seeds: tuple[int, int]  # of the first, of the second
    sentence_error: float  # standard error from the choice of the sentences, beyond `seed_error`
    seed_error: float | None  # that from the seeds' scatter; None where no system has several
    interval: Interval  # of the difference, 95%
    p_value: float  # two-sided, of this comparison alone
    adjusted: float  # the p-value by which it is judged: corrected where there are several

    @property
    def distinguishable(self) -> bool:
        """Returns whether the difference is significant at `LEVEL`."""
        return self.adjusted < LEVEL


def measure_sentences(measure: Measure, system: Texts, references: Sequence[str]) -> Statistics:
    """SacreBLEU's counts for each sentence of each seed's translations."""
    treated = [*map(measure.treat, references)]
    return np.array(
        [
            measure.metric._extract_corpus_statistics([*map(measure.treat, lines)], [treated])
            for lines in system
        ],
        float,
    )


def sacrebleu_score(metric: Metric) -> ScoreOf:
    """The metric's score of summed statistics."""
    return lambda sums: float(metric._compute_score_from_stats(sums.tolist()).score)


def mean_nats(sums: Float[np.ndarray, "2"]) -> float:
    """Nats per token, of summed (nats, tokens)."""
    return float(sums[0] / sums[1])


def score_system(score: ScoreOf, statistics: Statistics) -> SystemScore:
    """The system's score, and what it might have been."""
    seeds = tuple(score(one.sum(axis=0)) for one in statistics)
    drawn = draw_sentences(statistics.shape[1])
    sums = np.einsum("Rn,mnk->Rmk", drawn, statistics, optimize=True)
    resampled = np.array([[score(one) for one in of_seeds] for of_seeds in sums])
    low, high = np.quantile(resampled.mean(axis=1), (LEVEL / 2, 1 - LEVEL / 2))
    return SystemScore(
        fmean(seeds),
        seeds,
        (float(low), float(high)),
        estimate_over_seeds(seeds),
        resampled,
    )


@functools.lru_cache(4)
def draw_sentences(count: int) -> Float[np.ndarray, "R n"]:
    """Counts of each sentence in each resample: the same for every system, which pairs them."""
    draws = np.random.default_rng(12345).multinomial(count, [1 / count] * count, size=RESAMPLES)
    return draws.astype(float)


def estimate_over_seeds(scores: Sequence[float]) -> Interval | None:
    """Student's 95% interval of the mean over all seeds; None of a single score."""
    if len(scores) < 2:
        return None
    mean, freedom = fmean(scores), len(scores) - 1
    half = _quantile(freedom) * stdev(scores) / math.sqrt(len(scores))
    return mean - half, mean + half


def compare_systems(
    first: SystemScore, second: SystemScore, *, higher_is_better: bool
) -> Comparison:
    """The second system against the first, on the same sentences.

    With scatter s^2 of the seeds, pooled over both systems with f degrees of freedom, and c =
    1/m_1 + 1/m_2, the variance of the difference is s^2 c + v, where v is the variance over
    resampled sentences without what of it is each run's own, which s^2 holds already. Its square
    root is held against Student's distribution with f (s^2 c + v) / (s^2 c) degrees of freedom.
    For two or more degrees f the simulated rate of false verdicts lies between 3% and 6%, whatever
    share of the variance is that of the seeds (tests/evaluation/test_significance.py); for one, of
    two runs against one, it is up to 9%. That seeds scatter alike in both systems is assumed.
    """
    systems = first, second
    difference = second.value - first.value
    sentences = float((second.resampled.mean(axis=1) - first.resampled.mean(axis=1)).var())
    freedom = float(sum(len(system.seeds) - 1 for system in systems))
    if freedom:
        share = sum(1 / len(system.seeds) for system in systems)
        own = sum(_center(system.resampled).var(axis=0).sum() for system in systems) / freedom
        sentences = max(sentences - float(own) * share, 0.0)
        seeds = sum(float((_center(np.array([system.seeds])) ** 2).sum()) for system in systems)
        seeds *= share / freedom
    else:
        seeds, freedom = 0.0, math.inf
    error = math.sqrt(sentences + seeds)
    freedom = freedom * (sentences + seeds) / seeds if seeds else math.inf
    half = _quantile(freedom) * error
    if error:
        p_value = 2 * float(student.sf(abs(difference) / error, freedom))
    else:  # neither sentences nor seeds vary
        p_value = float(difference == 0)
    return Comparison(
        difference=difference,
        better=(difference > 0) == higher_is_better,
        num_seeds=(len(first.seeds), len(second.seeds)),
        sentence_error=math.sqrt(sentences),
        seed_error=None if all(len(system.seeds) == 1 for system in systems) else math.sqrt(seeds),
        interval=(difference - half, difference + half),
        p_value=p_value,
        adjusted=p_value,
    )


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Systems by one measure, and each of them against the first."""

    scores: Mapping[str, SystemScore]
    comparisons: Mapping[str, Comparison]  # of all systems but the first


def judge(
    systems: Mapping[str, Statistics], score: ScoreOf, *, higher_is_better: bool
) -> Judgement:
    """Scores all systems on the same resamples, and compares each with the first."""
    scores = {name: score_system(score, statistics) for name, statistics in systems.items()}
    (_, first), *others = scores.items()
    found = [
        compare_systems(first, system, higher_is_better=higher_is_better) for _, system in others
    ]
    names = [name for name, _ in others]
    return Judgement(scores, dict(zip(names, adjust(found), strict=True)))


def adjust(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The same, judged together: Holm's (1979) correction for several comparisons.

    The chance that any of them is a false verdict is then at most `LEVEL`.
    """
    adjusted = [0.0] * len(comparisons)
    largest = 0.0
    order = sorted(range(len(comparisons)), key=lambda index: comparisons[index].p_value)
    for rank, index in enumerate(order):
        largest = max(largest, (len(comparisons) - rank) * comparisons[index].p_value)
        adjusted[index] = min(largest, 1.0)
    return [
        dataclasses.replace(comparison, adjusted=p_value)
        for comparison, p_value in zip(comparisons, adjusted, strict=True)
    ]


def _center(scores: Float[np.ndarray, "R m"]) -> Float[np.ndarray, "R m"]:
    """Each seed's distance from the system's mean."""
    centered: np.ndarray = scores - scores.mean(axis=1, keepdims=True)
    return centered


def _quantile(freedom: float) -> float:
    return float(student.ppf(1 - LEVEL / 2, freedom))
