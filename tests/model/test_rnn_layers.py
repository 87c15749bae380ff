import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array, Bool, Float

from t2t.model.interface import Params
from t2t.model.rnn_layers import BidirectionalLayer, RecurrentLayer, make_cell
from tests import reference_rnn
from tests.model.small_models import SMALL, draw

CELLS = ["gru", "lstm"]


@pytest.mark.parametrize("name", CELLS)
def test_cell_agrees_with_naive_numpy(name: str) -> None:
    cell = make_cell(dataclasses.replace(SMALL, rnn_cell=name))
    from_input, from_state = (draw(2, cell.num_gates, 5, seed=seed) for seed in (1, 2))
    state = draw(2, cell.num_parts, 5, seed=3)
    for row, found in enumerate(cell.advance(from_input, from_state, state)):
        own = np.asarray(state[row], float)
        wanted = reference_rnn.advance(
            name,
            np.asarray(from_input[row], float),
            np.asarray(from_state[row], float),
            (own[0], own[-1]),
        )
        np.testing.assert_allclose(found, wanted[: cell.num_parts], atol=1e-6)


def test_unknown_cell_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model.rnn_cell='relu' is unknown"):
        make_cell(dataclasses.replace(SMALL, rnn_cell="relu"))


@pytest.mark.parametrize("name", CELLS)
def test_both_ways_agree_with_naive_numpy_and_end_at_the_padding(name: str) -> None:
    x, lengths = draw(2, 5, 16), (5, 3)
    real = jnp.arange(5) < jnp.array(lengths)[:, None]

    @jax.jit
    def run(
        x: Float[Array, "B S D"], real: Bool[Array, "B S"]
    ) -> tuple[Params, Float[Array, "B S D"]]:
        layer = BidirectionalLayer(dataclasses.replace(SMALL, rnn_cell=name), jax.random.key(0))
        layer.bias[...] = draw(*layer.bias.shape)
        return nnx.to_pure_dict(nnx.state(layer)), layer(x, real)

    params, found = run(x, real)
    layer = jax.tree.map(lambda leaf: np.asarray(leaf, float), params)
    for row, length in enumerate(lengths):
        own = np.asarray(x[row, :length], float)
        for way, part in enumerate(np.split(np.asarray(found[row, :length]), 2, axis=-1)):
            wanted = reference_rnn.read_one_way(layer, name, own, way)
            np.testing.assert_allclose(part, wanted, atol=1e-5)


@pytest.mark.parametrize("name", CELLS)
def test_layer_goes_on_where_it_stopped(name: str) -> None:
    """All positions at once are the steps one by one, for any number of hypotheses."""
    x, start = draw(2, 4, 16), draw(2, 1 + (name == "lstm"), 16, seed=1)

    @jax.jit
    def run(
        x: Float[Array, "B T D"], start: Float[Array, "B X C"]
    ) -> tuple[Float[Array, "B T C"], list[Float[Array, "B W C"]]]:
        layer = RecurrentLayer(dataclasses.replace(SMALL, rnn_cell=name), jax.random.key(0))
        state, outputs = jnp.stack([start, start], axis=1), []
        for position in range(x.shape[1]):
            both = jnp.stack([x[:, position]] * 2, axis=1)
            state = layer.step(layer.read_inputs(both), state)
            outputs.append(state[:, :, 0])
        return layer(x, start), outputs

    whole, steps = run(x, start)
    for position, outputs in enumerate(steps):
        for slot in (0, 1):
            np.testing.assert_allclose(outputs[:, slot], whole[:, position], atol=1e-6)
