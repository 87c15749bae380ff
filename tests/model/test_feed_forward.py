import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2t.config import ConfigError
from t2t.model.layers import FeedForward, make_feed_forward
from t2t.ops.select_kernels import choose_policy
from tests import reference
from tests.model.small_models import POLICY, SMALL


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


@pytest.mark.parametrize("kind", ["relu", "gelu", "swiglu", "geglu"])
def test_feed_forward_agrees_with_naive_numpy(kind: str) -> None:
    layer = FeedForward(dataclasses.replace(SMALL, feed_forward=kind), POLICY, jax.random.key(0))
    for bias in (layer.inner_bias, layer.outer_bias):
        bias.set_value(draw(*bias.shape))
    x = draw(1, 4, 16)
    names = ("inner", "inner_bias", "outer", "outer_bias")
    parameters = {name: np.asarray(getattr(layer, name)[...], float) for name in names}
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
    for name in ("inner_bias", "outer_bias"):
        error = jnp.linalg.norm(narrow[name] - wide[name]) / jnp.linalg.norm(wide[name])
        assert error < 0.01, name


def test_unknown_feed_forward_is_refused() -> None:
    config = dataclasses.replace(SMALL, feed_forward="tanh")
    with pytest.raises(ConfigError, match=r"model.feed_forward='tanh' is unknown"):
        make_feed_forward(config, POLICY, jax.random.key(0))
