import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.fields import TrainingConfig
from t2t.training.schedule import make_schedule, noam
from tests import reference

WARMUP, STEPS, PEAK = 40, 400, 0.01
CONFIG = TrainingConfig(warmup_steps=WARMUP, steps=STEPS, learning_rate=PEAK)
KINDS = ["noam", "inverse_sqrt", "cosine", "constant"]


@functools.cache
def rates_of(kind: str) -> np.ndarray:
    """Rates of all updates, the first update first."""
    schedule = make_schedule(dataclasses.replace(CONFIG, schedule=kind), d_model=512)
    return np.asarray(jax.vmap(schedule)(jnp.arange(STEPS)))


@pytest.mark.parametrize("d_model", [512, 1024])
def test_noam_is_equation_3_with_steps_from_1(d_model: int) -> None:
    updates = np.array([0, 1, 99, 3998, 3999, 4000, 99_999])
    rates = [float(noam(d_model, 4000)(count)) for count in updates]
    wanted = [reference.noam_rate(int(count) + 1, d_model, 4000) for count in updates]
    np.testing.assert_allclose(rates, wanted, rtol=1e-5)


def test_noam_peaks_where_the_warmup_ends() -> None:
    rates = rates_of("noam") / PEAK
    assert rates.argmax() + 1 == WARMUP
    assert rates.max() == pytest.approx((512 * WARMUP) ** -0.5, rel=1e-6)


def test_learning_rate_is_a_factor_on_noam() -> None:
    wanted = PEAK * reference.noam_rate(100, 512, WARMUP)
    assert rates_of("noam")[99] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "noam"])
def test_learning_rate_is_the_peak_of_the_others(kind: str) -> None:
    assert rates_of(kind).max() == pytest.approx(PEAK, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_warmup_is_linear(kind: str) -> None:
    rises = np.diff(rates_of(kind)[:WARMUP])
    np.testing.assert_allclose(rises, np.full(WARMUP - 1, rates_of(kind).max() / WARMUP), rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_rate_never_jumps_and_never_rises_after_warmup(kind: str) -> None:
    rates = rates_of(kind)
    assert np.abs(np.diff(rates)).max() <= rates.max() / WARMUP * 1.001
    assert np.diff(rates[WARMUP:]).max() <= 1e-9


def test_schedules_end_as_they_are_meant_to() -> None:
    assert rates_of("constant")[-1] == pytest.approx(PEAK)
    assert rates_of("cosine")[-1] == pytest.approx(0, abs=PEAK * 1e-3)
    assert rates_of("inverse_sqrt")[-1] == pytest.approx(PEAK * (WARMUP / STEPS) ** 0.5, rel=1e-5)


COOLDOWN = 100
OPEN_ENDED = [kind for kind in KINDS if kind != "cosine"]


def cooled_rates_of(kind: str) -> np.ndarray:
    """Rates of all updates with a cooldown, and of ten that the schedule does not expect."""
    config = dataclasses.replace(CONFIG, schedule=kind, cooldown_steps=COOLDOWN)
    return np.asarray(jax.vmap(make_schedule(config, d_model=512))(jnp.arange(STEPS + 10)))


@pytest.mark.parametrize("kind", OPEN_ENDED)
def test_cooldown_multiplies_the_last_rates_by_a_line_to_0(kind: str) -> None:
    rates, plain = cooled_rates_of(kind), rates_of(kind)
    before = STEPS - COOLDOWN
    np.testing.assert_array_equal(rates[:before], plain[:before])
    factors = [1 - number / COOLDOWN for number in range(COOLDOWN)]
    np.testing.assert_allclose(rates[before:STEPS], plain[before:] * factors, rtol=1e-5)
    assert not rates[STEPS:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_schedule_may_start_later_and_then_lasts_for_the_rest(kind: str) -> None:
    start = 1000
    config = dataclasses.replace(
        CONFIG, schedule=kind, schedule_start=start, steps=start + STEPS,
        cooldown_steps=0 if kind == "cosine" else COOLDOWN,
    )  # fmt: skip
    schedule = make_schedule(config, d_model=512)
    found = jax.vmap(schedule)(jnp.arange(start, start + STEPS))
    wanted = rates_of(kind) if kind == "cosine" else cooled_rates_of(kind)[:STEPS]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-9)
    # As many updates are missing as steps were skipped before.
    np.testing.assert_array_equal(jax.vmap(schedule)(jnp.arange(start - 3, start)), found[0])


def test_unknown_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"training.schedule='linear' is unknown"):
        make_schedule(dataclasses.replace(CONFIG, schedule="linear"), d_model=512)
