import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from t2t.config.fields import ModelConfig
from t2t.model.position import Position, Relative, encode_sinusoidal, make_position, rotate
from t2t.ops import fast_layers
from tests import reference
from tests.model.small_models import POLICY, SMALL, draw


def make(position: str, *, causal: bool = False, **changes: Any) -> Position:
    config = dataclasses.replace(SMALL, position=position, **changes)
    return make_position(config, POLICY, jax.random.key(0), causal=causal)


def find_bias(position: Position, query: Array, key: Array) -> Float[Array, "H T S"]:
    bias = position.bias(query, key)
    assert bias is not None
    return bias


def test_sinusoids_agree_with_the_formula() -> None:
    positions = [0, 1, 2, 17, 1000]
    wanted = [reference.encode_sinusoidal(position, 16) for position in positions]
    np.testing.assert_allclose(encode_sinusoidal(jnp.array(positions), 16), wanted, atol=1e-4)


def test_sinusoids_are_added_to_the_embeddings() -> None:
    x = draw(2, 3, 16)
    wanted = x + np.array([reference.encode_sinusoidal(position, 16) for position in range(3)])
    np.testing.assert_allclose(make("sinusoidal").add(x, jnp.arange(3)), wanted, atol=1e-6)


def test_learned_positions_are_on_the_scale_of_the_embeddings() -> None:
    position = make("learned", max_positions=1000)
    added = position.add(jnp.zeros((2, 1000, 16)), jnp.arange(1000))
    assert float(added.std()) == pytest.approx(1, abs=0.02)  # as sqrt(d_model) * embedding


def test_learned_positions_follow_the_position() -> None:
    position = make("learned")
    table = position.add(jnp.zeros((1, 16, 16)), jnp.arange(16))[0]
    chosen = position.add(jnp.zeros((1, 3, 16)), jnp.array([7, 0, 7]))[0]
    np.testing.assert_array_equal(chosen, table[jnp.array([7, 0, 7])])


def test_more_positions_than_learned_are_refused() -> None:
    with pytest.raises(ValueError, match=r"17 positions exceed model.max_positions=16; "):
        make("learned").check_length(17)


def test_beam_may_have_more_slots_than_there_are_positions() -> None:
    position = make("learned")
    added = position.add(jnp.zeros((1, 17, 16)), jnp.full(17, 3))
    np.testing.assert_array_equal(
        added[0, 16], position.add(jnp.zeros((1, 1, 16)), jnp.array([3]))[0, 0]
    )


def test_rotation_agrees_with_naive_numpy() -> None:
    x = draw(1, 5, 2, 6)
    rotated = make("rotary").rotate(x, jnp.arange(5))
    for head in range(2):
        wanted = reference.rotate(np.asarray(x[0, :, head], float))
        np.testing.assert_allclose(rotated[0, :, head], wanted, atol=1e-5)


def test_rotation_makes_products_depend_on_the_distance_alone() -> None:
    rotary, x = make("rotary"), draw(1, 2, 1, 8)

    def multiply(first: int, second: int) -> float:
        query, key = rotary.rotate(x, jnp.array([first, second]))[0, :, 0]
        return float(query @ key)

    assert multiply(3, 5) == pytest.approx(multiply(40, 42), abs=1e-4)
    assert multiply(3, 5) != pytest.approx(multiply(3, 6), abs=1e-2)


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
    bias = find_bias(position, jnp.array([300]), jnp.asarray(offsets + 300))
    wanted = [table[reference.find_relative_bucket(int(offset), causal)] for offset in offsets]
    np.testing.assert_array_equal(bias[:, 0].T, wanted)


def test_relative_bias_depends_on_the_offset_alone() -> None:
    bias = find_bias(make("relative"), jnp.arange(6), jnp.arange(6))
    for t, s in np.ndindex(5, 5):
        assert (bias[:, t, s] == bias[:, t + 1, s + 1]).all()
    assert (bias[:, 0, 3] != bias[:, 3, 0]).all()  # the encoder tells left from right


def test_alibi_slopes_are_those_of_its_paper() -> None:
    bias = find_bias(make("alibi", num_heads=8), jnp.array([0]), jnp.array([1]))
    assert (-bias).ravel().tolist() == [1 / 2**i for i in range(1, 9)]


def test_alibi_penalty_grows_with_the_distance_on_both_sides() -> None:
    bias = find_bias(make("alibi", num_heads=2), jnp.array([3]), jnp.arange(7))
    assert (bias[1, 0] * 2**8).tolist() == [-3, -2, -1, 0, -1, -2, -3]


def test_without_positions_nothing_changes() -> None:
    position, x, heads = make("none"), draw(1, 4, 16), draw(1, 4, 2, 6)
    assert position.add(x, jnp.arange(4)) is x
    assert position.rotate(heads, jnp.arange(4)) is heads
    assert position.bias(jnp.arange(4), jnp.arange(4)) is None


def test_unknown_position_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model.position='polar' is unknown"):
        make_position(ModelConfig(position="polar"), POLICY, jax.random.key(0), causal=True)
