"""Halves of a test set, and the best of several trials without an advantage for it."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.tuned_verdicts import MEASURE, draw_pair, make_halves
from t2t.config.fields import ConfigError
from t2t.evaluation import measure
from t2t.evaluation.measure import Measure, Statistics
from t2t.evaluation.saved_evaluations import EvaluationError
from t2t.evaluation.significance import compare_systems, judge
from t2t.evaluation.systems import check_comparable, read_system
from t2t.evaluation.trials import choose_trial, halve
from t2t.evaluation.verdict import judge_log_probs
from tests.evaluation.saved_evaluations import REFERENCES, save, spoil
from tests.evaluation.test_significance import make_system_score

SCORE = Measure("score", "")


def list_sources(half: measure.TestSet) -> list[str]:
    assert half.part is not None
    return sorted(half.sources[number] for number in half.part)


def test_halves_follow_from_the_sources_alone_and_equal_sources_stay_together() -> None:
    sources = [f"line {number % 70}" for number in range(100)]
    choosing, judging = map(list_sources, halve(measure.TestSet(sources, [])))
    assert sorted([*choosing, *judging]) == sorted(sources)
    assert not {*choosing} & {*judging}
    assert abs(len(choosing) - len(judging)) <= 2
    reordered = halve(measure.TestSet(sources[::-1], [], name="another"))
    assert [*map(list_sources, reordered)] == [choosing, judging]


def test_documents_stay_whole_and_equal_documents_together() -> None:
    documents = np.repeat(np.arange(70), 3)
    sources = [f"line {min(document, 68)}" for document in documents]  # the last two are equal
    statistics = np.stack([documents, np.ones(210)], axis=-1)[None].astype(float)
    seen = []
    for half in halve(measure.TestSet(sources, [], documents)):
        units = half.sum_units(statistics)[0]
        assert (units[:, 1] == 3).all()
        seen.append({*(units[:, 0] / 3).tolist()})
    assert not seen[0] & seen[1]
    assert len(seen[0] | seen[1]) == 70
    assert {68, 69} <= seen[0] or {68, 69} <= seen[1]


def test_halves_of_too_few_sentences_or_documents_are_refused() -> None:
    sources = [str(number) for number in range(59)]
    message = "a half of the news split has 29 sentences, and an interval needs 30: .* with"
    with pytest.raises(ConfigError, match=message):
        halve(measure.TestSet(sources, [], name="news"))
    with pytest.raises(ConfigError, match="has 29 documents, and an interval needs 30"):
        halve(measure.TestSet(sources * 9, [], np.tile(np.arange(59), 9)))


def test_score_and_verdict_are_of_the_half_alone() -> None:
    choosing, judging = make_halves(40)
    assert judging.part is not None
    good = np.stack([np.zeros(80), np.ones(80)], axis=-1)[None]
    good[:, judging.part, 0] = 1 + 0.1 * np.random.default_rng(0).normal(size=40)
    equal = good.copy()
    equal[:, judging.part] = [0, 1]
    assert SCORE.score_counts(good[0], choosing).value == 0
    assert SCORE.score_counts(good[0], judging).value == pytest.approx(1, abs=0.1)
    for half, is_better in ((choosing, False), (judging, True)):
        found = judge({"base": equal, "tuned": good}, SCORE, half).comparisons["tuned"]
        assert found.distinguishable == is_better


def test_log_probabilities_are_judged_on_the_half_as_well(tmp_path: Path) -> None:
    """One missing reference is in the half, and one is not."""
    references = ["" if number in (3, 40) else line for number, line in enumerate(REFERENCES)]
    for name, nats in (("first", 0.7), ("second", 0.8)):
        save(tmp_path / name, spoil(3), references=references, nats=nats)
    systems = [read_system(str(tmp_path / name), "", "") for name in ("first", "second")]
    half = check_comparable(systems)._replace(part=np.arange(31))
    judged, lines = judge_log_probs(systems, half)
    assert judged
    assert judged[1].num_units == 30
    assert lines[0].startswith("1 of 31 references have no finite log-probability")
    assert judge_log_probs(systems, half._replace(part=None))[1][0].startswith("2 of 48 references")


def make_trial(score: float) -> Statistics:
    """One run with this score on the half that chooses, and with another one on the other half."""
    values = np.full(80, -score)
    values[make_halves(40).choosing.part] = score
    return np.stack([values, np.ones(80)], axis=-1)[None]


@pytest.mark.parametrize(
    ("scores", "best", "edge"),
    [
        ({0.5: 1, 1: 3, 2: 2}, 1, ""),
        ({2: 3, 1: 1, 0.5: 2}, 2, "largest"),
        ({0.5: 3, 1: 1, 2: 2}, 0.5, "smallest"),
        ({2: 3, 1: 2, 4: math.nan}, 2, ""),  # the values above failed
        ({2: 3, 1: 2, 4: math.inf}, 2, ""),
        ({3: 1}, 3, ""),
        ({4: 2, 0.5: 2, 2: 2, 0.25: 2}, 0.5, ""),  # nearest to 1, the first of equally near ones
    ],
)
def test_best_trial_is_that_of_the_half_that_chooses(
    scores: dict[float, float], best: float, edge: str
) -> None:
    trials = {
        rate: None if math.isnan(score) else make_trial(score) for rate, score in scores.items()
    }
    found = choose_trial("training.learning_rate", trials, 1.0, SCORE, make_halves(40).choosing)
    assert (found.value, found.edge, found.score) == (best, edge, scores[best])
    assert [*found.curve] == sorted(scores)
    assert found.curve == pytest.approx(scores, nan_ok=True)


def test_less_is_better_where_the_measure_says_so_and_failures_are_named() -> None:
    half = make_halves(40).choosing
    trials = {rate: make_trial(rate) for rate in (1.0, 2.0)}
    assert choose_trial("rate", trials, 2.0, MEASURE, half).value == 1
    failed = {0.1: None, 0.2: make_trial(math.inf)}
    message = re.escape("no trial of rate has a finite score: 0.1 failed, 0.2 has inf; give other")
    with pytest.raises(EvaluationError, match=message):
        choose_trial("rate", failed, 0.1, SCORE, half)


def simulate(
    seeds: tuple[int, int], scatter: float, *, apart: bool = True, other_seeds: bool = True
) -> float:
    """The share of 1,000 pairs of equal systems that are called different; one has nine trials."""
    random, halves, called = np.random.default_rng(0), make_halves(100), 0
    for _ in range(1000):
        pair = draw_pair(random, halves, seeds, scatter, apart=apart, other_seeds=other_seeds)
        first, second = (make_system_score(halves.judging.take_part(each)[..., 0]) for each in pair)
        called += compare_systems(first, second, MEASURE).distinguishable
    return called / 1000


def test_best_of_nine_trials_is_no_better_on_the_other_half() -> None:
    """Chosen and judged on one half, it is called different in 13% of cases."""
    assert simulate((1, 1), 0.0) <= 0.06
    assert simulate((1, 1), 0.0, apart=False, other_seeds=False) >= 0.12


def test_best_of_nine_trials_is_no_better_with_other_seeds() -> None:
    """If the run that was chosen is judged against three of the base, in 10% of cases."""
    assert simulate((3, 1), 3.0) <= 0.06
    assert simulate((3, 1), 3.0, other_seeds=False) >= 0.09
