from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.fields import ModelConfig
from t2t.model import attention
from t2t.model.attention import MultiHeadAttention, dot_product_attention
from t2t.model.kv_cache import KeyValue
from t2t.ops import recomputed_attention, tpu_attention
from tests.model.small_models import POLICY


def test_softmax_is_in_float32() -> None:
    """Of scores beyond 256 bfloat16 keeps only the even ones."""
    query = jnp.full((1, 1, 1, 1), 256, jnp.bfloat16)
    values = jnp.array([0, 1], jnp.bfloat16).reshape(1, 2, 1, 1)
    memory, bias = KeyValue(jnp.ones_like(values), values), jnp.array([[[0.0, 1.0]]])
    attended = dot_product_attention(query, memory, jnp.ones((1, 1, 1, 2), bool), bias)
    assert attended.dtype == jnp.bfloat16
    assert float(attended[0, 0, 0, 0]) == pytest.approx(1 / (1 + np.exp(-1)), rel=2**-8)


@pytest.mark.parametrize("over_memory", [False, True])
def test_each_projection_starts_within_the_glorot_limit_of_its_own_fans(over_memory: bool) -> None:
    heads, groups, d_model, d_k, d_v = 8, 4, 256, 16, 32
    config = ModelConfig(d_model=d_model, num_heads=heads, num_kv_heads=groups, d_k=d_k, d_v=d_v)
    attention = MultiHeadAttention(config, POLICY, jax.random.key(0), over_memory=over_memory)
    if over_memory:
        query, (keys, values) = (
            attention.query.weight[...],
            jnp.split(attention.key_value.weight[...], [d_k], 2),
        )
    else:
        query, keys, values = jnp.split(attention.query_key_value.weight[...], attention.splits, 2)
    for drawn, fan_out in ((query, heads * d_k), (keys, groups * d_k), (values, groups * d_v)):
        limit = (6 / (d_model + fan_out)) ** 0.5
        assert np.abs(drawn).max() == pytest.approx(limit, rel=0.01)
        assert drawn.std() == pytest.approx(limit / 3**0.5, rel=0.02)


@pytest.mark.parametrize(
    "attend",
    [
        attention.dot_product_attention,
        recomputed_attention.recomputed_attention,
        tpu_attention.tpu_attention,
    ],
    ids=["formula", "recomputed", "TPU"],
)
def test_hidden_keys_have_no_weight_however_small_the_logits_are(
    attend: Callable[..., jax.Array],
) -> None:
    query = jnp.full((1, 3, 1, 8), 300.0)  # logits of -254,558
    values = jnp.array([1.0, 2.0, 7.0]).reshape(1, 3, 1, 1)
    mask = jnp.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]], bool)[None, None]
    found, pull_back = jax.vjp(
        lambda *x: attend(x[0], KeyValue(*x[1:]), mask), query, -query, values
    )
    assert found.ravel().tolist() == [1, 1.5, 0]
    assert not pull_back(jnp.ones_like(found))[0][:, 2].any()
