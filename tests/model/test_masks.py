from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from t2t.model import attention
from t2t.model.kv_cache import KeyValue
from t2t.ops import recomputed_attention, tpu_attention


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
    found = attend(query, KeyValue(-query, values), mask)
    assert found.ravel().tolist() == [1, 1.5, 0]
