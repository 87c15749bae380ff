import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array, Float

from t2t.model.decoder_only import DecoderOnly
from t2t.model.layers import FeedForward, dropout
from t2t.model.parameters import Params, merge
from t2t.model.rnn import RNN
from t2t.model.stack import Residual
from t2t.model.transformer import Transformer
from t2t.ops.build_model import abstract_model
from t2t.ops.select_kernels import TEXTBOOK
from tests.model.small_models import POLICY, SIZES, SMALL, SRC, TGT_IN, draw, draw_params

ENCODER_LAYER, DECODER_LAYER = [0.2, 0.1, 0.3, 0.1], [0.2, 0.1, 0.2, 0.1, 0.3, 0.1]  # rates


def test_dropout_falls_on_the_sublayer_and_not_on_the_sum() -> None:
    residual = Residual(dataclasses.replace(SMALL, norm="none", dropout=0.5), POLICY)
    x, key = draw(1, 3, 16), jax.random.key(0)
    y = 2 * x + 1
    [result] = residual.after(x, y, key).arrays
    np.testing.assert_array_equal(result, x + dropout(y, 0.5, key))


def test_gradient_of_x_waits_for_those_of_the_weights() -> None:
    x = draw(1, 3, 16)
    structure, params = nnx.split(FeedForward(SMALL, POLICY, jax.random.key(0)))

    def feed(params: Any, x: Float[Array, "B T D"]) -> Float[Array, ""]:
        module, x = POLICY.order_gradients(nnx.merge(structure, params), x)
        return jnp.square(module(x)).sum()

    equations = jax.make_jaxpr(jax.grad(feed, (0, 1)))(params, x).eqns
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

    policy = dataclasses.replace(POLICY, dropout=record, attention=attend, causal_attention=attend)
    config = dataclasses.replace(
        SMALL, num_layers=2, dropout=0.1, attention_dropout=0.2, feed_forward_dropout=0.3
    )
    config = dataclasses.replace(config, kind="rnn" if family is RNN else "transformer")

    def run(key: jax.Array) -> jax.Array:
        return family(config, policy, *SIZES, jax.random.key(0))(SRC, TGT_IN, key)

    jax.jit(run)(jax.random.key(1)).block_until_ready()
    jax.effects_barrier()
    assert rates == wanted
    assert len(set(keys)) == len(keys) == len(rates)


@pytest.mark.parametrize(
    ("kind", "prefix", "wanted"),
    [
        # encoder; then self-attention and attention over the source
        ("transformer", True, ["attention", "causal_attention", "attention"]),
        ("decoder_only", False, ["causal_attention"]),
        ("decoder_only", True, ["attention"]),
    ],
)
def test_attention_that_is_promised_to_be_causal_has_a_causal_mask(
    kind: str, prefix: bool, wanted: list[str]
) -> None:
    called: list[str] = []

    def check(name: str, *arguments: Any, **options: Any) -> jax.Array:
        mask = arguments[2]
        if name == "causal_attention":
            assert not np.triu(mask, 1).any()
        called.append(name)
        result: jax.Array = TEXTBOOK[name](*arguments, **options)
        return result

    policy = dataclasses.replace(
        POLICY,
        attention=functools.partial(check, "attention"),
        causal_attention=functools.partial(check, "causal_attention"),
    )
    config = dataclasses.replace(SMALL, kind=kind, prefix=prefix)
    family = Transformer if kind == "transformer" else DecoderOnly
    family(config, policy, *SIZES, jax.random.key(0))(SRC, TGT_IN)
    assert called == wanted


DROPS = dataclasses.replace(SMALL, num_layers=2, dropout=0.2, attention_dropout=0.1)


def test_scanned_layers_compute_what_unrolled_ones_do() -> None:
    """With the same dropout masks, from the same parameters."""
    results = []
    for scanned in (False, True):
        config = dataclasses.replace(DROPS, scan_layers=scanned)
        structure, params = draw_params(config)

        def sum_logits(params: Params, key: jax.Array, structure: Any = structure) -> jax.Array:
            return jnp.sum(jnp.sin(merge(structure, params)(SRC, TGT_IN, key)))

        results.append(jax.jit(jax.value_and_grad(sum_logits))(params, jax.random.key(0)))
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(results[0]))
    near = functools.partial(np.testing.assert_allclose, atol=1e-5 * largest)
    jax.tree.map(near, *results)


def test_scanned_layers_are_compiled_once_whatever_their_number() -> None:
    sizes = []
    for depth in (2, 6):
        config = dataclasses.replace(SMALL, num_layers=depth, scan_layers=True)
        structure, params = abstract_model(config, *SIZES)

        def run(params: Params, structure: Any = structure) -> jax.Array:
            return merge(structure, params)(SRC, TGT_IN)

        traced = jax.make_jaxpr(run)(params)
        sizes.append(sum(eqn.primitive.name == "scan" for eqn in traced.eqns))
        products = [eqn for eqn in traced.eqns if eqn.primitive.name == "dot_general"]
        assert len(products) <= 1  # the logits
    assert sizes == [2, 2]
