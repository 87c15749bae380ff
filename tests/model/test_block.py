import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from t2t.config.fields import ModelConfig
from t2t.model.layers import FeedForward, dropout
from t2t.model.stack import Residual
from t2t.model.transformer import Transformer
from t2t.ops.select_kernels import TEXTBOOK
from tests.model.small_models import POLICY, SIZES, SMALL, SRC, TGT_IN, draw


class Double(nnx.Module):
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return 2 * x + 1


double = Double()


def run(config: ModelConfig, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
    """The residual connection around `double`."""
    residual = Residual(config, POLICY)
    return residual.after(x, double(residual.before(x)), key)


def test_dropout_falls_on_the_sublayer_and_not_on_the_sum() -> None:
    config = dataclasses.replace(SMALL, norm="none", dropout=0.5)
    x, key = draw(1, 3, 16), jax.random.key(0)
    wanted = x + dropout(double(x), 0.5, key)
    np.testing.assert_array_equal(run(config, x, key), wanted)


def test_gradient_of_x_waits_for_those_of_the_weights_and_is_the_same() -> None:
    x = draw(1, 3, 16)
    structure, params = nnx.split(FeedForward(SMALL, POLICY, jax.random.key(0)))

    def feed(params: Any, x: Float[Array, "B T D"], *, prompt: bool) -> Float[Array, ""]:
        module = nnx.merge(structure, params)
        if prompt:
            module, x = POLICY.order_gradients(module, x)
        return jnp.square(module(x)).sum()

    prompt, plain = (jax.grad(functools.partial(feed, prompt=p), (0, 1)) for p in (True, False))
    jax.tree.map(np.testing.assert_array_equal, prompt(params, x), plain(params, x))
    equations = jax.make_jaxpr(prompt)(params, x).eqns
    (barrier,) = (e for e in equations if e.primitive.name == "optimization_barrier")
    assert len(barrier.invars) == len(jax.tree.leaves(params)) + 1


def test_every_place_of_dropout_has_its_rate_and_a_key_of_its_own() -> None:
    rates: list[float] = []
    keys: list[tuple[int, ...]] = []

    def record(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
        assert key is not None
        rates.append(rate)
        jax.debug.callback(
            lambda words: keys.append(tuple(words.tolist())), jax.random.key_data(key)
        )
        return x

    def attend(*arguments: Any, scaled: bool) -> jax.Array:
        *others, rate, key = arguments
        return record(TEXTBOOK["attention"](*others, scaled=scaled), rate, key)

    policy = dataclasses.replace(POLICY, dropout=record, attention=attend)
    fields: dict[str, Any] = {
        "dropout": 0.1,
        "attention_dropout": 0.2,
        "feed_forward_dropout": 0.3,
        "num_layers": 2,
    }

    def run(key: jax.Array) -> jax.Array:
        config = dataclasses.replace(SMALL, **fields)
        model = Transformer(config, policy, *SIZES, jax.random.key(0))
        return model(SRC, TGT_IN, key)

    jax.jit(run)(jax.random.key(1)).block_until_ready()
    jax.effects_barrier()
    encoder_layer, decoder_layer = [0.2, 0.1, 0.3, 0.1], [0.2, 0.1, 0.2, 0.1, 0.3, 0.1]
    assert rates == [0.1, *2 * encoder_layer, 0.1, *2 * decoder_layer]
    assert len(set(keys)) == len(keys) == len(rates)
