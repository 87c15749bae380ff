"""Recurrent cells, and layers of them over a whole sentence: one way, and both ways.

    X  parts of a cell's state, the first of which is its output     Y  gates     C  units

Only the product with the state has to wait for the position before; what comes from the layer's
input is one product for all positions. The weights that the loop uses lie whole on each device, so
that nothing is sent while it runs. The state stays in float32.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from t2t.config.fields import ModelConfig
from t2t.model.initialization import init_glorot
from t2t.model.precision import einsum
from t2t.runtime.mesh import replicate_for_loop, spec

Layer = TypeVar("Layer", bound=nnx.Module)
State = TypeVar("State")
Outputs = TypeVar("Outputs")


class Cell(nnx.Module):
    """What happens at one position, once both products are there; it has no weights itself."""

    num_gates: ClassVar[int]
    num_parts: ClassVar[int]

    @abstractmethod
    def advance(
        self,
        from_input: Float[Array, "*rows Y C"],
        from_state: Float[Array, "*rows Y C"],
        state: Float[Array, "*rows X C"],
    ) -> Float[Array, "*rows X C"]:
        """The next state, from Wx + b of the input, Uh of the last output, and the last state."""


class GRU(Cell):
    """Cho et al. 2014, but the reset gate acts behind U, so that one product serves all gates."""

    num_gates, num_parts = 3, 1

    def advance(
        self,
        from_input: Float[Array, "*rows Y C"],
        from_state: Float[Array, "*rows Y C"],
        state: Float[Array, "*rows X C"],
    ) -> Float[Array, "*rows X C"]:
        """h' = (1 - z) h + z tanh(Wx + r Uh), with r and z = sigmoid(Wx + Uh), each its own."""
        gates = jax.nn.sigmoid(from_input[..., :2, :] + from_state[..., :2, :])
        reset, update = gates[..., 0, :], gates[..., 1, :]
        proposed = jnp.tanh(from_input[..., 2, :] + reset * from_state[..., 2, :])
        hidden = state[..., 0, :]
        return (hidden + update * (proposed - hidden))[..., None, :]


class LSTM(Cell):
    """Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000."""

    num_gates, num_parts = 4, 2

    def advance(
        self,
        from_input: Float[Array, "*rows Y C"],
        from_state: Float[Array, "*rows Y C"],
        state: Float[Array, "*rows X C"],
    ) -> Float[Array, "*rows X C"]:
        """c' = f c + i tanh(Wx + Uh), h' = o tanh(c'), with i, f and o = sigmoid(Wx + Uh).

        The forget gate starts open: 1 is added to what it sees (Jozefowicz et al. 2015).
        """
        enter, forget, leave, proposed = jnp.moveaxis(from_input + from_state, -2, 0)
        kept = jax.nn.sigmoid(forget + 1) * state[..., 1, :]
        content = kept + jax.nn.sigmoid(enter) * jnp.tanh(proposed)
        return jnp.stack([jax.nn.sigmoid(leave) * jnp.tanh(content), content], axis=-2)


def make_cell(config: ModelConfig) -> Cell:
    """The cell that `model.rnn_cell` names."""
    match config.rnn_cell:
        case "gru":
            return GRU()
        case "lstm":
            return LSTM()
        case other:
            raise ValueError(f"model.rnn_cell={other!r} is unknown")


