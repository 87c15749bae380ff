import jax.numpy as jnp
import numpy as np

from t2t.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.model.masks import (
    ancestor_mask,
    causal_mask,
    count_positions,
    masked_softmax,
    number_sources,
    number_targets,
    padding_mask,
    source_mask,
)


def test_padding_is_hidden_from_every_query() -> None:
    ids = jnp.array([[5, 2, PAD_ID], [PAD_ID, PAD_ID, PAD_ID]])
    assert padding_mask(ids).tolist() == [[[[True, True, False]]], [[[False, False, False]]]]


def test_a_position_sees_itself_and_its_past() -> None:
    mask = causal_mask(number_targets(jnp.array([[BOS_ID, 5, 6, PAD_ID]])))[0, 0]
    assert all(bool(mask[t, s]) == (s <= t) for t, s in np.ndindex(4, 4))


SRC = jnp.array([[5, EOS_ID, 6, 7, EOS_ID, PAD_ID], [8, EOS_ID, *[PAD_ID] * 4], [PAD_ID] * 6])
TGT_IN = jnp.array([[BOS_ID, 9, BOS_ID, 4, 5], [BOS_ID, *[PAD_ID] * 4], [PAD_ID] * 5])


def test_sentences_of_a_row_are_numbered() -> None:
    assert number_sources(SRC)[0].tolist() == [0, 0, 1, 1, 1, 2]
    assert number_targets(TGT_IN)[0].tolist() == [0, 0, 1, 1, 1]


def test_positions_begin_anew_in_each_sentence() -> None:
    assert count_positions(number_sources(SRC))[0, :5].tolist() == [0, 1, 0, 1, 2]
    assert count_positions(number_targets(TGT_IN))[0].tolist() == [0, 1, 0, 1, 2]


def test_sentences_of_a_row_do_not_see_each_other() -> None:
    mask = causal_mask(number_targets(TGT_IN))[0, 0]
    sentences = [0, 0, 1, 1, 1]
    for t, s in np.ndindex(5, 5):
        assert bool(mask[t, s]) == (s <= t and sentences[s] == sentences[t])


def test_a_target_sees_the_source_of_its_number() -> None:
    mask = source_mask(number_targets(TGT_IN), SRC)[:, 0]
    first, second = [True, True, *[False] * 4], [False, False, *[True] * 3, False]
    assert mask[0].tolist() == [first, first, second, second, second]
    assert mask[1, 0].tolist() == first
    assert not mask[2].any()


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
