"""Significance tests between systems, which cover the choice of both sentences and seeds.

A system is one training setup, with the translations of one run or of several runs that differ only
in their seed. Sentences are resampled in pairs, as in Koehn (2004): with the same draws for all
runs. Few seeds cannot be resampled (with two, half of all draws hold one seed twice), so their
variance is estimated from the scores, and Student's t accounts for the few degrees of freedom.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

from t2t.evaluation.measure import (
    LEVEL,
    MIN_SENTENCES,
    Interval,
    Measure,
    Statistics,
    TestSet,
    resample_sentences,
)

WIDTH = 10  # words; bucket n holds sources of n * WIDTH + 1 to (n + 1) * WIDTH words
LAST = 5  # number of the last bucket, which also holds all longer sentences
# Share of `LEVEL` that a look before the end of training takes. It stops what is clearly worse, for
# which a small share is enough, and leaves most of the level for the verdicts at the end.
LOOK_SHARE = 0.2


@dataclasses.dataclass(frozen=True)
class SystemScore:
    """The score of a system, and its confidence intervals."""

    value: float  # the mean over its seeds
    seeds: tuple[float, ...]  # the score of each seed
    over_sentences: Interval | None  # 95%: for other sentences with these seeds; None if too few
    over_seeds: Interval | None  # 95%: for other seeds on these sentences; None with one seed
    num_units: int  # sentences, or documents if those are resampled
    # the score of each seed on each of R resamples of the sentences
    resampled: Float[np.ndarray, "R m"] = dataclasses.field(repr=False, compare=False)


class Estimate(NamedTuple):
    """An estimated difference with its error, of which the interval at any level follows."""

    middle: float
    error: float  # standard error
    freedom: float  # degrees of freedom of Student's t; infinite for the normal distribution
    limit: float  # the largest difference of two scores

    def find_interval(self, level: float) -> Interval:
        """Returns the interval that leaves out the true difference with probability `level`."""
        half = _quantile(self.freedom, level) * self.error
        low, high = np.clip((self.middle - half, self.middle + half), -self.limit, self.limit)
        return float(low), float(high)


@dataclasses.dataclass(frozen=True)
class SystemComparison:
    """The difference of the second system from the first, and its significance."""

    values: tuple[float, float]  # the scores of the first and of the second system
    better: bool  # whether a difference of this sign is an improvement
    num_seeds: tuple[int, int]  # of the first and of the second system
    sentence_error: float  # standard error from the sentences, without what `seed_error` holds
    seed_error: float | None  # standard error from the seeds; None if each system has only one
    interval: Interval | None  # of the difference, corrected; None if the sentences are too few
    p_value: float  # two-sided, of this comparison alone; NaN if it cannot be tested
    adjusted: float  # p-value corrected by `adjust`; decides the verdict
    level: float = LEVEL  # the interval leaves out the true difference with this probability
    correction: str = (
        ""  # of `adjusted` and `level`, such as "Holm's correction"; "" if there is none
    )
    estimate: Estimate | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def difference(self) -> float:
        """The second score minus the first."""
        return self.values[1] - self.values[0]

    @property
    def distinguishable(self) -> bool:
        """Returns whether the difference is significant at `LEVEL`."""
        return self.adjusted < LEVEL


def score_system(measure: Measure, statistics: Statistics) -> SystemScore:
    """Scores a system, with its intervals over sentences and over seeds.

    The interval over sentences is that of `resample_sentences`; both lie within the limits of the
    measure. The sentences may also be whole documents, with summed statistics.
    """
    seeds = tuple(measure.aggregate(one.sum(axis=0)) for one in statistics)
    over_sentences, resampled = resample_sentences(measure.aggregate, statistics)
    over_seeds = estimate_over_seeds(seeds, measure)
    return SystemScore(
        fmean(seeds), seeds, over_sentences, over_seeds, statistics.shape[1], resampled
    )


def estimate_over_seeds(scores: Sequence[float], measure: Measure) -> Interval | None:
    """Student's 95% interval of the mean over seeds, within the limits; None for one score."""
    if len(scores) < 2:
        return None
    mean, freedom = fmean(scores), len(scores) - 1
    half = _quantile(freedom, LEVEL) * stdev(scores) / math.sqrt(len(scores))
    return measure.clip((mean - half, mean + half))


