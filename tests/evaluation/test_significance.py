"""Verdicts against sacreBLEU's bootstrap and SciPy, by how often they are wrong, and in words."""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy import stats

from t2t.evaluation.measure import (
    LEVEL,
    RESAMPLES,
    Measure,
    draw_sentences,
    make_likelihood,
)
from t2t.evaluation.significance import (
    LOOK_SHARE,
    Judgement,
    SystemComparison,
    SystemScore,
    adjust,
    compare_shares,
    compare_systems,
    estimate_over_seeds,
    judge,
    judge_look,
    score_system,
)
from t2t.evaluation.text_measures import make_measure, make_paper_tokeniser
from t2t.evaluation.verdict import describe
from tests.evaluation.saved_evaluations import REFERENCES, collect, drop_words, pair

BLEU = make_measure("bleu", "de")
UNBOUNDED = Measure("mean", "")
NONE = np.zeros((0, 1))  # resamples


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter", "bleu_paper"])
def test_scores_and_intervals_are_those_of_sacrebleu(name: str) -> None:
    measure = make_measure(name, "de")
    hypotheses, test_set = drop_words(0.1, seed=1), pair(REFERENCES)
    system = score_system(measure, collect(measure, [hypotheses], test_set))
    found = measure.score(hypotheses, test_set, with_interval=True)
    assert system.over_sentences == found.interval, "compare and evaluate have one method"
    preprocess = make_paper_tokeniser("de") if name == "bleu_paper" else str
    lines = [[*map(preprocess, side)] for side in (hypotheses, REFERENCES)]
    assert measure.metric
    expected = measure.metric.corpus_score(lines[0], [lines[1]], n_bootstrap=RESAMPLES)
    assert system.value == pytest.approx(expected.score)
    low, high = float(expected._mean - expected._ci), float(expected._mean + expected._ci)
    assert system.over_sentences == pytest.approx((low, high), abs=0.15 * (high - low))


def test_resamples_are_the_same_in_every_version_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy may change the draws of its new generators."""
    monkeypatch.setattr(np.random, "default_rng", None)
    draw_sentences.cache_clear()
    digest = hashlib.sha256(draw_sentences(48).astype(np.int64).tobytes()).hexdigest()
    assert digest.startswith("cf8a4bfbddb1f3c8")


def make_system_score(values: np.ndarray) -> SystemScore:
    """Of each seed's value for each sentence; the score is their mean."""
    scores = tuple(values.mean(axis=1).tolist())
    count = values.shape[1]
    resampled = draw_sentences(count) @ values.T / count
    return SystemScore(float(np.mean(scores)), scores, (0.0, 0.0), None, count, resampled)


def test_without_sentences_that_differ_it_is_students_test() -> None:
    """All that varies is the seed; also where one system has a single run."""
    for sizes in ((3, 2), (3, 1)):
        first, second = (
            np.random.default_rng(size).normal(size=(size, 1)) + np.zeros((size, 50))
            for size in sizes
        )
        found = compare_systems(make_system_score(first), make_system_score(second), UNBOUNDED)
        if sizes[1] > 1:
            expected = stats.ttest_ind(second[:, 0], first[:, 0])
            assert found.p_value == pytest.approx(expected.pvalue)
            assert found.interval == pytest.approx([*expected.confidence_interval()])
        assert found.interval
        half = stats.t.ppf(0.975, sum(sizes) - 2) * (found.seed_error or 0)
        assert found.interval[1] - found.difference == pytest.approx(half)


def simulate(seeds: tuple[int, int], seed_noise: float, trials: int = 1000) -> float:
    """The share of trials in which two equal systems are called different.

    A sentence has a difficulty that all runs share, one for each system, and one for each run. The
    noise of the seeds is in standard errors of the system's own part.
    """
    random_, count = np.random.default_rng(0), 100
    system = np.repeat([0, 1], seeds)
    runs, error = len(system), 1 / math.sqrt(count)
    called = 0
    for _ in range(trials):
        values = random_.normal(0, 3, (1, count)) + random_.normal(size=(2, count))[system]
        values += random_.normal(size=(runs, count))
        values += error * seed_noise * random_.normal(size=(runs, 1))
        first, second = (make_system_score(values[system == which]) for which in (0, 1))
        called += compare_systems(first, second, UNBOUNDED).distinguishable
    return called / trials


