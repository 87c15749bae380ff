from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.model import attention
from t2t.model.kv_cache import KeyValue
from t2t.model.masks import (
    causal_mask,
    positions_in_segments,
    source_mask,
    source_segment_ids,
    target_segment_ids,
)
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


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=4))
def test_sentences_of_a_row_do_not_see_each_other(lengths: list[tuple[int, int]]) -> None:
    """Words of each source and target in a row; what is padding may see anything."""
    sources = [(n, place) for n, (words, _) in enumerate(lengths) for place in range(words + 1)]
    targets = [(n, place) for n, (_, words) in enumerate(lengths) for place in range(words + 1)]
    src, tgt_in = np.full((1, 20), PAD_ID), np.full((1, 20), PAD_ID)
    src[0, : len(sources)] = [EOS_ID if place == lengths[n][0] else 7 for n, place in sources]
    tgt_in[0, : len(targets)] = [7 if place else BOS_ID for _, place in targets]
    src_numbers, tgt_numbers = (
        source_segment_ids(jnp.array(src)),
        target_segment_ids(jnp.array(tgt_in)),
    )
    for numbers, wanted in (src_numbers, sources), (tgt_numbers, targets):
        found = positions_in_segments(numbers)[0, : len(wanted)].tolist()
        assert found == [place for _, place in wanted]
    past = np.asarray(causal_mask(tgt_numbers))[0, 0]
    crossed = np.asarray(source_mask(tgt_numbers, jnp.array(src)))[0, 0]
    for t, (number, place) in enumerate(targets):
        assert [*map(bool, past[t, : len(targets)])] == [
            other == number and before <= place for other, before in targets
        ]
        assert [*map(bool, crossed[t])] == [
            s < len(sources) and sources[s][0] == number for s in range(20)
        ]
