import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.fields import TrainingConfig
from t2t.training.schedule import make_schedule
from tests import reference

WARMUP, STEPS, PEAK = 40, 400, 0.01
CONFIG = TrainingConfig(warmup_steps=WARMUP, steps=STEPS, learning_rate=PEAK)
KINDS = ["noam", "inverse_sqrt", "cosine", "constant"]


def find_rate(kind: str, count: int) -> float:
    """The rate after so many updates."""
    step = count + 1
    match kind:
        case "noam":
            return PEAK * reference.noam_rate(step, 512, WARMUP)
        case "inverse_sqrt":
            return PEAK * min(step / WARMUP, (WARMUP / step) ** 0.5)
        case "cosine" if count > WARMUP:
            return PEAK * (1 + math.cos(math.pi * (count - WARMUP) / (STEPS - WARMUP))) / 2
        case _:
            return PEAK * min(step / WARMUP, 1)


def find_rates(kind: str, updates: range, **changes: Any) -> np.ndarray:
    config = dataclasses.replace(CONFIG, schedule=kind, **changes)
    return np.asarray(jax.vmap(make_schedule(config, d_model=512))(jnp.asarray(updates)))


@pytest.mark.parametrize("kind", KINDS)
def test_rates_follow_the_formula(kind: str) -> None:
    wanted = [find_rate(kind, count) for count in range(STEPS)]
    np.testing.assert_allclose(find_rates(kind, range(STEPS)), wanted, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_rate_is_above_0_from_the_first_update_and_without_warm_up_the_peak(kind: str) -> None:
    assert find_rates(kind, range(STEPS)).min() > 0
    rates = find_rates(kind, range(STEPS), warmup_steps=1)
    peak = PEAK if kind != "noam" else dataclasses.replace(CONFIG, warmup_steps=1).noam_peak(512)
    assert rates[0] == rates.max() == pytest.approx(peak)


COOLDOWN = 100


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "cosine"])
def test_cooldown_multiplies_the_last_rates_by_a_line_to_0(kind: str) -> None:
    rates = find_rates(kind, range(STEPS + 10), cooldown_steps=COOLDOWN)  # ten are not expected
    plain = find_rates(kind, range(STEPS))
    before = STEPS - COOLDOWN
    np.testing.assert_array_equal(rates[:before], plain[:before])
    factors = [1 - number / COOLDOWN for number in range(COOLDOWN)]
    np.testing.assert_allclose(rates[before:STEPS], plain[before:] * factors, rtol=1e-5)
    assert not rates[STEPS:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_schedule_may_start_later_and_then_lasts_for_the_rest(kind: str) -> None:
    start, own = 1000, {} if kind == "cosine" else {"cooldown_steps": COOLDOWN}
    later = own | {"schedule_start": start, "steps": start + STEPS}
    found = find_rates(kind, range(start, start + STEPS), **later)
    np.testing.assert_allclose(found, find_rates(kind, range(STEPS), **own), rtol=1e-5, atol=1e-9)
    # As many updates are missing as steps were skipped before.
    np.testing.assert_array_equal(find_rates(kind, range(start - 3, start), **later), found[0])