@pytest.mark.parametrize(
    "seeds", [(2, 2), *(pytest.param(seeds, marks=pytest.mark.slow) for seeds in ((1, 3), (3, 3)))]
)
@pytest.mark.parametrize("seed_noise", [0.5, 1.0, pytest.param(3.0, marks=pytest.mark.slow)])
def test_verdict_on_equal_systems_is_wrong_in_three_to_six_percent(
    seeds: tuple[int, int], seed_noise: float
) -> None:
    assert 0.03 <= simulate(seeds, seed_noise) <= 0.06


def test_holms_correction_is_that_of_the_textbook() -> None:
    like = SystemComparison((30.0, 31.0), True, (1, 1), 0.9, None, None, 0.0, 0.0)
    comparisons = [dataclasses.replace(like, p_value=p) for p in (0.01, 0.04, 0.03, 0.005)]
    assert [each.adjusted for each in adjust(comparisons)] == pytest.approx(
        [0.03, 0.06, 0.06, 0.02]
    )
    assert [each.distinguishable for each in adjust(comparisons)] == [True, False, False, True]
    assert adjust([]) == []
    undefined = dataclasses.replace(like, p_value=math.nan)
    assert not any(each.distinguishable for each in adjust([undefined]))
    assert adjust([undefined, comparisons[0]])[1].adjusted == pytest.approx(0.02)


def test_seeds_with_one_score_leave_the_variance_of_the_sentences() -> None:
    """Exact match of two seeds each: 25%, each on other sentences, and one sentence more."""
    first = np.zeros((2, 40))
    first[0, :5] = first[1, 5:10] = 100
    second = first.copy()
    second[:, 19] = 100
    found = compare_systems(make_system_score(first), make_system_score(second), UNBOUNDED)
    assert found.difference == pytest.approx(2.5)
    assert not found.distinguishable


def test_rows_are_judged_together() -> None:
    """One difference in twenty rows of chance is expected, and is no verdict."""
    random_ = np.random.default_rng(7)
    base = random_.normal(size=(1, 100, 1))
    rows = {str(row): base + 0.5 * random_.normal(size=(1, 100, 1)) for row in range(20)}

    def mean(sums: np.ndarray) -> float:
        return float(sums[0]) / 100

    measure = dataclasses.replace(UNBOUNDED, aggregate=mean)
    judgement = judge({"base": base, **rows}, measure, pair([]))
    comparisons = judgement.comparisons.values()
    assert any(each.p_value < LEVEL for each in comparisons)
    assert not any(each.distinguishable for each in comparisons)


def draw_rows(
    random_: np.random.Generator, effects: Sequence[float], noise: float = 1.0
) -> dict[str, np.ndarray]:
    """Values of two seeds of base and of each row on 100 sentences.

    Effects, and the noise of the seeds, are in standard errors of a system's own part.
    """
    systems = len(effects) + 1
    values = random_.normal(size=(1, 1, 100)) + random_.normal(size=(systems, 1, 100))
    values = values + random_.normal(size=(systems, 2, 100))
    values += noise / 10 * random_.normal(size=(systems, 2, 1))
    values += np.array([0, *effects])[:, None, None] / 10
    return {"base" if row == 0 else str(row): each for row, each in enumerate(values)}


def judge_rows(rows: Mapping[str, np.ndarray], share: float = 1.0) -> Judgement:
    """As `judge` by the mean, with all resamples at once."""
    scores = {name: make_system_score(each) for name, each in rows.items()}
    found = [compare_systems(scores["base"], scores[row], UNBOUNDED) for row in [*rows][1:]]
    comparisons = dict(zip([*rows][1:], adjust(found, share), strict=True))
    return Judgement(scores, comparisons, share=share)


@pytest.mark.parametrize("share", [1.0, 0.9])
def test_interval_excludes_zero_where_the_row_is_distinguishable_and_nowhere_else(
    share: float,
) -> None:
    """With Holm's correction and after a look; some verdicts change by the correction."""
    random_, changed = np.random.default_rng(0), 0
    for _ in range(20):
        for each in judge_rows(draw_rows(random_, [0, 3, 4, 5, 6, 0]), share).comparisons.values():
            assert each.interval
            low, high = each.interval
            assert (low > 0 or high < 0) == each.distinguishable
            assert low + high == pytest.approx(2 * each.difference)
            changed += each.p_value < LEVEL and not each.distinguishable
    assert changed


