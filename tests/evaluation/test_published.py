"""Verdicts on published scores, from the seeds of both sides alone."""

import math

import numpy as np
import pytest
from scipy import stats

from t2t.evaluation.published import judge_published


def test_several_seeds_on_both_sides_are_compared_by_welchs_test() -> None:
    ours, theirs = (81.0, 84.5, 83.0), (44.0, 67.0, 55.0, 61.0)
    found = judge_published(ours, theirs)
    expected = stats.ttest_ind(ours, theirs, equal_var=False)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx([*expected.confidence_interval()])
    assert found.describe().startswith("differs from the published score: 82.83 against 56.75, +2")
    assert "from 3 and 4 seeds alone" in found.describe()


def test_one_published_seed_has_a_prediction_interval_and_no_test() -> None:
    found = judge_published((80.0, 82.0, 84.0), (95.0,))
    half = stats.t.ppf(0.975, 2) * 2 * math.sqrt(4 / 3)
    assert found.interval == pytest.approx((82 - half, 82 + half))
    assert not found.is_test
    assert math.isnan(found.p_value)
    assert "the published seed lies outside of [72.06, 91.94]" in found.describe()
    other = judge_published((83.0,), (80.0, 82.0, 84.0))
    assert "our seed lies within [72.06, 91.94]" in other.describe()
    assert judge_published((83.0,), (84.0,)).interval is None


def test_seeds_that_do_not_vary() -> None:
    assert judge_published((1.0, 1.0), (1.0, 1.0)).p_value == 1
    assert judge_published((1.0, 1.0), (2.0, 2.0)).p_value == 0


@pytest.mark.parametrize(("ours", "theirs", "scale"), [(3, 5, 1), (3, 5, 4), (3, 1, 1)])
def test_equal_trainings_are_rarely_said_to_differ(ours: int, theirs: int, scale: float) -> None:
    """5% of pairs, whatever their variances; of one published seed they are equal."""
    random = np.random.default_rng(0)
    wrong = 0
    for _ in range(2000):
        found = judge_published(
            random.normal(size=ours).tolist(), (scale * random.normal(size=theirs)).tolist()
        )
        low, high = found.interval or (0.0, 0.0)
        wrong += found.p_value < 0.05 if found.is_test else not low <= found.theirs <= high
    assert 0.03 < wrong / 2000 < 0.065
