import jax
import jax.numpy as jnp
import pytest

from t2t.model.layers import init_glorot


def test_glorot_limit_follows_the_fans_and_not_the_shape() -> None:
    weights = init_glorot(jax.random.key(0), (8, 3, 500), 20, 30)[...]
    limit = (6 / 50) ** 0.5
    assert float(jnp.abs(weights).max()) == pytest.approx(limit, rel=0.01)
    assert float(weights.std()) == pytest.approx(limit / 3**0.5, rel=0.02)
    assert float(weights.mean()) == pytest.approx(0, abs=0.01)
