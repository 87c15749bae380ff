import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Bool, Float

from t2t.config.fields import ModelConfig
from t2t.model import attention
from t2t.model.attention import (
    KeyValue,
    KVCache,
    MultiHeadAttention,
    dot_product_attention,
)
from t2t.model.dropout import dropout
from t2t.model.position import make_position
from tests import reference
from tests.model.small_models import SMALL

BATCH, QUERIES, KEYS = 2, 3, 4

attend = jax.jit(dot_product_attention, static_argnames="dropout_rate")


def draw(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


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
    turned = KVCache.arrange(memory).attend(query, jnp.asarray(mask), bias)
    np.testing.assert_allclose(turned, found, atol=1e-5)
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


@pytest.mark.equality
@pytest.mark.parametrize("dropout_rate", [0.0, 0.5])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("platform", ["cpu", "tpu", "tpu with the kernel"])
def test_value_and_gradients_are_those_of_the_plain_formula(
    dropout_rate: float, biased: bool, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written by hand for each pass, against what JAX makes of equation 1.

    The kernel is for neither dropout nor bias: there it must not be taken.
    """
    monkeypatch.setattr(attention, "platform", lambda: platform[:3])
    monkeypatch.setattr(attention, "suits_kernel", lambda *_: platform == "tpu with the kernel")
    heads, groups, d_k, d_v = 4, 2, 6, 5
    query = draw(BATCH, QUERIES, heads, d_k)
    memory = KeyValue(draw(BATCH, KEYS, groups, d_k, seed=2), draw(BATCH, KEYS, groups, d_v))
    bias = draw(heads, QUERIES, KEYS, seed=3) if biased else None
    mask, key = jnp.asarray(draw_mask()), jax.random.key(0)
    weighting = draw(BATCH, QUERIES, heads, d_v, seed=4)

    def attend_plainly(
        query: Float[Array, "B T H K"], memory: KeyValue, bias: Float[Array, "H T S"] | None
    ) -> Float[Array, "B T H E"]:
        keys, values = (jnp.repeat(x, heads // groups, axis=2) for x in memory)
        logits = jnp.einsum("BTHK,BSHK->BHTS", query, keys) / d_k**0.5
        logits = jnp.where(mask, logits if bias is None else logits + bias, -jnp.inf)
        weights = jax.nn.softmax(logits).reshape(BATCH, groups, heads // groups, QUERIES, KEYS)
        dropped = dropout(weights, dropout_rate, key).reshape(logits.shape)
        return jnp.einsum("BHTS,BSHE->BTHE", dropped, values)

    def differentiate(attend: Callable[..., jax.Array]) -> Any:
        def weigh(inputs: tuple[Any, ...]) -> jax.Array:
            return jnp.sum(weighting * attend(*inputs))

        return jax.jit(jax.value_and_grad(weigh))((query, memory, bias))

    def attend_by_hand(*inputs: Any) -> jax.Array:
        query, memory, bias = inputs
        return dot_product_attention(query, memory, mask, bias, dropout_rate, key)

    jax.tree.map(
        lambda found, wanted: np.testing.assert_allclose(found, wanted, atol=1e-5),
        differentiate(attend_by_hand),
        differentiate(attend_plainly),
    )


def test_weights_are_not_kept_for_the_backward_pass() -> None:
    query = draw(1, 64, 1, 4)
    mask = jnp.ones((1, 1, 1, 64), bool)
    _, pull_back = jax.vjp(lambda q: dot_product_attention(q, KeyValue(q, q), mask), query)
    assert max(leaf.size for leaf in jax.tree.leaves(pull_back)) < 64 * 64


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "path", ["cpu", "cpu with bias", "cpu with dropout", "tpu", "kernel", "cache"]
)
def test_query_without_visible_key_has_the_result_0_and_gradients_of_0(
    path: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cotangent is 1 everywhere: the loss of a model would never look at such a row."""
    monkeypatch.setattr(attention, "platform", lambda: path[:3])
    monkeypatch.setattr(attention, "suits_kernel", lambda *_: path == "kernel")
    query = draw(BATCH, QUERIES, 4, 6).astype(dtype)
    memory = KeyValue(draw(BATCH, KEYS, 2, 6, seed=2), draw(BATCH, KEYS, 2, 5))
    memory = jax.tree.map(lambda x: x.astype(dtype), memory)
    bias = draw(4, QUERIES, KEYS, seed=3) if path == "cpu with bias" else None
    rate, key = (0.5, jax.random.key(0)) if path == "cpu with dropout" else (0.0, None)
    hidden = np.array([[True, True, True], [False, True, False]])  # a whole sentence, and a query
    mask = jnp.asarray(draw_mask() & ~hidden[:, None, :, None])

    def run(query: Float[Array, "B T H K"], memory: KeyValue, bias: jax.Array | None) -> jax.Array:
        if path == "cache":
            return KVCache.arrange(memory).attend(query, mask, bias)
        return dot_product_attention(query, memory, mask, bias, rate, key)

    results, pull_back = jax.vjp(run, query, memory, bias)
    gradients = pull_back(jnp.ones_like(results))
    assert not np.asarray(results)[hidden].any()
    assert not np.asarray(gradients[0])[hidden].any()
    assert all(np.isfinite(np.asarray(x, float)).all() for x in jax.tree.leaves(gradients))
    for found in gradients[1]:
        assert not found[0].any()
        assert found[1].any()
    # Keys, values and bias get from the other queries alone what they get from all.
    others = jnp.where(hidden[..., None, None], 0, jnp.ones_like(results))
    jax.tree.map(np.testing.assert_array_equal, gradients, pull_back(others))


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
        attention = MultiHeadAttention(config, jax.random.key(0))
        position = make_position(config, jax.random.key(1), causal=True)
        query, memory = attention.project(x, position, jnp.arange(QUERIES))
        weights = {name: getattr(attention, name)[...] for name in ("query_key_value", "output")}
        return attention.attend(query, memory, mask[None, None]), weights

    found, weights = jax.jit(run)(x, mask)
    return found, jax.tree.map(lambda x: np.asarray(x, float), weights)


def test_attention_to_the_source_agrees_with_naive_numpy() -> None:
    config = dataclasses.replace(SMALL, num_kv_heads=2, d_k=6, d_v=5)
    x, memory, mask = draw(BATCH, QUERIES, 16), draw(BATCH, KEYS, 16, seed=4), draw_mask()

    @jax.jit
    def run(x: jax.Array, memory: jax.Array, mask: jax.Array) -> Any:
        attention = MultiHeadAttention(config, jax.random.key(0), over_memory=True)
        query, key_value = attention.project_query(x), attention.project_memory(memory)
        names = ("query", "key_value", "output")
        weights = {name: getattr(attention, name)[...] for name in names}
        return attention.attend(query, key_value, mask), weights

    found, weights = run(x, memory, mask)
    weights, x, memory = jax.tree.map(lambda x: np.asarray(x, float), (weights, x, memory))
    for row in range(BATCH):
        wanted = reference.multi_head_attention(weights, config, x[row], memory[row], mask[row, 0])
        np.testing.assert_allclose(found[row], wanted, atol=1e-5)


@pytest.mark.parametrize("over_memory", [False, True])
def test_each_projection_starts_within_the_glorot_limit_of_its_own_fans(over_memory: bool) -> None:
    heads, groups, d_model, d_k, d_v = 8, 4, 256, 16, 32
    config = ModelConfig(d_model=d_model, num_heads=heads, num_kv_heads=groups, d_k=d_k, d_v=d_v)
    attention = MultiHeadAttention(config, jax.random.key(0), over_memory=over_memory)
    if over_memory:
        query, (keys, values) = attention.query[...], jnp.split(attention.key_value[...], [d_k], 2)
    else:
        query, keys, values = jnp.split(attention.query_key_value[...], attention.splits, 2)
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
            cache = cache.extend(4 * beam)
        cache = cache.write(jnp.asarray(step), new)
        written.append(new)
    keys, values = (jnp.concatenate(x, axis=1) for x in zip(*written, strict=True))
    wanted = KVCache.arrange(KeyValue(keys, values))
    np.testing.assert_array_equal(cache.keys[..., : 3 * beam], wanted.keys)
    np.testing.assert_array_equal(cache.values[:, :, : 3 * beam], wanted.values)
    assert not cache.keys[..., 3 * beam :].any()
    assert not cache.values[:, :, 3 * beam :].any()
