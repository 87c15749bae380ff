"""Precision of biases and norms, and dropout; the formulas are tested in test_build.py."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import UInt32

from t2t.model.layers import LayerNorm, RMSNorm, dropout, hash_indices, make_norm
from t2t.ops.fast_layers import dropout as fast_dropout
from tests.model.small_models import POLICY, SMALL, draw


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norm_of_bfloat16_is_computed_in_float32(kind: str) -> None:
    norm = make_norm(dataclasses.replace(SMALL, norm=kind), POLICY)
    x = (draw(1, 4, 16) + 8).astype(jnp.bfloat16)
    found, wide = norm(x), norm(x.astype(jnp.float32))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, wide.astype(jnp.bfloat16))


def test_norm_of_rows_far_from_zero_is_accurate() -> None:
    """The variance comes from one pass, as a difference of two means."""
    x = draw(1, 4, 16)
    np.testing.assert_allclose(LayerNorm(16, POLICY)(x + 30), LayerNorm(16, POLICY)(x), atol=1e-3)


def test_constant_rows_stay_finite() -> None:
    x = jnp.zeros((1, 2, 16))
    for norm in (LayerNorm(16, POLICY), RMSNorm(16, POLICY)):
        gradient = jax.grad(lambda x, norm=norm: norm(x).sum())(x)
        assert bool(jnp.isfinite(gradient).all())


def draw_bits(shape: tuple[int, ...], seed: int = 0) -> UInt32[np.ndarray, "..."]:
    return np.asarray(hash_indices(jnp.zeros(shape), jax.random.key_data(jax.random.key(seed))))


def correlate(one: np.ndarray, other: np.ndarray) -> float:
    """In standard deviations of what independent numbers give."""
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1] * np.sqrt(one.size))


@pytest.mark.parametrize("shape", [(6,), (3, 2), (1, 3, 2)])
def test_bits_are_those_of_earlier_versions(shape: tuple[int, ...]) -> None:
    """By the place in the flattened array."""
    found = hash_indices(jnp.zeros(shape), jnp.array([0x9E3779B9, 0xDEADBEEF], jnp.uint32))
    assert found.shape == shape
    assert found.ravel().tolist() == [
        33350994, 3526175118, 1567128993, 542158097, 1010150334, 321937874,
    ]  # fmt: skip


def test_places_are_independent() -> None:
    bits = draw_bits((2**18,)).astype(float)
    for distance in (1, 2, 64, 4096):
        assert abs(correlate(bits[:-distance], bits[distance:])) < 5


def test_keys_are_independent_at_any_distance() -> None:
    """A hash that only adds the key would give the same numbers, moved."""
    first, other = (draw_bits((2**12,), seed).astype(float) for seed in (0, 1))
    spectrum = np.fft.rfft(first - first.mean()) * np.conj(np.fft.rfft(other - other.mean()))
    correlations = np.fft.irfft(spectrum) / (first.std() * other.std() * np.sqrt(2**12))
    assert np.abs(correlations).max() < 6


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.001])
def test_dropout_drops_the_rate_and_keeps_the_expected_value(rate: float) -> None:
    count = 2**20
    dropped = dropout(jnp.ones((2, count // 2)), rate, jax.random.key(0))
    kept = dropped != 0
    deviation = (rate * (1 - rate) / count) ** 0.5
    assert float(1 - kept.mean()) == pytest.approx(rate, abs=4 * deviation)
    assert float(dropped.mean()) == pytest.approx(1, abs=4 * deviation / (1 - rate))
    scale = float(dropped.max())
    assert scale == pytest.approx(1 / (1 - rate))
    assert bool((dropped[kept] == scale).all())


@pytest.mark.parametrize("function", [dropout, fast_dropout])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_kept_is_scaled_exactly(function: Callable[..., jax.Array], dtype: str) -> None:
    kept = function(jnp.full((4000,), 1.5, dtype), 0.1, jax.random.key(7))
    assert kept.dtype == dtype
    near = 1e-6 if dtype == "float32" else 2**-9  # one rounding, of the result
    assert float(kept.max()) == pytest.approx(1.5 / 0.9, rel=near)
