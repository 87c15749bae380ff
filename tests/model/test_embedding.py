import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.model.layers import Embedding


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


def test_embeddings_are_scaled_to_unit_variance() -> None:
    embedding = Embedding(1000, 16, jax.random.key(0))
    rows = embedding.look_up(jnp.arange(1000)[None], jnp.dtype("float32"))
    assert float(rows.std()) == pytest.approx(1, abs=0.02)
    np.testing.assert_allclose(rows[0], 4 * embedding.table[...], rtol=1e-6)


def test_logits_are_products_with_the_same_table() -> None:
    embedding, x = Embedding(11, 16, jax.random.key(0)), draw(1, 3, 16)
    logits = embedding.project(x)
    wanted = np.asarray(x[0], float) @ np.asarray(embedding.table, float).T
    np.testing.assert_allclose(logits[0], wanted, atol=1e-5)
    assert embedding.project(x.astype(jnp.bfloat16)).dtype == jnp.float32
