"""Published scores beside ours: what can be said from the seeds alone.

Of a publication there are scores of some seeds, but no outputs. So sentences cannot be resampled in
pairs, and the test set counts as given: a verdict is about the seeds of two trainings on this test
set.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from statistics import fmean, variance

from scipy import special

from t2t.config.fields import Fields
from t2t.evaluation.measure import LEVEL, Interval
from t2t.evaluation.number_format import format_difference, format_p_value, format_score


@dataclasses.dataclass(frozen=True)
class Published(Fields):
    """Scores that somebody has published: one of each seed, by measure and by kind."""

    source: str  # such as "Wu et al. 2023, table 2"
    scores: Mapping[str, Sequence[float]]  # of each seed, by measure, such as {"bleu": (25.8,)}
    # of each seed for each kind of sentence, by the first measure of `scores`
    kinds: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    parameters: int | None = None  # millions
    note: str = ""  # what was different, such as another tokenisation


@dataclasses.dataclass(frozen=True)
class SeedVerdict:
    """What the seeds of two systems say about each other, on one test set."""

    ours: float  # the mean of our seeds
    theirs: float
    num_seeds: tuple[int, int]
    # of our mean minus theirs with several seeds on both sides; with one published seed, of the
    # score that another seed of ours would have; None if we have one seed
    interval: Interval | None
    p_value: float  # NaN if one side has one seed

    @property
    def is_test(self) -> bool:
        """Whether both sides have several seeds, so that their means can be compared."""
        return min(self.num_seeds) > 1

    def describe(self) -> str:
        """Says what was found, in a few words."""
        ours, theirs = (format_score(each) for each in (self.ours, self.theirs))
        values = f"{ours} against {theirs}"
        seeds = "{} and {} seeds".format(*self.num_seeds)
        if self.is_test:
            difference, interval = format_difference((self.theirs, self.ours), self.interval)
            differs = self.p_value < LEVEL
            verdict = "differs from" if differs else "is not distinguishable from"
            p_value = format_p_value(self.p_value, sign=True)
            return (
                f"{verdict} the published score: {values}, {difference} {interval}, p {p_value}; "
                f"from {seeds} alone"
            )
        if self.interval is None:
            return f"{values}: one seed of ours says nothing about others"
        low, high = self.interval
        inside = "within" if low <= self.theirs <= high else "outside of"
        one, others = "the published seed", "ours"
        if self.num_seeds[1] > 1:
            inside = "within" if low <= self.ours <= high else "outside of"
            one, others = "our seed", "the published ones"
        return (
            f"{values}: {one} lies {inside} [{low:.2f}, {high:.2f}], where one more of {others} "
            f"would lie in 95% of cases; from {seeds}, no test"
        )


def judge_published(ours: Sequence[float], theirs: Sequence[float]) -> SeedVerdict:
    """Compares the scores of our seeds with published ones.

    With several seeds on both sides this is Welch's (1947) test, which lets the variances differ.
    With one on a side it is the prediction interval of a single score from the other side: the mean
    plus and minus t s sqrt(1 + 1/n).
    """
    counts = len(ours), len(theirs)
    means = fmean(ours), fmean(theirs)
    if min(counts) > 1:
        errors = [variance(each) / len(each) for each in (ours, theirs)]
        error = math.sqrt(sum(errors))
        if not error:
            same = means[0] == means[1]
            return SeedVerdict(*means, counts, (means[0] - means[1],) * 2, 1.0 if same else 0.0)
        freedom = sum(errors) ** 2 / sum(
            e**2 / (n - 1) for e, n in zip(errors, counts, strict=True)
        )
        half = float(special.stdtrit(freedom, 1 - LEVEL / 2)) * error
        difference = means[0] - means[1]
        p_value = 2 * float(special.stdtr(freedom, -abs(difference) / error))
        return SeedVerdict(*means, counts, (difference - half, difference + half), p_value)
    several = ours if counts[0] > 1 else theirs
    if len(several) < 2:
        return SeedVerdict(*means, counts, None, math.nan)
    mean, n = fmean(several), len(several)
    half = float(special.stdtrit(n - 1, 1 - LEVEL / 2)) * math.sqrt(variance(several) * (1 + 1 / n))
    return SeedVerdict(*means, counts, (mean - half, mean + half), math.nan)