class RecurrentLayer(nnx.Module):
    """From left to right, as wide as the model."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        """Weights as in Glorot and Bengio (2010), biases zero."""
        self.cell = make_cell(config)
        width, num_gates = config.d_model, self.cell.num_gates
        input_key, state_key = jax.random.split(key)
        shape = (width, num_gates, width)
        self.input = init_glorot(input_key, shape, width, width, "d_model", None, None)
        self.state = init_glorot(state_key, shape, width, width, None, None, None)
        self.bias = nnx.Param(jnp.zeros((num_gates, width), out_sharding=spec(None, None)))

    def project(self, x: Float[Array, "B T D"]) -> Float[Array, "B T Y C"]:
        """Wx + b of all positions."""
        projected = einsum("BTD,DYC->BTYC", x, self.input.astype(x.dtype))
        return jnp.add(projected, self.bias.astype(x.dtype))

    def step(
        self, from_input: Float[Array, "B W Y C"], state: Float[Array, "B W X C"]
    ) -> Float[Array, "B W X C"]:
        """The states of W hypotheses after one more position."""
        dtype = from_input.dtype
        from_state = einsum(
            "BWD,DYC->BWYC",
            state[:, :, 0].astype(dtype),
            self.state.astype(dtype),
            preferred_element_type=jnp.float32,
        )
        return self.cell.advance(from_input.astype(jnp.float32), from_state, state)

    def __call__(
        self, x: Float[Array, "B T D"], start: Float[Array, "B X C"]
    ) -> Float[Array, "B T C"]:
        """The outputs at all positions of one hypothesis."""

        def step(
            layer: RecurrentLayer, state: Float[Array, "B 1 X C"], from_input: Float[Array, "B Y C"]
        ) -> tuple[Float[Array, "B 1 X C"], Float[Array, "B C"]]:
            state = layer.step(from_input[:, None], state)
            return state, state[:, 0, 0].astype(x.dtype)

        return scan_positions(self, step, start[:, None], self.project(x))


class BidirectionalLayer(nnx.Module):
    """Both ways at once, each half as wide as the model; the two outputs are joined."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        """Weights as in Glorot and Bengio (2010), biases zero."""
        self.cell = make_cell(config)
        d_model, width, num_gates = config.d_model, config.d_model // 2, self.cell.num_gates
        input_key, state_key = jax.random.split(key)
        shape = (d_model, 2, num_gates, width)
        self.input = init_glorot(input_key, shape, d_model, width, "d_model", None, None, None)
        shape = (2, width, num_gates, width)
        self.state = init_glorot(state_key, shape, width, width, None, None, None, None)
        self.bias = nnx.Param(jnp.zeros((2, num_gates, width), out_sharding=spec(None, None, None)))

    def __call__(self, x: Float[Array, "B S D"], real: Bool[Array, "B S"]) -> Float[Array, "B S D"]:
        """What is up to each position, and what is from there on; padding changes no state."""
        from_input = einsum("BSD,DZYC->BSZYC", x, self.input.astype(x.dtype))
        from_input += self.bias.astype(x.dtype)

        def step(
            layer: BidirectionalLayer,
            state: Float[Array, "B 2 X C"],
            here: tuple[Float[Array, "B 2 Y C"], Bool[Array, "B 2"]],
        ) -> tuple[Float[Array, "B 2 X C"], Float[Array, "B 2 C"]]:
            from_input, real = here
            from_state = einsum(
                "BZH,ZHYC->BZYC",
                state[:, :, 0].astype(x.dtype),
                layer.state.astype(x.dtype),
                preferred_element_type=jnp.float32,
            )
            after = layer.cell.advance(from_input.astype(jnp.float32), from_state, state)
            state = jnp.where(real[:, :, None, None], after, state)
            return state, state[:, :, 0].astype(x.dtype)

        start = jnp.zeros_like(from_input[:, 0, :, : self.cell.num_parts], jnp.float32)
        inputs = turn_second(from_input), turn_second(jnp.stack([real, real], axis=2))
        return turn_second(scan_positions(self, step, start, inputs)).reshape(x.shape)


def turn_second(x: Array) -> Array:
    """B S 2 ...: the second way's positions in reverse order; and again: as they were."""
    return jnp.stack([x[:, :, 0], x[:, ::-1, 1]], axis=2)


def scan_positions(
    layer: Layer,
    step: Callable[[Layer, State, Any], tuple[State, Outputs]],
    start: State,
    inputs: Any,
) -> Outputs:
    """What `step` gives at each position, which is dimension 1 of inputs and outputs.

    It has to take its weights from the layer that it is given: they are prepared for the loop.
    """
    structure, weights = nnx.split(layer)
    weights = jax.tree.map(replicate_for_loop, weights)

    def advance(state: State, here: Any) -> tuple[State, Outputs]:
        return step(nnx.merge(structure, weights), state, here)

    by_position = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), inputs)
    _, outputs = jax.lax.scan(advance, start, by_position)
    moved: Outputs = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), outputs)
    return moved