def compare_systems(first: SystemScore, second: SystemScore, measure: Measure) -> SystemComparison:
    """Tests the difference of the second system from the first, on the same sentences.

    There is no test of fewer than `MIN_SENTENCES`, nor if the scores differ but vary neither over
    resamples nor over seeds: the p-value is then NaN.

    Let s^2 be the variance of the scores over seeds, pooled over both systems with f degrees of
    freedom, and c = 1/m_1 + 1/m_2 for m_1 and m_2 seeds. The variance of the difference is
    s^2 c + v, in the code `by_seeds` and `by_sentences`. Here v is the variance of the difference
    over resampled sentences, less the part that is specific to each run, since s^2 already contains
    that part. The difference divided by the root of its variance is compared with Student's t with
    f (s^2 c + v) / (s^2 c) degrees of freedom, at most n - 1 with n sentences. Variances over
    resamples are multiplied by n / (n - 1), since resampling n sentences underestimates them. The
    variance over seeds is assumed to be equal in both systems.

    In simulations (benchmarks/verdicts.py) the rate of false verdicts is between 4% and 6% for f of
    2 or more, whatever part of the variance is due to seeds, and up to 8% for f = 1 (two runs
    against one).
    """
    systems = first, second
    difference = second.value - first.value
    n = first.num_units
    if n < MIN_SENTENCES:
        return _make_comparison(first, second, measure, (0.0, 0.0), None, math.nan)
    unbiased = n / (n - 1)
    resampled = second.resampled.mean(axis=1) - first.resampled.mean(axis=1)
    by_sentences = unbiased * float(resampled.var())
    by_seeds, f = 0.0, sum(len(system.seeds) - 1 for system in systems)
    if f:
        c = sum(1 / len(system.seeds) for system in systems)
        # The variance over resampled sentences that is specific to each run, and that over seeds.
        of_runs = unbiased * sum(
            float(_center(system.resampled).var(axis=0).sum()) for system in systems
        )
        of_seeds = sum(float((_center(np.array([system.seeds])) ** 2).sum()) for system in systems)
        if of_seeds:  # 0 if all seeds have one score, which then holds no part of v
            by_sentences = max(by_sentences - of_runs / f * c, 0.0)
        by_seeds = of_seeds / f * c
    error = math.sqrt(by_sentences + by_seeds)
    freedom = f * (by_sentences + by_seeds) / by_seeds if by_seeds else math.inf
    freedom = min(freedom, n - 1)
    if error:
        p_value = 2 * float(special.stdtr(freedom, -abs(difference) / error))
    else:  # neither sentences nor seeds vary
        p_value = math.nan if difference else 1.0
    errors = math.sqrt(by_sentences), math.sqrt(by_seeds)
    estimate = Estimate(difference, error, freedom, measure.width)
    return _make_comparison(first, second, measure, errors, estimate, p_value)


