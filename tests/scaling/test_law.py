"""The law of a ladder: its intervals hold what they promise, and it says what it cannot know."""

import math

import numpy as np
import pytest

from t2t.scaling.law import (
    MANY_SEEDS,
    LawError,
    Losses,
    backtest,
    find_crossing,
    fit_law,
    subtract,
)
from tests.scaling.drawn_losses import FLOPS, bend, draw, make_law

TARGET = [4 * FLOPS[-1]]  # beyond the largest rung
LAWS = {
    "with a floor": (make_law(1.0, 2.0, 0.3), 0.01),
    "without a floor": (make_law(0.0, 3.0, 0.2), 0.01),
    "that is nearly flat": (make_law(2.0, 1.0, 0.5), 0.02),
}


def test_a_prediction_holds_the_next_run_in_95_percent() -> None:
    """At four times the largest rung's FLOPs; the standard error over all draws is 0.7%."""
    random, draws, hits = np.random.default_rng(0), 350, dict.fromkeys(LAWS, 0)
    for name, (law, noise) in LAWS.items():
        for _ in range(draws):
            fitted = fit_law(draw(random, law, noise))
            came_out = law(TARGET[0]) * math.exp(noise * random.normal())
            hits[name] += fitted.find_p_value(TARGET, came_out) >= 0.05
    assert 0.93 <= sum(hits.values()) / (len(LAWS) * draws) <= 0.97
    assert min(hits.values()) / draws >= 0.92


def test_the_edges_of_an_interval_have_the_p_value_of_its_level() -> None:
    law = fit_law(draw(np.random.default_rng(1), make_law(1.0, 2.0, 0.3), 0.01))
    for seeds in (1, 3, MANY_SEEDS):
        forecast = law.predict(TARGET, seeds)
        assert forecast.interval[0] < forecast.loss < forecast.interval[1]
        for edge in forecast.interval:
            assert law.find_p_value(TARGET, edge, seeds) == pytest.approx(0.05, rel=0.01)


def test_the_fit_finds_a_law_without_noise() -> None:
    law = fit_law(draw(np.random.default_rng(1), make_law(0.8, 2.0, 0.25), 1e-5))
    assert law.floor == pytest.approx(0.8, rel=0.01)
    assert law.amplitudes == pytest.approx([2.0], rel=0.01)
    assert law.exponents == pytest.approx([0.25], rel=0.01)
    assert law.predict(TARGET).loss == pytest.approx(0.8 + 2 * 108**-0.25, rel=1e-3)
    assert law.floor_interval[0] < 0.8 < law.floor_interval[1]
    assert law.exponent_intervals[0][0] < 0.25 < law.exponent_intervals[0][1]


def test_parameters_and_tokens_are_told_apart_where_both_vary() -> None:
    """Rungs of four sizes, each with two amounts of text."""
    random = np.random.default_rng(3)
    sizes = np.array([(n, n * d) for n in (1e6, 2e6, 4e6, 8e6) for d in (10.0, 40.0)])
    rungs = np.repeat(np.arange(8), 2)

    def compute(size: list[float]) -> float:
        n, d = size[0] / 1e6, size[1] / 1e7
        return 1 + n**-0.34 + 1.5 * d**-0.28

    true = np.array([compute(size) for size in sizes[rungs].tolist()])
    hits, target = 0, [1.6e7, 3.2e8]
    for _ in range(40):
        losses = true * np.exp(0.005 * random.normal(size=16))
        law = fit_law(Losses(sizes[rungs], losses, rungs))
        assert law.num_terms == len(law.exponents) == 2
        came_out = compute(target) * math.exp(0.005 * random.normal())
        hits += law.find_p_value(target, came_out) >= 0.05
    assert hits >= 35


