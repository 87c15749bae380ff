import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from t2t.model.layers import (
    Embedding,
    FeedForward,
    LayerNorm,
    Norm,
    RMSNorm,
    init_glorot,
    make_norm,
    standardize,
)
from tests import reference
from tests.model.small_models import SMALL


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


@pytest.mark.equality
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norm_agrees_with_naive_numpy(kind: str) -> None:
    norm = make_norm(dataclasses.replace(SMALL, norm=kind))
    assert isinstance(norm, LayerNorm | RMSNorm)
    parameters = {"scale": np.linspace(0.5, 2, 16), "bias": np.linspace(-1, 1, 16)}
    norm.scale.set_value(jnp.asarray(parameters["scale"], jnp.float32))
    if isinstance(norm, LayerNorm):
        norm.bias.set_value(jnp.asarray(parameters["bias"], jnp.float32))
    x = 3 * draw(1, 4, 16) + 1
    wanted = reference.normalize(parameters, kind, np.asarray(x[0], float))
    np.testing.assert_allclose(norm(x)[0], wanted, atol=1e-5)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norm_of_bfloat16_is_computed_in_float32(kind: str) -> None:
    norm = make_norm(dataclasses.replace(SMALL, norm=kind))
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
    np.testing.assert_allclose(LayerNorm(16)(x + 30), LayerNorm(16)(x), atol=1e-3)


def test_constant_rows_stay_finite() -> None:
    x = jnp.zeros((1, 2, 16))
    for norm in (LayerNorm(16), RMSNorm(16)):
        gradient = jax.grad(lambda x, norm=norm: norm(x).sum())(x)
        assert bool(jnp.isfinite(gradient).all())


def test_norm_switched_off_changes_nothing() -> None:
    norm, x = make_norm(dataclasses.replace(SMALL, norm="none")), draw(1, 2, 16)
    assert type(norm) is Norm
    assert norm(x) is x


def test_unknown_norm_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model.norm='batch' is unknown"):
        make_norm(dataclasses.replace(SMALL, norm="batch"))


@pytest.mark.parametrize("kind", ["relu", "gelu", "swiglu", "geglu"])
def test_feed_forward_agrees_with_naive_numpy(kind: str) -> None:
    layer = FeedForward(dataclasses.replace(SMALL, feed_forward=kind), jax.random.key(0))
    for bias in (layer.inner_bias, layer.outer_bias):
        bias.set_value(draw(*bias.shape))
    x = draw(1, 4, 16)
    names = ("inner", "inner_bias", "outer", "outer_bias")
    parameters = {name: np.asarray(getattr(layer, name)[...], float) for name in names}
    wanted = reference.feed_forward(parameters, kind, np.asarray(x[0], float))
    np.testing.assert_allclose(layer(x)[0], wanted, atol=1e-5)


def test_feed_forward_drops_inner_activations() -> None:
    config = dataclasses.replace(SMALL, feed_forward_dropout=0.5)
    layer, x = FeedForward(config, jax.random.key(0)), draw(1, 4, 16)
    assert not bool((layer(x, jax.random.key(1)) == layer(x)).all())


def test_unknown_feed_forward_is_refused() -> None:
    layer = FeedForward(dataclasses.replace(SMALL, feed_forward="tanh"), jax.random.key(0))
    with pytest.raises(ValueError, match=r"model.feed_forward='tanh' is unknown"):
        layer(draw(1, 4, 16))


def test_embeddings_are_scaled_to_unit_variance() -> None:
    embedding = Embedding(1000, 16, jax.random.key(0))
    rows = embedding.look_up(jnp.arange(1000)[None], jnp.dtype("float32"))
    assert float(rows.std()) == pytest.approx(1, abs=0.02)
    np.testing.assert_allclose(rows[0], 4 * embedding.table[...], rtol=1e-6)


def test_logits_are_products_with_the_same_table() -> None:
    embedding, x = Embedding(11, 16, jax.random.key(0)), draw(1, 3, 16)
    logits = embedding.project(x)
    wanted = np.asarray(x[0], float) @ np.asarray(embedding.table, float).T
    np.testing.assert_allclose(logits[0], wanted, atol=1e-5)
    assert embedding.project(x.astype(jnp.bfloat16)).dtype == jnp.float32


def test_glorot_limit_follows_the_fans_and_not_the_shape() -> None:
    weights = init_glorot(jax.random.key(0), (8, 3, 500), 20, 30)[...]
    limit = (6 / 50) ** 0.5
    assert float(jnp.abs(weights).max()) == pytest.approx(limit, rel=0.01)
    assert float(weights.std()) == pytest.approx(limit / 3**0.5, rel=0.02)
    assert float(weights.mean()) == pytest.approx(0, abs=0.01)
