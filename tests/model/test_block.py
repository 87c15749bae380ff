import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array, Float

from t2t.model.layers import FeedForward, dropout
from t2t.model.rnn import RNN
from t2t.model.stack import Residual
from t2t.model.transformer import Transformer
from t2t.ops.select_kernels import TEXTBOOK
from tests.model.small_models import POLICY, SIZES, SMALL, SRC, TGT_IN, draw

ENCODER_LAYER, DECODER_LAYER = [0.2, 0.1, 0.3, 0.1], [0.2, 0.1, 0.2, 0.1, 0.3, 0.1]  # rates


def test_dropout_falls_on_the_sublayer_and_not_on_the_sum() -> None:
    residual = Residual(dataclasses.replace(SMALL, norm="none", dropout=0.5), POLICY)
    x, key = draw(1, 3, 16), jax.random.key(0)
    y = 2 * x + 1
    np.testing.assert_array_equal(residual.after(x, y, key), x + dropout(y, 0.5, key))


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


@pytest.mark.parametrize(
    ("family", "wanted"),
    [
        (Transformer, [0.1, *2 * ENCODER_LAYER, 0.1, *2 * DECODER_LAYER]),
        (RNN, 7 * [0.1]),  # words and layers of encoder and decoder, and the output
    ],
)
def test_every_place_of_dropout_has_its_rate_and_a_key_of_its_own(
    family: Any, wanted: list[float]
) -> None:
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
        "kind": "rnn" if family is RNN else "transformer",
    }

    def run(key: jax.Array) -> jax.Array:
        config = dataclasses.replace(SMALL, **fields)
        return family(config, policy, *SIZES, jax.random.key(0))(SRC, TGT_IN, key)

    jax.jit(run)(jax.random.key(1)).block_until_ready()
    jax.effects_barrier()
    assert rates == wanted
    assert len(set(keys)) == len(keys) == len(rates)
