import jax
import jax.numpy as jnp
import numpy as np

from t2t.batch import PAD_ID
from t2t.model.masks import ancestor_mask, apply_mask, causal_mask, padding_mask


def test_padding_is_hidden_from_every_query() -> None:
    ids = jnp.array([[5, 2, PAD_ID], [PAD_ID, PAD_ID, PAD_ID]])
    assert padding_mask(ids).tolist() == [[[[True, True, False]]], [[[False, False, False]]]]


def test_a_position_sees_itself_and_its_past() -> None:
    mask = causal_mask(4)[0, 0]
    assert all(bool(mask[t, s]) == (s <= t) for t, s in np.ndindex(4, 4))


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
    weights = jax.nn.softmax(apply_mask(logits, mask), axis=-1)
    assert weights[0, 1] == 0
    np.testing.assert_allclose(weights[1], np.full(3, 1 / 3), rtol=1e-6)  # finite where all are
