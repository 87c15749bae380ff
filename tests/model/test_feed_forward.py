import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config import ConfigError
from t2t.model.feed_forward import FeedForward, make_feed_forward
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


def test_unknown_feed_forward_is_refused() -> None:
    config = dataclasses.replace(SMALL, feed_forward="tanh")
    with pytest.raises(ConfigError, match=r"model.feed_forward='tanh' is unknown"):
        make_feed_forward(config, POLICY, jax.random.key(0))