@pytest.mark.parametrize(("exponent", "noise"), [(0.35, 0.01), (0.0, 0.003)])
def test_a_bend_is_noticed_in_most_draws(exponent: float, noise: float) -> None:
    """A law that turns steeper, or flat, between the last rungs; a true law is blamed in 5%."""
    random = np.random.default_rng(0)
    flops = np.geomspace(1e12, 27e12, 5).tolist()
    straight = make_law(1.0, 2.0, 0.15 if exponent else 0.3)
    bent = bend(straight, 6e12, exponent)
    found = [fit_law(draw(random, bent, noise, flops)) for _ in range(60)]
    assert sum(law.is_misfit for law in found) >= 48
    wide, narrow = found[0], fit_law(draw(random, straight, noise, flops))
    assert wide.freedom <= 3 < narrow.freedom  # of the rungs alone, so the interval is wide
    blamed = sum(fit_law(draw(random, straight, noise, flops)).is_misfit for _ in range(100))
    assert blamed <= 10


def test_a_floor_that_the_losses_do_not_show_begins_with_0() -> None:
    random = np.random.default_rng(0)
    none = [fit_law(draw(random, make_law(0.0, 3.0, 0.2), 0.01)) for _ in range(40)]
    assert sum(law.has_floor for law in none) <= 4
    assert all(law.floor_interval[0] == 0 for law in none if not law.has_floor)
    clear = fit_law(draw(random, make_law(2.0, 1.0, 0.5), 0.005))
    assert clear.has_floor
    assert clear.floor_interval[0] < 2 < clear.floor_interval[1]


def test_a_rung_is_predicted_from_the_smaller_ones_alone() -> None:
    runs = draw(np.random.default_rng(2), make_law(1.0, 2.0, 0.3), 0.01, [*FLOPS, 81e12])
    tested = backtest(runs)
    assert [each.rung for each in tested] == [3, 4]
    small = fit_law(Losses(*(each[:12] for each in runs)))
    assert tested[1].forecast == small.predict([81e12], 3)
    assert tested[1].loss == pytest.approx(np.exp(np.log(runs.losses[12:]).mean()))


def test_a_difference_of_two_laws_is_in_its_interval_and_their_crossing_is_found() -> None:
    random = np.random.default_rng(0)
    one, other = make_law(1.0, 1.5, 0.4), make_law(0.7, 2.0, 0.4)  # equal where 0.3 = 0.5 C^-0.4
    true, hits = other(TARGET[0]) - one(TARGET[0]), 0
    for _ in range(20):
        laws = [fit_law(draw(random, each, 0.01)) for each in (one, other)]
        low, high = subtract(*(law.predict(TARGET, MANY_SEEDS) for law in laws)).interval
        hits += low <= true <= high
    assert hits >= 17
    clear = [fit_law(draw(random, each, 0.002)) for each in (one, other)]
    crossing = find_crossing(clear[0], clear[1], FLOPS[0], TARGET[0])
    assert crossing.value == pytest.approx(1e12 * (0.3 / 0.5) ** -2.5, rel=0.2)
    assert crossing.interval
    assert crossing.interval[0] < 3.6e12 < crossing.interval[1]
    assert find_crossing(clear[0], clear[0], FLOPS[0], TARGET[0]) == (None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flops": FLOPS[:1]}, "^1 rung, and the law has 3 parameters; train at least 3 rungs"),
        ({"flops": FLOPS[:2]}, "^2 rungs, and the law has 3 parameters"),
        ({"seeds": 1}, "^each rung has one seed, which does not show how much runs differ; train"),
        ({"law": lambda flops: math.nan}, "^a loss is nan; all have to be finite and positive$"),
        ({"law": lambda flops: flops / 1e12}, "losses do not fall with size, so there is no law"),
    ],
)
def test_losses_that_show_no_law_are_refused_in_one_line(
    change: dict[str, object], message: str
) -> None:
    given = {"law": make_law(1.0, 2.0, 0.3), "noise": 0.01, **change}
    with pytest.raises(LawError, match=message) as error:
        fit_law(draw(np.random.default_rng(0), **given))  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
