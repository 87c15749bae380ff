import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from t2t.model.position import Position, Relative, make_position, rotate
from t2t.ops import fast_layers
from tests import reference
from tests.model.small_models import POLICY, SMALL, draw


def make(position: str, *, causal: bool = False, **changes: Any) -> Position:
    config = dataclasses.replace(SMALL, position=position, **changes)
    return make_position(config, POLICY, jax.random.key(0), causal=causal)


def test_learned_positions_are_on_the_scale_of_the_embeddings() -> None:
    position = make("learned", max_positions=1000)
    added = position.add(jnp.zeros((2, 1000, 16)), jnp.arange(1000))
    assert float(added.std()) == pytest.approx(1, abs=0.02)  # as sqrt(d_model) * embedding


def test_more_positions_than_learned_are_refused() -> None:
    with pytest.raises(ValueError, match=r"17 positions exceed model.max_positions=16; "):
        make("learned").check_length(17)


def test_beam_may_have_more_slots_than_there_are_positions() -> None:
    position = make("learned")
    added = position.add(jnp.zeros((1, 17, 16)), jnp.full(17, 3))
    np.testing.assert_array_equal(
        added[0, 16], position.add(jnp.zeros((1, 1, 16)), jnp.array([3]))[0, 0]
    )


@pytest.mark.parametrize("function", [rotate, fast_layers.rotate])
def test_rotation_rounds_its_result_alone(function: Callable[[Array, Array], Array]) -> None:
    """So the place of a packed sentence in its row changes logits by no more than rounding."""
    x, positions = draw(1, 64, 2, 16).astype(jnp.bfloat16), 224 + jnp.arange(64)
    wanted = function(x.astype(jnp.float32), positions).astype(jnp.bfloat16)
    np.testing.assert_array_equal(function(x, positions), wanted)


@pytest.mark.parametrize("causal", [False, True])
def test_relative_buckets_agree_with_naive_numpy(causal: bool) -> None:
    offsets = np.arange(-300, 300)
    position = make("relative", causal=causal)
    assert isinstance(position, Relative)
    table = np.asarray(position.table)
    bias = position.bias(jnp.array([300]), jnp.asarray(offsets + 300))
    wanted = [table[reference.find_relative_bucket(int(offset), causal)] for offset in offsets]
    np.testing.assert_array_equal(bias[:, 0].T, wanted)
