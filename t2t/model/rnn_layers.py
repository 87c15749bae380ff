"""Recurrent cells, and unidirectional and bidirectional layers of them.

Shapes use three letters besides those of `data/batch.py`:

    C  units (width of a layer)
    X  parts of a cell's state: 1 for a GRU (h), 2 for an LSTM (h, c); the first is the output
    Y  gates, the candidate included: 3 for a GRU, 4 for an LSTM

A layer multiplies its inputs at all positions by the input weights at once, and only the product of
state and recurrent weights is inside the loop over positions. The weights of the loop are
replicated on every device, so that the loop needs no communication. The state is float32.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from t2t.config.fields import ModelConfig
from t2t.model.compute_policy import Policy
from t2t.model.linear import add_bias, einsum, init_glorot
from t2t.runtime.mesh import replicate_for_loop, spec

Layer = TypeVar("Layer", bound=nnx.Module)
State = TypeVar("State")
Outputs = TypeVar("Outputs")


def gru(
    from_input: Float[Array, "*rows Y C"],
    from_state: Float[Array, "*rows Y C"],
    state: Float[Array, "*rows X C"],
) -> Float[Array, "*rows X C"]:
    """Computes h' = (1 - z) h + z tanh(Wx + r Uh), from Wx + b, Uh and h (Bahdanau et al. 2015).

    The gates r (reset) and z (update) are sigmoid(Wx + Uh); each gate has its own W and U. The
    paper applies r to h instead of Uh; so one product of h with U serves gates and candidate.
    """
    gates = jax.nn.sigmoid(from_input[..., :2, :] + from_state[..., :2, :])
    reset, update = gates[..., 0, :], gates[..., 1, :]
    candidate = jnp.tanh(from_input[..., 2, :] + reset * from_state[..., 2, :])
    before = state[..., 0, :]
    return (before + update * (candidate - before))[..., None, :]


def lstm(
    from_input: Float[Array, "*rows Y C"],
    from_state: Float[Array, "*rows Y C"],
    state: Float[Array, "*rows X C"],
) -> Float[Array, "*rows X C"]:
    """Computes c' = f c + i tanh(Wx + Uh) and h' = o tanh(c') (Hochreiter and Schmidhuber 1997).

    The gates i (input), f (forget: Gers et al. 2000) and o (output) are sigmoid(Wx + Uh), with 1
    added inside the sigmoid of f (Jozefowicz et al. 2015); each gate has its own W and U.
    """
    i, f, o, candidate = jnp.moveaxis(from_input + from_state, -2, 0)
    kept = jax.nn.sigmoid(f + 1) * state[..., 1, :]
    c = kept + jax.nn.sigmoid(i) * jnp.tanh(candidate)
    return jnp.stack([jax.nn.sigmoid(o) * jnp.tanh(c), c], axis=-2)


class Cell(NamedTuple):
    """The elementwise part of a recurrent step; the weights belong to the layer."""

    num_gates: int
    num_parts: int
    advance: Callable[..., Float[Array, "*rows X C"]]


def make_cell(config: ModelConfig) -> Cell:
    """Returns the cell that `model.rnn_cell` names."""
    match config.rnn_cell:
        case "gru":
            return Cell(3, 1, gru)
        case "lstm":
            return Cell(4, 2, lstm)
        case other:
            raise ValueError(f"model.rnn_cell={other!r} is unknown")


class RecurrentLayer(nnx.Module):
    """A layer that reads from left to right; it has d_model units."""

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        """Initialises weights as in Glorot and Bengio (2010), biases with zeros."""
        self.policy = policy
        self.cell = make_cell(config)
        width, num_gates = config.d_model, self.cell.num_gates
        input_key, state_key = jax.random.split(key)
        shape = (width, num_gates, width)
        self.input = init_glorot(input_key, shape, width, width, "d_model", None, None)
        self.state = init_glorot(state_key, shape, width, width, None, None, None)
        self.bias = nnx.Param(jnp.zeros((num_gates, width), out_sharding=spec(None, None)))

    def read_inputs(self, x: Float[Array, "B T D"]) -> Float[Array, "B T Y C"]:
        """Computes Wx + b for all positions."""
        projected = self.policy.multiply("BTD,DYC->BTYC", x, self.input[...])
        return add_bias(projected, self.bias[...])

    def step(
        self, from_input: Float[Array, "B W Y C"], state: Float[Array, "B W X C"]
    ) -> Float[Array, "B W X C"]:
        """Computes the states of W hypotheses after one more position."""
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
        """Computes the outputs at all positions, starting with the state `start`."""

        def step(
            layer: RecurrentLayer, state: Float[Array, "B 1 X C"], from_input: Float[Array, "B Y C"]
        ) -> tuple[Float[Array, "B 1 X C"], Float[Array, "B C"]]:
            state = layer.step(from_input[:, None], state)
            return state, state[:, 0, 0].astype(x.dtype)

        return scan_positions(self, step, start[:, None], self.read_inputs(x))


class BidirectionalLayer(nnx.Module):
    """A layer that reads in both directions and concatenates the two outputs.

    Each direction has d_model / 2 units; one loop runs both. In shapes, Z = 2 is the direction.
    """

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        """Initialises weights as in Glorot and Bengio (2010), biases with zeros."""
        self.policy = policy
        self.cell = make_cell(config)
        d_model, width, num_gates = config.d_model, config.d_model // 2, self.cell.num_gates
        input_key, state_key = jax.random.split(key)
        shape = (d_model, 2, num_gates, width)
        self.input = init_glorot(input_key, shape, d_model, width, "d_model", None, None, None)
        shape = (2, width, num_gates, width)
        self.state = init_glorot(state_key, shape, width, width, None, None, None, None)
        self.bias = nnx.Param(jnp.zeros((2, num_gates, width), out_sharding=spec(None, None, None)))

    def __call__(self, x: Float[Array, "B S D"], mask: Bool[Array, "B S"]) -> Float[Array, "B S D"]:
        """Computes the outputs at all positions; where `mask` is False, the state is unchanged."""
        projected = self.policy.multiply("BSD,DZYC->BSZYC", x, self.input[...])
        from_input = add_bias(projected, self.bias[...])

        def step(
            layer: BidirectionalLayer,
            state: Float[Array, "B 2 X C"],
            inputs: tuple[Float[Array, "B 2 Y C"], Bool[Array, "B 2"]],
        ) -> tuple[Float[Array, "B 2 X C"], Float[Array, "B 2 C"]]:
            from_input, mask = inputs
            from_state = einsum(
                "BZI,ZIYC->BZYC",
                state[:, :, 0].astype(x.dtype),
                layer.state.astype(x.dtype),
                preferred_element_type=jnp.float32,
            )
            after = layer.cell.advance(from_input.astype(jnp.float32), from_state, state)
            state = jnp.where(mask[:, :, None, None], after, state)
            return state, state[:, :, 0].astype(x.dtype)

        # `zeros_like` a slice, so that the state is sharded over the batch as `from_input` is.
        start = jnp.zeros_like(from_input[:, 0, :, : self.cell.num_parts], jnp.float32)
        inputs = flip_backward(from_input), flip_backward(jnp.stack([mask, mask], axis=2))
        return flip_backward(scan_positions(self, step, start, inputs)).reshape(x.shape)


def flip_backward(x: Array) -> Array:
    """Reverses the positions of the backward direction in x [B, S, 2, ...]; its own inverse."""
    return jnp.stack([x[:, :, 0], x[:, ::-1, 1]], axis=2)


def scan_positions(
    layer: Layer,
    step: Callable[[Layer, State, Any], tuple[State, Outputs]],
    start: State,
    inputs: Any,
) -> Outputs:
    """Scans `step` over positions, dimension 1 of inputs and outputs; returns the outputs.

    `step` must use the weights of its argument `layer`, which are replicated before the loop.
    """
    structure, weights = nnx.split(layer)
    weights = jax.tree.map(replicate_for_loop, weights)

    def advance(state: State, position_inputs: Any) -> tuple[State, Outputs]:
        return step(nnx.merge(structure, weights), state, position_inputs)

    by_position = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), inputs)
    _, outputs = jax.lax.scan(advance, start, by_position)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), outputs)
