"""Feed-forward, embeddings, norms, dropout and initial values."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array, Float, UInt32

from t2t.config import ConfigError
from t2t.model.layers import (
    Embedding,
    FeedForward,
    Identity,
    LayerNorm,
    RMSNorm,
    dropout,
    hash_indices,
    make_norm,
    split,
    standardize,
)
from t2t.model.linear import init_glorot
from t2t.model.stack import make_feed_forward
from t2t.ops.fast_layers import dropout as fast_dropout
from t2t.ops.select_kernels import choose_policy
from tests import reference
from tests.model.small_models import POLICY, SMALL, draw


@pytest.mark.parametrize("kind", ["relu", "gelu", "swiglu", "geglu"])
def test_feed_forward_agrees_with_naive_numpy(kind: str) -> None:
    layer = FeedForward(dataclasses.replace(SMALL, feed_forward=kind), POLICY, jax.random.key(0))
    for bias in (layer.inner.bias, layer.outer.bias):
        bias.set_value(draw(*bias.shape))
    x = draw(1, 4, 16)
    parameters = jax.tree.map(lambda x: np.asarray(x, float), nnx.to_pure_dict(nnx.state(layer)))
    wanted = reference.feed_forward(parameters, kind, np.asarray(x[0], float))
    np.testing.assert_allclose(layer(x)[0], wanted, atol=1e-5)


def test_feed_forward_drops_inner_activations() -> None:
    config = dataclasses.replace(SMALL, feed_forward_dropout=0.5)
    layer, x = FeedForward(config, POLICY, jax.random.key(0)), draw(1, 4, 16)
    assert not bool((layer(x, jax.random.key(1)) == layer(x)).all())


def test_gradients_of_biases_over_many_positions_are_as_precise_as_their_terms() -> None:
    """Terms in bfloat16 are rounded by up to 0.4%. A sum in bfloat16 is off by 2% here."""
    weights = draw(16, 256, 16)

    def differentiate(dtype: str) -> Any:
        config = dataclasses.replace(SMALL, dtype=dtype)
        layer = FeedForward(config, choose_policy(config), jax.random.key(0))
        structure, params = nnx.split(layer)

        def total(params: Any) -> jax.Array:
            found = nnx.merge(structure, params)(draw(16, 256, 16).astype(dtype))
            return jnp.sum(found * weights, dtype=jnp.float32)

        return nnx.to_pure_dict(jax.grad(total)(params))

    narrow, wide = differentiate("bfloat16"), differentiate("float32")
    for name in ("inner", "outer"):
        one, other = narrow[name]["bias"], wide[name]["bias"]
        error = jnp.linalg.norm(one - other) / jnp.linalg.norm(other)
        assert error < 0.01, name


def test_unknown_feed_forward_is_refused() -> None:
    config = dataclasses.replace(SMALL, feed_forward="tanh")
    with pytest.raises(ConfigError, match=r"model.feed_forward='tanh' is unknown"):
        make_feed_forward(config, POLICY, jax.random.key(0))


def test_embeddings_are_scaled_to_unit_variance() -> None:
    embedding = Embedding(1000, 16, jax.random.key(0))
    rows = embedding.look_up(jnp.arange(1000)[None], jnp.dtype("float32"))
    assert float(rows.std()) == pytest.approx(1, abs=0.02)
    np.testing.assert_allclose(rows[0], 4 * embedding.table[...], rtol=1e-6)


def test_logits_are_products_with_the_same_table() -> None:
    embedding, x = Embedding(11, 16, jax.random.key(0)), draw(1, 3, 16)
    logits = embedding.compute_logits(x)
    wanted = np.asarray(x[0], float) @ np.asarray(embedding.table, float).T
    np.testing.assert_allclose(logits[0], wanted, atol=1e-5)
    assert embedding.compute_logits(x.astype(jnp.bfloat16)).dtype == jnp.float32


@pytest.mark.equality
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norm_agrees_with_naive_numpy(kind: str) -> None:
    config = dataclasses.replace(SMALL, norm=kind)
    norm = make_norm(config, POLICY)
    assert isinstance(norm, LayerNorm | RMSNorm)
    parameters = {"scale": np.linspace(0.5, 2, 16), "bias": np.linspace(-1, 1, 16)}
    norm.scale.set_value(jnp.asarray(parameters["scale"], jnp.float32))
    if isinstance(norm, LayerNorm):
        norm.bias.set_value(jnp.asarray(parameters["bias"], jnp.float32))
    x = 3 * draw(1, 4, 16) + 1
    wanted = reference.normalize(parameters, config, np.asarray(x[0], float))
    np.testing.assert_allclose(norm(x)[0], wanted, atol=1e-5)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norm_of_bfloat16_is_computed_in_float32(kind: str) -> None:
    norm = make_norm(dataclasses.replace(SMALL, norm=kind), POLICY)
    x = (draw(1, 4, 16) + 8).astype(jnp.bfloat16)
    found, wide = norm(x), norm(x.astype(jnp.float32))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, wide.astype(jnp.bfloat16))


@pytest.mark.equality
@pytest.mark.parametrize("centred", [True, False])
def test_standardizing_has_the_gradient_of_its_formula(centred: bool) -> None:
    """Numerically, along a random direction, in NumPy's float64."""
    x, direction, weighting = np.random.default_rng(0).standard_normal((3, 1, 4, 16))
    x = 3 * x + 1

    def weigh(x: np.ndarray) -> float:
        shifted = x - x.mean(axis=-1, keepdims=True) if centred else x
        variance = np.square(shifted).mean(axis=-1, keepdims=True)
        return float(np.sum(weighting * shifted / np.sqrt(variance + 1e-6)))

    def weigh_ours(x: Float[Array, "B T D"]) -> Float[Array, ""]:
        return jnp.sum(jnp.asarray(weighting, jnp.float32) * standardize(x, centred=centred))

    gradient = jax.grad(weigh_ours)(jnp.asarray(x, jnp.float32))
    slope = (weigh(x + 1e-5 * direction) - weigh(x - 1e-5 * direction)) / 2e-5
    assert float(np.sum(gradient * direction)) == pytest.approx(slope, rel=1e-4)


def test_norm_of_rows_far_from_zero_is_accurate() -> None:
    """The variance comes from one pass, as a difference of two means."""
    x = draw(1, 4, 16)
    np.testing.assert_allclose(LayerNorm(16, POLICY)(x + 30), LayerNorm(16, POLICY)(x), atol=1e-3)


def test_constant_rows_stay_finite() -> None:
    x = jnp.zeros((1, 2, 16))
    for norm in (LayerNorm(16, POLICY), RMSNorm(16, POLICY)):
        gradient = jax.grad(lambda x, norm=norm: norm(x).sum())(x)
        assert bool(jnp.isfinite(gradient).all())


def test_norm_switched_off_changes_nothing() -> None:
    norm, x = make_norm(dataclasses.replace(SMALL, norm="none"), POLICY), draw(1, 2, 16)
    assert type(norm) is Identity
    assert norm(x) is x


def test_unknown_norm_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model.norm='batch' is unknown"):
        make_norm(dataclasses.replace(SMALL, norm="batch"), POLICY)


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


def test_glorot_limit_follows_the_fans_and_not_the_shape() -> None:
    weights = init_glorot(jax.random.key(0), (8, 3, 500), 20, 30)[...]
    limit = (6 / 50) ** 0.5
    assert float(jnp.abs(weights).max()) == pytest.approx(limit, rel=0.01)
    assert float(weights.std()) == pytest.approx(limit / 3**0.5, rel=0.02)
    assert float(weights.mean()) == pytest.approx(0, abs=0.01)