def test_interval_of_two_systems_is_not_corrected_and_those_of_equal_rows_are_bonferronis() -> None:
    random_ = np.random.default_rng(1)
    [one] = judge_rows(draw_rows(random_, [0])).comparisons.values()
    assert (one.level, one.correction) == (LEVEL, "")
    several = judge_rows(draw_rows(random_, [0] * 5)).comparisons.values()
    assert not any(each.distinguishable for each in several)
    assert {each.level for each in several} == {LEVEL / 5}


def compare_normal(differences: np.ndarray, share: float) -> Judgement:
    """Rows whose differences from base are normal, with a standard error of 1."""
    found = []
    for each in differences.tolist():
        p_value = math.erfc(abs(each) / 2**0.5)
        values = 0.0, each
        found.append(SystemComparison(values, each > 0, (1, 1), 1.0, None, None, p_value, p_value))
    comparisons = {str(row): each for row, each in enumerate(adjust(found, share))}
    return Judgement({}, comparisons, share=share)


def simulate_looks(look: float, end: float, effect: float = 0.0) -> tuple[float, float]:
    """A look at three rows that equal base, and at one with this effect, then the end.

    At the look the verdicts may use `look` of the level, at the end `end`. Both times have a
    correlation of 0.5; rows are independent, with which Holm's correction loses least. Returns the
    shares of 1,500 sweeps in which a row that equals base is stopped or has a verdict at the end,
    and in which the fourth row is stopped.
    """
    random_, wrong, stopped = np.random.default_rng(0), 0, 0
    effects = np.array([0, 0, 0, effect])
    for _ in range(1500):
        early, new = random_.normal(size=(2, 4))
        late = (early + 3**0.5 * new) / 2
        gone = judge_look(compare_normal(early + effects, 1.0), look)
        stopped += "3" in gone
        kept = [row for row in range(4) if str(row) not in gone]
        found = compare_normal((late + effects)[kept], end).comparisons.values()
        called = {int(row) for row in gone}
        called |= {row for row, each in zip(kept, found, strict=True) if each.distinguishable}
        wrong += bool(called - {3} if effect else called)
    return wrong / 1500, stopped / 1500


def test_look_is_paid_for_in_the_verdicts_at_the_end() -> None:
    """Of equal rows 4.5% of sweeps have a false verdict; without the correction 7.9%."""
    assert simulate_looks(LOOK_SHARE, 1 - LOOK_SHARE)[0] <= 0.05
    assert simulate_looks(1, 1)[0] >= 0.07


def test_row_that_is_clearly_worse_is_stopped_and_equal_ones_are_not_wronged() -> None:
    wrong, stopped = simulate_looks(LOOK_SHARE, 1 - LOOK_SHARE, effect=-6)
    assert stopped >= 0.98
    assert wrong <= 0.05


def test_row_that_is_better_at_a_look_goes_on() -> None:
    judgement = judge_rows(draw_rows(np.random.default_rng(0), [-30, 30], 0.1))
    [(row, found)] = judge_look(judgement).items()
    assert (row, found.correction) == ("1", "Holm's correction and the correction for a look")
    before = judgement.comparisons[row]
    assert found.adjusted == pytest.approx(before.adjusted / LOOK_SHARE)
    assert (found.difference, found.p_value) == (before.difference, before.p_value)


def test_interval_over_seeds_is_students() -> None:
    """Two degrees of freedom: 4.303 standard errors."""
    interval = estimate_over_seeds([30.0, 31.0, 32.0], BLEU)
    assert interval == pytest.approx((31 - 4.303 / math.sqrt(3), 31 + 4.303 / math.sqrt(3)), 1e-4)
    assert estimate_over_seeds([30.0], BLEU) is None
    assert estimate_over_seeds([1.0, 99.0], BLEU) == (0, 100), "a score is at most 100"
    assert estimate_over_seeds([1.0, 99.0], make_likelihood("token")) == pytest.approx(
        (0, 672.6), 1e-3
    )


def judge_lines(
    first: list[str], second: list[str], references: list[str], measure: Measure
) -> Judgement:
    test_set = pair(references)
    counts = collect(measure, [first, second], test_set)
    return judge({"first": counts[:1], "second": counts[1:]}, measure, test_set)


