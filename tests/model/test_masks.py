from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.model import attention
from t2t.model.attention import masked_softmax
from t2t.model.kv_cache import KeyValue
from t2t.model.masks import (
    ancestor_mask,
    causal_mask,
    padding_mask,
    positions_in_segments,
    prefix_mask,
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


def test_padding_is_hidden_from_every_query() -> None:
    ids = jnp.array([[5, 2, PAD_ID], [PAD_ID, PAD_ID, PAD_ID]])
    assert padding_mask(ids).tolist() == [[[[True, True, False]]], [[[False, False, False]]]]


def test_a_position_sees_itself_and_its_past() -> None:
    mask = causal_mask(target_segment_ids(jnp.array([[BOS_ID, 5, 6, PAD_ID]])))[0, 0]
    assert all(bool(mask[t, s]) == (s <= t) for t, s in np.ndindex(4, 4))


def test_source_is_causal_on_request_and_targets_see_it_whole() -> None:
    src = jnp.array([[5, 6, EOS_ID, 7, EOS_ID, PAD_ID]])
    tgt = jnp.array([[BOS_ID, 8, BOS_ID, 9]])
    segments = [0, 0, 0, 1, 1, 2, 0, 0, 1, 1]
    for causal in (False, True):
        mask = prefix_mask(src, target_segment_ids(tgt), causal=causal)[0, 0]
        for t, s in np.ndindex(10, 10):
            seen = s <= t if causal or s >= 6 else True
            assert mask[t, s] == (seen and segments[t] == segments[s] and s != 5), (t, s)


SRC = jnp.array([[5, EOS_ID, 6, 7, EOS_ID, PAD_ID], [8, EOS_ID, *[PAD_ID] * 4], [PAD_ID] * 6])
TGT_IN = jnp.array([[BOS_ID, 9, BOS_ID, 4, 5], [BOS_ID, *[PAD_ID] * 4], [PAD_ID] * 5])


def test_sentences_of_a_row_are_numbered() -> None:
    assert source_segment_ids(SRC)[0].tolist() == [0, 0, 1, 1, 1, 2]
    assert target_segment_ids(TGT_IN)[0].tolist() == [0, 0, 1, 1, 1]


def test_sentence_that_is_alone_in_its_row_needs_no_target() -> None:
    mask = source_mask(target_segment_ids(TGT_IN), SRC)[:, 0]
    assert mask[1, 0].tolist() == [True, True, *[False] * 4]
    assert not mask[2].any()


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


def test_a_slot_sees_its_ancestors_only() -> None:
    beam, length, step = 3, 4, 2
    ancestors = np.random.default_rng(0).integers(0, beam, (2, beam, length))
    mask = ancestor_mask(jnp.asarray(ancestors), jnp.asarray(step))
    assert mask.shape == (2, 1, beam, length * beam)
    for row, slot, time, other in np.ndindex(2, beam, length, beam):
        visible = time <= step and ancestors[row, slot, time] == other
        assert bool(mask[row, 0, slot, time * beam + other]) == visible


def test_hidden_keys_get_no_weight() -> None:
    logits = jnp.array([[1.0, 50.0, 2.0], [1.0, 50.0, 2.0]])
    mask = jnp.array([[True, False, True], [False, False, False]])
    weights = masked_softmax(logits, mask)
    np.testing.assert_allclose(weights[0, ::2], np.exp([1, 2]) / np.exp([1, 2]).sum(), rtol=1e-6)
    np.testing.assert_array_equal(weights[~mask], 0)
