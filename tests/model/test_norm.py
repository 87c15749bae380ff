import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from t2t.model.layers import Identity, LayerNorm, RMSNorm, make_norm, standardize
from tests import reference
from tests.model.small_models import POLICY, SMALL


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


@pytest.mark.equality
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norm_agrees_with_naive_numpy(kind: str) -> None:
    norm = make_norm(dataclasses.replace(SMALL, norm=kind), POLICY)
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