def test_exact_matches_are_compared_by_mcnemars_test() -> None:
    """Two sentences of two are no proof, though nothing varies when they are resampled."""
    measure = make_measure("exact_match", "de")
    [two] = judge_lines(["a", "b"], ["c", "d"], ["c", "d"], measure).comparisons.values()
    assert (two.difference, two.p_value, two.interval) == (100, 0.5, None)
    references = [str(number) for number in range(40)]
    first = ["x"] * 9 + references[9:]  # nine errors, of which the second repairs eight
    second = [*references[:8], "x", "x", *references[10:]]
    [found] = judge_lines(first, second, references, measure).comparisons.values()
    assert found.p_value == pytest.approx(stats.binomtest(8, 9).pvalue)
    assert found.difference == pytest.approx(100 * 7 / 40)
    [same] = judge_lines(first, first, references, measure).comparisons.values()
    assert same.p_value == 1
    assert same.interval == pytest.approx((-196 / 42, 196 / 42), rel=1e-3)


@pytest.mark.parametrize(
    ("count", "gains", "losses"),
    [(200, 0.05, 0), (1000, 0.02, 0.005), (1000, 0.1, 0.1), (50, 0.3, 0.05)],
)
def test_interval_of_a_difference_of_shares_covers_95_percent(
    count: int, gains: float, losses: float
) -> None:
    """Also where one run only gains: the number of sentences that differ varies, too."""
    measure, one = make_measure("exact_match", "de"), SystemScore(0, (0,), None, None, count, NONE)

    @functools.cache
    def covers(gained: int, lost: int) -> bool:
        number = np.arange(count)
        right = np.stack([number < lost, number >= count - gained]).astype(float)
        low, high = compare_shares(one, one, measure, right).interval or (0, 0)
        return low <= 100 * (gains - losses) <= high

    shares = gains, losses, 1 - gains - losses
    drawn = np.random.default_rng(0).multinomial(count, shares, size=3000)
    covered = np.mean([covers(gained, lost) for gained, lost, _ in drawn.tolist()])
    assert 0.93 <= covered <= 0.96


def test_difference_that_does_not_vary_has_no_verdict() -> None:
    """One sentence forty times; its resamples are all alike."""
    lines = [["a b c d e f g"] * 40, ["a b c d e f x"] * 40]
    [found] = judge_lines(lines[0], lines[1], lines[0], BLEU).comparisons.values()
    assert found.difference < 0
    assert not found.distinguishable
    assert math.isnan(found.p_value)


def test_verdict_says_what_it_covers_and_what_would_show_more() -> None:
    unclear = SystemComparison((30.0, 30.25), True, (3, 1), 0.9, 0.2, (-1.5, 2.0), 0.4, 0.4)
    untested = dataclasses.replace(unclear, p_value=math.nan, adjusted=math.nan, interval=None)
    corrected = dataclasses.replace(
        unclear, adjusted=0.8, level=0.025, correction="Holm's correction"
    )
    many_seeds = dataclasses.replace(unclear, seed_error=1.0, num_seeds=(3, 3))
    for comparison, count, parts in (
        (unclear, 1000, ["More sentences would reduce the error more than more seeds.",
                         "if both vary equally over seeds: new has one run."]),
        (many_seeds, 1000, ["More seeds would reduce the error more than more sentences.",
                            "This covers the choice of the sentences and of the seeds."]),
        (dataclasses.replace(unclear, seed_error=None), 1000, ["take about 49,000 sentences"]),
        (corrected, 1000, ["[-1.50, +2.00] with Holm's correction, two-sided p = 0.4, 0.8 with"]),
        (untested, 29, ["No verdict on new: ", "Resamples of fewer than 30 sentences do"]),
        (untested, 1000, ["do not vary over resamples of the sentences."]),
    ):  # fmt: skip
        text = describe(comparison, ("old", "new"), "bleu", count)
        assert all(part in text for part in parts), text


def simulate_best(family: int) -> float:
    """The share of 2,000 groups of four equal rows in which one is called worse than the best."""
    random_, wrong = np.random.default_rng(0), 0
    for _ in range(2000):
        scores = np.sort(random_.normal(size=4))
        found = []
        for each in ((scores[:3] - scores[3]) / 2**0.5).tolist():
            p_value, values = math.erfc(abs(each) / 2**0.5), (0.0, each)
            comparison = SystemComparison(values, False, (1, 1), 1, None, None, p_value, p_value)
            found.append(comparison)
        wrong += any(each.distinguishable for each in adjust(found, family=family))
    return wrong / 2000


def test_who_is_compared_with_the_best_is_corrected_for_all_pairs() -> None:
    """Of equal rows 3.8% of groups have a false verdict; as if the best were known before, 7.1%."""
    assert simulate_best(6) <= 0.05
    assert simulate_best(0) >= 0.06
