"""The grouped top-k finds the same as sorting everything."""

import jax
import numpy as np
import pytest

from t2t.decoding.beam_search import grouped_top_k
from t2t.decoding.sampling import BANNED_TOKENS


@pytest.mark.parametrize("size", [9, 256, 2000, 2003])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_best_of_groups_are_the_best_of_all(size: int, beam_size: int) -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=(3, beam_size, size)).astype(np.float32)
    logits[0, 0, -2:] += 9
    logits[1, :, :2] += 9  # the banned
    offsets = random.normal(size=(3, beam_size)).astype(np.float32)
    totals = logits + offsets[..., None]
    totals[..., list(BANNED_TOKENS)] = -np.inf
    order = np.argsort(-totals.reshape(3, -1), axis=1)[:, : 2 * beam_size]
    found = jax.jit(grouped_top_k, static_argnums=2)(logits, offsets, 2 * beam_size)
    np.testing.assert_array_equal(found[0], np.take_along_axis(totals.reshape(3, -1), order, 1))
    np.testing.assert_array_equal(found[1], order // size)
    np.testing.assert_array_equal(found[2], order % size)
