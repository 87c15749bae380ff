"""Ensembles against means computed in NumPy, and of one model with itself."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.fields import ModelConfig
from t2t.model.ensemble import mean_of_log_probs, mean_of_probabilities
from t2t.model.parameters import merge
from t2t.ops.build_model import Members, abstract_model, init_model

VOCABULARY = 50
TRANSFORMER = ModelConfig(num_layers=1, d_model=16, d_ff=32, num_heads=2)
RNN = ModelConfig(kind="rnn", num_layers=1, d_model=8)
CONFIGS = TRANSFORMER, RNN
SRC = jnp.array([[4, 5, 6, 2], [7, 2, 0, 0]])
TGT = jnp.array([[1, 8, 9], [1, 10, 0]])


def softmax(logits: Any) -> np.ndarray:
    shifted = np.asarray(logits, np.float64)
    exp = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
    return np.asarray(exp / exp.sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.2, 0.3, 0.5)], ids=str)
def test_means_are_those_of_numpy(weights: tuple[float, ...]) -> None:
    logits = [5 * jax.random.normal(jax.random.key(n), (3, 7)) for n, _ in enumerate(weights)]
    logits[0] = logits[0].at[0, 0].set(-200.0)  # a probability that is 0 in float32
    parts = list(zip(weights, map(softmax, logits), strict=True))
    arithmetic = sum(w * p for w, p in parts)
    geometric = np.exp(sum(w * np.log(p) for w, p in parts))
    for mean, expected in (
        (mean_of_probabilities, arithmetic),
        (mean_of_log_probs, geometric / geometric.sum(axis=-1, keepdims=True)),
    ):
        np.testing.assert_allclose(softmax(mean(logits, weights)), expected, rtol=2e-5, atol=1e-30)


def test_steps_of_different_architectures_are_teacher_forcing() -> None:
    members = Members(CONFIGS, (0.25, 0.75), "log_probs")
    structure, expected = members.abstract(VOCABULARY, VOCABULARY)
    parts = [init_model(own, VOCABULARY, VOCABULARY, jax.random.key(0))[1] for own in CONFIGS]
    params = members.join(parts)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, expected)
    together = jax.jit(lambda params: merge(structure, params)(SRC, TGT))(params)
    alone = []
    for config, own in zip(CONFIGS, parts, strict=True):
        one, _ = abstract_model(config, VOCABULARY, VOCABULARY)
        alone.append(softmax(jax.jit(lambda own, one=one: merge(one, own)(SRC, TGT))(own)))
    expected_mean = alone[0] ** 0.25 * alone[1] ** 0.75
    expected_mean /= expected_mean.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(softmax(together), expected_mean, rtol=1e-4)

    cache = jax.jit(lambda params: merge(structure, params).init_cache(SRC, 2, 2))(params)
    decode_step = jax.jit(lambda params, *others: merge(structure, params).decode_step(*others))
    parents = jnp.tile(jnp.arange(2), (2, 1))
    for step in range(3):
        if step == 2:
            cache = merge(structure, params).extend_cache(cache, 4)
        tokens = jnp.tile(TGT[:, step : step + 1], 2)
        logits, cache = decode_step(params, tokens, parents, cache)
        np.testing.assert_allclose(
            softmax(logits[0, 1]), softmax(together[0, step]), rtol=1e-4
        )  # row 1 has padding


def test_shortest_limit_of_the_models_is_the_ensembles() -> None:
    learned = ModelConfig(position="learned", max_positions=12)
    assert Members((TRANSFORMER, learned, RNN)).position_limit == 12
    assert Members((TRANSFORMER, RNN)).position_limit is None
