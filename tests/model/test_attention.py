import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array, Bool, Float

from t2t.config.fields import ModelConfig
from t2t.model.attention import Context, MultiHeadAttention, dot_product_attention
from t2t.model.kv_cache import KeyValue, KVCache
from t2t.model.position import Position, make_position
from tests import reference
from tests.model.small_models import POLICY, SMALL, draw

BATCH, QUERIES, KEYS = 2, 3, 4

attend = jax.jit(dot_product_attention, static_argnames="dropout_rate")


def draw_mask() -> np.ndarray:
    """Each query sees the first key and some others."""
    mask = np.random.default_rng(1).random((BATCH, 1, QUERIES, KEYS)) < 0.5
    mask[..., 0] = True
    return mask


@pytest.mark.equality
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_attention_agrees_with_naive_numpy(groups: int) -> None:
    heads, d_k, d_v = 4, 6, 5
    query = draw(BATCH, QUERIES, heads, d_k)
    memory = KeyValue(draw(BATCH, KEYS, groups, d_k, seed=2), draw(BATCH, KEYS, groups, d_v))
    mask, bias = draw_mask(), draw(heads, QUERIES, KEYS, seed=3)
    found = attend(query, memory, mask, bias)
    cached = attend(query, KVCache.store(memory), mask, bias)
    np.testing.assert_allclose(cached, found, atol=1e-5)
    for row, head in np.ndindex(BATCH, heads):
        group = head // (heads // groups)
        wanted = reference.attend(
            np.asarray(query[row, :, head], float),
            np.asarray(memory.keys[row, :, group], float),
            np.asarray(memory.values[row, :, group], float),
            mask[row, 0],
            np.asarray(bias[head], float),
        )
        np.testing.assert_allclose(found[row, :, head], wanted, atol=1e-5)


def test_softmax_is_in_float32() -> None:
    """Of scores beyond 256 bfloat16 keeps only the even ones."""
    query = jnp.full((1, 1, 1, 1), 256, jnp.bfloat16)
    values = jnp.array([0, 1], jnp.bfloat16).reshape(1, 2, 1, 1)
    memory, bias = KeyValue(jnp.ones_like(values), values), jnp.array([[[0.0, 1.0]]])
    attended = attend(query, memory, jnp.ones((1, 1, 1, 2), bool), bias)
    assert attended.dtype == jnp.bfloat16
    assert float(attended[0, 0, 0, 0]) == pytest.approx(1 / (1 + np.exp(-1)), rel=2**-8)


def test_dropout_of_weights_keeps_their_expected_sum() -> None:
    shape = (1, 1000, 1, 2)
    memory, mask = KeyValue(jnp.zeros(shape), jnp.ones(shape)), jnp.ones((1, 1, 1, 1000), bool)
    key = jax.random.key(0)
    weighted = attend(jnp.zeros(shape), memory, mask, dropout_rate=0.3, key=key)
    assert float(np.mean(weighted)) == pytest.approx(1, abs=3e-3)  # of 10^6 weights
    assert float(np.std(weighted)) == pytest.approx((0.3 / 0.7 / 1000) ** 0.5, rel=0.1)


@pytest.mark.equality
def test_grouped_heads_are_heads_with_equal_keys_and_values() -> None:
    query, mask = draw(BATCH, QUERIES, 4, 6), draw_mask()
    memory = KeyValue(draw(BATCH, KEYS, 2, 6, seed=2), draw(BATCH, KEYS, 2, 5))
    repeated = KeyValue(*(jnp.repeat(x, 2, axis=2) for x in memory))
    found, wanted = attend(query, memory, mask), attend(query, repeated, mask)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_kv_heads": 2, "d_k": 6, "d_v": 5}, {"position": "rotary"}],
    ids=["paper", "grouped heads of unequal widths", "rotary"],
)
def test_self_attention_agrees_with_naive_numpy(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(SMALL, **changes)
    x, mask = draw(BATCH, QUERIES, config.d_model), np.tri(QUERIES, dtype=bool)
    found, weights = attend_to_self(config, x, mask)
    for row, sentence in zip(found, np.asarray(x, float), strict=True):
        wanted = reference.multi_head_attention(weights, config, sentence, sentence, mask)
        np.testing.assert_allclose(row, wanted, atol=1e-5)


def attend_to_self(
    config: ModelConfig, x: Float[Array, "B T D"], mask: Bool[np.ndarray, "T T"]
) -> tuple[Float[Array, "B T D"], reference.Parameters]:
    """The result, and the weights that gave it."""

    def run(x: Float[Array, "B T D"], mask: Bool[Array, "T T"]) -> Any:
        attention = MultiHeadAttention(config, POLICY, jax.random.key(0))
        position = make_position(config, POLICY, jax.random.key(1), causal=True)
        context = Context(mask[None, None], position, jnp.arange(QUERIES), None)
        return attention(x, context)[0], nnx.to_pure_dict(nnx.state(attention))

    found, weights = jax.jit(run)(x, mask)
    return found, jax.tree.map(lambda x: np.asarray(x, float), weights)


def test_attention_to_the_source_agrees_with_naive_numpy() -> None:
    config = dataclasses.replace(SMALL, num_kv_heads=2, d_k=6, d_v=5)
    x, memory, mask = draw(BATCH, QUERIES, 16), draw(BATCH, KEYS, 16, seed=4), draw_mask()

    @jax.jit
    def run(x: jax.Array, memory: jax.Array, mask: jax.Array) -> Any:
        attention = MultiHeadAttention(config, POLICY, jax.random.key(0), over_memory=True)
        context = Context(mask, Position(), jnp.arange(QUERIES), None, memory, mask)
        return attention(x, context)[0], nnx.to_pure_dict(nnx.state(attention))

    found, weights = run(x, memory, mask)
    weights, x, memory = jax.tree.map(lambda x: np.asarray(x, float), (weights, x, memory))
    for row in range(BATCH):
        wanted = reference.multi_head_attention(weights, config, x[row], memory[row], mask[row, 0])
        np.testing.assert_allclose(found[row], wanted, atol=1e-5)


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


def test_cache_keeps_what_was_written_in_order() -> None:
    beam, groups = 3, 2
    like = KVCache(jnp.zeros((BATCH, groups, 5, 7)), jnp.zeros((BATCH, groups, 7, 4)))
    cache, written = KVCache.allocate(like, 2 * beam), []
    for step in range(3):
        new = KeyValue(draw(BATCH, beam, groups, 5, seed=step), draw(BATCH, beam, groups, 4))
        if step == 2:
            cache = cache.extend(2 * beam)
        cache = cache.write(jnp.asarray(step * beam), new)
        written.append(new)
    keys, values = (jnp.concatenate(x, axis=1) for x in zip(*written, strict=True))
    wanted = KVCache.store(KeyValue(keys, values))
    np.testing.assert_array_equal(cache.stored_keys[..., : 3 * beam], wanted.stored_keys)
    np.testing.assert_array_equal(cache.stored_values[:, :, : 3 * beam], wanted.stored_values)
    assert not cache.stored_keys[..., 3 * beam :].any()
    assert not cache.stored_values[:, :, 3 * beam :].any()