def compare_shares(
    first: SystemScore, second: SystemScore, measure: Measure, right: Float[np.ndarray, "2 n"]
) -> SystemComparison:
    """McNemar's exact test of two shares of right sentences, of one run each.

    Of the d sentences that one run alone has right, either run has each with probability 1/2 if
    both are equally good, so their number in the second run is binomial. The interval of the
    difference is that of Agresti and Min (2005): the normal one after half a sentence is added to
    each cell of the table of both runs. It also covers that d varies, which the test need not, so
    near the edge one may exclude 0 and the other not. It covers the true difference in 92.6% to
    96.0% of cases if ten sentences or more differ on average, and in 86% to 100% if fewer do.
    `right` has 1 for each sentence that the first and that the second run has right, else 0; the
    shares are in percent.
    """
    count = right.shape[1]
    gained, lost = int((right[1] > right[0]).sum()), int((right[1] < right[0]).sum())
    differing, gain = gained + lost, gained - lost

    def estimate_error(differing: int, count: int) -> float:
        return 100 / count * math.sqrt(differing - gain**2 / count)

    estimate = None
    if count >= MIN_SENTENCES:
        middle, error = 100 * gain / (count + 2), estimate_error(differing + 1, count + 2)
        estimate = Estimate(middle, error, math.inf, measure.width)
    p_value = min(2 * float(special.bdtr(min(gained, lost), differing, 0.5)), 1.0)
    errors = estimate_error(differing, count), 0.0
    return _make_comparison(first, second, measure, errors, estimate, p_value)


def _make_comparison(
    first: SystemScore,
    second: SystemScore,
    measure: Measure,
    errors: tuple[float, float],
    estimate: Estimate | None,
    p_value: float,
) -> SystemComparison:
    """`errors` are the standard errors from the sentences and from the seeds."""
    num_seeds = len(first.seeds), len(second.seeds)
    return SystemComparison(
        values=(first.value, second.value),
        better=(second.value > first.value) == measure.higher_is_better,
        num_seeds=num_seeds,
        sentence_error=errors[0],
        seed_error=None if max(num_seeds) == 1 else errors[1],
        interval=estimate and estimate.find_interval(LEVEL),
        p_value=p_value,
        adjusted=p_value,
        estimate=estimate,
    )


@dataclasses.dataclass(frozen=True)
class Judgement:
    """The scores of all systems by one measure, and their comparisons with the first."""

    scores: Mapping[str, SystemScore]
    comparisons: Mapping[str, SystemComparison]  # of all systems except the first
    unit: str = "sentences"  # that is resampled; or "documents"
    share: float = 1.0  # of `LEVEL` that these verdicts may use; a look took the rest
    family: int = 0  # as that of `adjust`

    @property
    def num_corrected(self) -> int:
        """The number of comparisons for which p-values and intervals are corrected."""
        return max(self.family, len(self.comparisons))

    @property
    def num_units(self) -> int:
        """The number of sentences or documents."""
        return next(iter(self.scores.values())).num_units


def judge(
    statistics: Mapping[str, Statistics],
    measure: Measure,
    test_set: TestSet,
    share: float = 1.0,
    family: int = 0,
) -> Judgement:
    """Scores all systems on the same resamples, and compares each with the first.

    `statistics` are the statistics of each sentence, by system. `share` and `family` are those of
    `adjust`: after a look with `judge_look` `share` is what the look left.
    """
    systems = {name: test_set.sum_units(counts) for name, counts in statistics.items()}
    scores = {name: score_system(measure, counts) for name, counts in systems.items()}
    # Sums over documents are no single outcomes, for which McNemar's test is.
    is_single = measure.is_share and all((each[..., 1] == 1).all() for each in systems.values())
    first, *others = systems
    found = []
    for name in others:
        pair = scores[first], scores[name]
        if is_single and all(len(each.seeds) == 1 for each in pair):
            right = np.stack([systems[each][0, :, 0] for each in (first, name)])
            found.append(compare_shares(*pair, measure, right))
        else:
            found.append(compare_systems(*pair, measure))
    comparisons = dict(zip(others, adjust(found, share, family), strict=True))
    return Judgement(scores, comparisons, test_set.unit, share, family)


