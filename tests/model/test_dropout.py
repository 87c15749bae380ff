"""Dropout and its random numbers."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import UInt32

from t2t.model.layers import dropout, hash_indices, split
from t2t.ops.fast_layers import dropout as fast_dropout


def hash_naively(shape: tuple[int, ...], words: list[int]) -> UInt32[np.ndarray, "..."]:
    """One place after the other, in Python's integers."""

    def mix(h: int) -> int:
        h = (h ^ (h >> 16)) * 0x7FEB352D % 2**32
        h = (h ^ (h >> 15)) * 0x846CA68B % 2**32
        return h ^ (h >> 16)

    step = 2 * words[1] + 1
    hashes = [mix(place * step % 2**32 ^ words[0]) for place in range(np.prod(shape))]
    return np.array(hashes, np.uint32).reshape(shape)


def draw_bits(shape: tuple[int, ...], seed: int = 0) -> UInt32[np.ndarray, "..."]:
    return np.asarray(hash_indices(jnp.zeros(shape), jax.random.key_data(jax.random.key(seed))))


def correlate(one: np.ndarray, other: np.ndarray) -> float:
    """In standard deviations of what independent numbers give."""
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1] * np.sqrt(one.size))


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4)])
def test_bits_are_the_hash_of_the_place(shape: tuple[int, ...]) -> None:
    words = [0x9E3779B9, 0xDEADBEEF]
    found = hash_indices(jnp.zeros(shape), jnp.array(words, jnp.uint32))
    np.testing.assert_array_equal(found, hash_naively(shape, words))


def test_each_bit_is_set_in_half_of_the_places() -> None:
    bits = draw_bits((2**12, 2**6))
    shares = [((bits >> bit) & 1).mean() for bit in range(32)]
    np.testing.assert_allclose(shares, 0.5, atol=5 * 0.5 / 2**9)


@pytest.mark.parametrize("distance", [1, 2, 64, 4096])
def test_places_are_independent(distance: int) -> None:
    bits = draw_bits((2**18,)).astype(float)
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


def test_dropout_follows_its_key() -> None:
    first, again, other = (
        dropout(jnp.ones((50, 7)), 0.5, jax.random.key(seed)) for seed in (0, 0, 1)
    )
    assert bool((first == again).all())
    assert not bool((first == other).all())


def test_dropout_without_key_or_rate_changes_nothing() -> None:
    x = jnp.ones((3, 4))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x


def test_dropout_lets_gradients_pass_where_it_keeps() -> None:
    key, x = jax.random.key(0), jnp.ones((4, 6))
    gradient = jax.grad(lambda x: dropout(x, 0.5, key).sum())(x)
    np.testing.assert_array_equal(gradient, dropout(x, 0.5, key))


def test_dropout_keeps_the_type() -> None:
    assert dropout(jnp.ones((2, 4), jnp.bfloat16), 0.1, jax.random.key(0)).dtype == jnp.bfloat16


def test_no_key_is_split_into_no_keys() -> None:
    assert split(None, 3) == [None, None, None]


def test_split_gives_different_keys() -> None:
    keys = split(jax.random.key(0), 5)
    words = {tuple(jax.random.key_data(key).tolist()) for key in keys if key is not None}
    assert len(words) == 5


@pytest.mark.parametrize("function", [dropout, fast_dropout])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_kept_is_scaled_exactly(function: Callable[..., jax.Array], dtype: str) -> None:
    kept = function(jnp.full((4000,), 1.5, dtype), 0.1, jax.random.key(7)).astype(jnp.float32)
    near = 1e-6 if dtype == "float32" else 2**-9  # one rounding, of the result
    assert float(kept.max()) == pytest.approx(1.5 / 0.9, rel=near)
