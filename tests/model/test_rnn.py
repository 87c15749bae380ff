import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from t2t.model.interface import Params
from t2t.model.rnn import RNN, AdditiveAttention, EncodedSource
from tests.model.small_models import POLICY, SIZES, SMALL, SRC, TGT_IN, draw

CONFIG = dataclasses.replace(SMALL, kind="rnn", num_layers=2, dropout=0.1)


@jax.jit
def attend(
    state: Float[Array, "B W D"], memory: Float[Array, "B S D"], real: Bool[Array, "B S"]
) -> tuple[Params, Float[Array, "B W D"]]:
    attention = AdditiveAttention(CONFIG, jax.random.key(0))
    source = EncodedSource(attention.compute_keys(memory), memory, real)
    return nnx.to_pure_dict(nnx.state(attention)), attention(state, source)


def test_attention_to_nothing_has_the_result_0_and_gradients_of_0() -> None:
    real = jnp.array([[False] * 5, [True] * 3 + [False] * 2])

    def run(state: Float[Array, "B W D"], memory: Float[Array, "B S D"]) -> Float[Array, "B W D"]:
        _, found = attend(state, memory, real)
        assert isinstance(found, jax.Array)
        return found

    result, pull_back = jax.vjp(run, draw(2, 3, 16), draw(2, 5, 16, seed=1))
    for found in (result, *pull_back(jnp.ones_like(result))):
        assert np.isfinite(found).all()
        assert not found[0].any()
        assert found[1].any()


def test_every_place_of_dropout_has_a_key_of_its_own() -> None:
    keys = []

    def record(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
        assert rate == 0.1
        assert key is not None
        keys.append(jax.random.key_data(key))
        return x

    policy = dataclasses.replace(POLICY, dropout=record)

    def run(key: jax.Array) -> list[jax.Array]:
        RNN(CONFIG, policy, *SIZES, jax.random.key(0))(SRC, TGT_IN, key)
        return keys

    used = jax.jit(run)(jax.random.key(1))
    places = ["words", "layer", "layer", "words", "layer", "layer", "output"]
    assert len({tuple(key.tolist()) for key in used}) == len(used) == len(places)
