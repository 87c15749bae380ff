"""Verdicts against sacreBLEU's test called by hand, against SciPy and against known tables."""

import math
import random
from collections.abc import Sequence

import pytest
from sacrebleu.significance import PairedTest, Result
from scipy import stats

from t2t.evaluation.bleu import RESAMPLES, make_measure
from t2t.evaluation.significance import (
    compare_arms,
    compare_over_seeds,
    estimate_over_seeds,
    score_arm,
)

WORDS = "der die das Hund Kind Ball Baum rot weiß groß läuft liegt sitzt im am".split()


def make_references(count: int) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(5, 12))) for _ in range(count)]


def spoil(lines: list[str], share: float, seed: int) -> list[str]:
    """Each word is another with this probability."""
    draw = random.Random(seed)
    return [
        " ".join(draw.choice(WORDS) if draw.random() < share else word for word in line.split())
        for line in lines
    ]


REFERENCES = make_references(120)
GOOD = [spoil(REFERENCES, 0.1, seed) for seed in (1, 2, 3)]
BAD = [spoil(REFERENCES, 0.3, seed) for seed in (4, 5)]


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter", "exact_match", "bleu_paper"])
def test_two_runs_are_tested_as_sacrebleu_tests_them(name: str) -> None:
    measure = make_measure(name, "de")
    lines = [[*map(measure.treat, text)] for text in (GOOD[0], GOOD[1])]
    named: list[tuple[str, Sequence[str]]] = [("first", lines[0]), ("second", lines[1])]
    references = [*map(measure.treat, REFERENCES)]
    _, results = PairedTest(named, {"x": measure.metric}, [references], "bs", RESAMPLES)()
    (first, second) = next(found for key, found in results.items() if key != "System")
    assert isinstance(first, Result)
    assert isinstance(second, Result)

    comparison = compare_arms(measure, GOOD[:1], GOOD[1:2], REFERENCES)
    assert comparison.sentences.p_value == second.p_value
    assert comparison.difference == pytest.approx(second.score - first.score)
    assert comparison.seeds is None
    score = score_arm(measure, GOOD[:1], REFERENCES)
    assert score.value == pytest.approx(first.score)
    assert score.over_sentences == pytest.approx(
        (first.mean - first.ci, first.mean + first.ci)  # type: ignore[operator]
    )
    interval = measure.score(GOOD[0], REFERENCES, RESAMPLES).interval
    assert score.over_sentences == pytest.approx(interval)


def test_arm_of_several_seeds_scores_their_mean() -> None:
    measure = make_measure("bleu", "de")
    scores = [measure.score(text, REFERENCES).value for text in GOOD]
    arm = score_arm(measure, GOOD, REFERENCES)
    assert arm.seeds == pytest.approx(scores)
    assert arm.value == pytest.approx(sum(scores) / 3)
    comparison = compare_arms(measure, GOOD, BAD, REFERENCES)
    bad = [measure.score(text, REFERENCES).value for text in BAD]
    assert comparison.difference == pytest.approx(sum(bad) / 2 - sum(scores) / 3)


def test_sentence_interval_of_a_share_is_the_binomial_one() -> None:
    """Of exact matches the standard error is known: sqrt(p (1 - p) / n)."""
    references = [str(number) for number in range(1000)]
    hypotheses = ["wrong" if number % 4 == 0 else str(number) for number in range(1000)]
    arm = score_arm(make_measure("exact_match", "de"), [hypotheses], references)
    low, high = arm.over_sentences
    assert (high - low) / 2 == pytest.approx(196 * math.sqrt(0.75 * 0.25 / 1000), rel=0.1)


@pytest.mark.parametrize(("name", "higher_is_better"), [("bleu", True), ("ter", False)])
def test_clearly_better_arm_is_better_by_every_measure(name: str, higher_is_better: bool) -> None:
    measure = make_measure(name, "de")
    comparison = compare_arms(measure, BAD, GOOD, REFERENCES)
    assert comparison.distinguishable
    assert comparison.better
    assert (comparison.difference > 0) == higher_is_better
    assert not compare_arms(measure, GOOD, BAD, REFERENCES).better


def test_arms_that_differ_by_chance_alone_are_not_distinguishable() -> None:
    measure = make_measure("bleu", "de")
    for first, second in ((GOOD[:1], GOOD[1:2]), (GOOD[:1], GOOD[:1]), (GOOD[:2], GOOD[2:])):
        comparison = compare_arms(measure, first, second, REFERENCES)
        assert not comparison.distinguishable
        assert not comparison.sentences.interval[0] > 0


def test_verdict_needs_both_the_sentences_and_the_seeds() -> None:
    """The sentences speak for the arm, but its seeds scatter too much."""
    mixed = [GOOD[0], spoil(REFERENCES, 0.45, 6)]
    comparison = compare_arms(make_measure("bleu", "de"), BAD[:1] + GOOD[1:2], mixed, REFERENCES)
    assert comparison.seeds
    assert comparison.sentences.convincing
    assert not comparison.seeds.convincing
    assert not comparison.distinguishable


def test_bootstrap_gives_the_same_each_time() -> None:
    first, second = (
        compare_arms(make_measure("chrf", "de"), GOOD[:2], BAD, REFERENCES) for _ in range(2)
    )
    assert first == second


def test_interval_over_seeds_is_students() -> None:
    """Two degrees of freedom: 4.303 standard errors."""
    interval = estimate_over_seeds([30.0, 31.0, 32.0])
    assert interval == pytest.approx((31 - 4.303 / math.sqrt(3), 31 + 4.303 / math.sqrt(3)), 1e-4)
    assert estimate_over_seeds([30.0]) is None


def test_seeds_are_compared_by_students_test() -> None:
    first, second = [30.0, 31.0, 32.5], [33.0, 34.5]
    expected = stats.ttest_ind(second, first)
    evidence = compare_over_seeds(first, second)
    assert evidence
    assert evidence.p_value == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval()
    assert evidence.interval == pytest.approx((interval.low, interval.high))


def test_one_run_is_judged_by_the_scatter_of_the_other_arms_seeds() -> None:
    scattered = compare_over_seeds([30.0, 31.0, 32.0], [33.0])
    assert scattered
    half = 4.303 * math.sqrt(1 + 1 / 3)
    assert scattered.interval == pytest.approx((2 - half, 2 + half), 1e-3)
    assert not scattered.convincing
    steady = compare_over_seeds([31.0, 31.1, 30.9], [33.0])
    assert steady
    assert steady.convincing
    assert compare_over_seeds([30.0], [33.0]) is None


def test_seeds_without_scatter_make_any_difference_one() -> None:
    assert compare_over_seeds([30.0, 30.0], [30.0]).p_value == 1  # type: ignore[union-attr]
    assert compare_over_seeds([30.0, 30.0], [31.0]).p_value == 0  # type: ignore[union-attr]