def judge_look(judgement: Judgement, share: float = LOOK_SHARE) -> dict[str, SystemComparison]:
    """Returns the systems that are worse than the first one before the end of training.

    They may be stopped; the others are judged again at the end, by `judge` with what is left:
    1 - `share`. The look and the end divide `LEVEL` (Bonferroni, a spending of the level in the
    sense of Lan and DeMets 1983), and Holm's correction goes over the systems at either time. If
    systems equal the first one, then the probability that any of them is stopped is at most
    `share` times `LEVEL`, and that any of them has a false verdict at the end the rest of it,
    however the two times depend on each other. A system that is stopped is worse at that step; one
    that learns slowly might have been better at the end.

    In the comparisons p-values and intervals are corrected for the look.
    """
    found = zip(
        judgement.comparisons, adjust([*judgement.comparisons.values()], share), strict=True
    )
    return {name: each for name, each in found if each.distinguishable and not each.better}


def adjust(
    comparisons: Sequence[SystemComparison], share: float = 1.0, family: int = 0
) -> list[SystemComparison]:
    """Corrects p-values and intervals for several comparisons, by Holm (1979), and for a look.

    The verdicts may use `share` of `LEVEL`. The probability that any of them is a false positive is
    then at most `share` times `LEVEL`, if each p-value covers all that varies; with one run of each
    system it does not cover the seeds. A p-value of NaN stays NaN, and counts as a comparison.

    Holm's step k of m tests the k-th smallest p-value at the level `share` * `LEVEL` / (m - k + 1),
    and the first one that does not pass ends the verdicts. Each interval has the level of its step,
    and those after the end have the level of the step that ended. So an interval excludes 0 if and
    only if the difference is distinguishable, apart from `compare_shares`. If none is, then all
    have the level `share` * `LEVEL` / m, and cover all differences at once (Bonferroni).

    `family` is m where these are some of more comparisons that could have been made: where k
    systems are compared with the one that has the best score among them, m is k (k - 1) / 2, the
    number of all pairs. Then the probability holds for any choice of the pairs.
    """
    count = max(family, len(comparisons))
    names = ["Holm's correction"] * (count > 1) + ["the correction for a look"] * (share < 1)
    corrected = [
        dataclasses.replace(each, adjusted=math.nan, correction=" and ".join(names))
        for each in comparisons
    ]
    valid = [index for index, one in enumerate(comparisons) if not math.isnan(one.p_value)]
    largest, level = 0.0, LEVEL
    for rank, index in enumerate(sorted(valid, key=lambda index: comparisons[index].p_value)):
        one, factor = comparisons[index], (count - rank) / share
        if largest < LEVEL:  # all before have passed
            level = LEVEL / factor
        largest = max(largest, factor * one.p_value)
        corrected[index] = dataclasses.replace(
            corrected[index],
            adjusted=min(largest, 1.0),
            level=level,
            interval=one.estimate.find_interval(level) if one.estimate else one.interval,
        )
    return corrected


def _center(scores: Float[np.ndarray, "R m"]) -> Float[np.ndarray, "R m"]:
    """Subtracts the mean over the system's seeds from each seed's score."""
    centered: np.ndarray = scores - scores.mean(axis=1, keepdims=True)
    return centered


def _quantile(freedom: float, level: float) -> float:
    """The quantile of Student's t that an interval needs; scipy.stats takes a second to import."""
    return float(special.stdtrit(freedom, 1 - level / 2))


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The sentences whose source length is in one range, and each system's score on them."""

    words: str  # the range, such as "11-20"
    indices: Sequence[int]
    scores: Mapping[str, SystemScore]  # by system


def score_by_length(
    measure: Measure, systems: Mapping[str, Statistics], sources: Sequence[str]
) -> list[Bucket]:
    """Scores the systems in each bucket that is not empty, the shortest sentences first."""
    members: dict[int, list[int]] = {}
    for index, source in enumerate(sources):
        length = max(len(source.split()), 1)
        members.setdefault(min((length - 1) // WIDTH, LAST), []).append(index)
    buckets = []
    for number, indices in sorted(members.items()):
        first = number * WIDTH + 1
        scores = {
            name: score_system(measure, system[:, indices]) for name, system in systems.items()
        }
        words = f"{first}+" if number == LAST else f"{first}-{first + WIDTH - 1}"
        buckets.append(Bucket(words, indices, scores))
    return buckets
