"""Compares our scores with published ones, by the seeds of both alone.

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
from t2t.evaluation.number_format import format_difference, format_p_value


@dataclasses.dataclass(frozen=True)
class Published(Fields):
    """Scores that somebody has published: one of each seed, by measure and by kind."""

    source: str  # such as "Wu et al. 2023, table 2", and what was different
    scores: Mapping[str, tuple[float, ...]]  # of each seed, by measure, such as {"bleu": (25.8,)}
    # of each seed for each kind of sentence, by the first measure of `scores`
    kinds: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    parameters: int | None = None  # millions
    # whether they are of the test set and by the definition that ours are: then there is a verdict
    is_comparable: bool = True


@dataclasses.dataclass(frozen=True)
class SeedVerdict:
    """The comparison of two systems on one test set, by the scores of their seeds alone."""

    ours: float  # the mean of our seeds
    theirs: float
    num_seeds: tuple[int, int]
    # of our mean minus theirs with several seeds on both sides; with one published seed, of the
    # score that another seed of ours would have; None if we have one seed
    interval: Interval | None
    p_value: float  # corrected; NaN if one side has one seed

    @property
    def is_test(self) -> bool:
        """True if both sides have several seeds, so that their means are tested."""
        return min(self.num_seeds) > 1

    def describe(self) -> str:
        """Says what was found, in a few words."""
        if self.interval is None:
            return "one seed on either side says nothing about others"
        low, high = self.interval
        if self.is_test:
            differs = self.p_value < LEVEL
            difference, interval = format_difference((self.theirs, self.ours), self.interval)
            p_value = format_p_value(self.p_value, sign=True)
            verdict = "differs" if differs else "not distinguishable"
            return f"{verdict}: {difference} {interval}, p {p_value}"
        if self.num_seeds[1] == 1:
            single, name, others = self.theirs, "the published seed", "ours"
        else:
            single, name, others = self.ours, "our seed", "the published ones"
        inside = "within" if low <= single <= high else "outside of"
        return f"no test: {name} is {inside} [{low:.2f}, {high:.2f}], where one more of {others} is"


def judge_published(ours: Sequence[float], theirs: Sequence[float], count: int = 1) -> SeedVerdict:
    """Compares the scores of our seeds with published ones, as one of `count` comparisons.

    p-values are multiplied by `count`, and intervals have the level that this leaves (Bonferroni).

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
        half = float(special.stdtrit(freedom, 1 - LEVEL / count / 2)) * error
        difference = means[0] - means[1]
        p_value = min(2 * count * float(special.stdtr(freedom, -abs(difference) / error)), 1.0)
        return SeedVerdict(*means, counts, (difference - half, difference + half), p_value)
    several = ours if counts[0] > 1 else theirs
    if len(several) < 2:
        return SeedVerdict(*means, counts, None, math.nan)
    mean, n = fmean(several), len(several)
    quantile = float(special.stdtrit(n - 1, 1 - LEVEL / count / 2))
    half = quantile * math.sqrt(variance(several) * (1 + 1 / n))
    return SeedVerdict(*means, counts, (mean - half, mean + half), math.nan)
