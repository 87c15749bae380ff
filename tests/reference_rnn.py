"""A naive implementation of the recurrent model, as a reference for the tests.

It uses NumPy in float64 and processes one sentence, one position and one gate at a time.
"""

import math

import numpy as np

from t2t.config.fields import ModelConfig
from tests.reference import Parameters, Rows, project, softmax

State = tuple[Rows, Rows]  # hidden state h, and cell state c of an LSTM


def sigmoid(x: Rows) -> Rows:
    return np.array([1 / (1 + math.exp(-value)) for value in x])


def advance(cell: str, from_input: Rows, from_state: Rows, state: State) -> State:
    """The next state of a cell; `from_input` and `from_state` have shape (gates, units)."""
    hidden, content = state
    both = [a + b for a, b in zip(from_input, from_state, strict=True)]
    if cell == "gru":
        reset, update = sigmoid(both[0]), sigmoid(both[1])
        proposed = np.tanh(from_input[2] + reset * from_state[2])
        return (1 - update) * hidden + update * proposed, content
    enter, forget, leave = sigmoid(both[0]), sigmoid(both[1] + 1), sigmoid(both[2])
    content = forget * content + enter * np.tanh(both[3])
    return leave * np.tanh(content), content


def to_gates(x: Rows, weights: Rows) -> Rows:
    """Pre-activations of the gates; `weights` have shape (inputs, gates, units)."""
    return np.array([x @ weights[:, gate] for gate in range(weights.shape[1])])


def read_one_way(layer: Parameters, cell: str, x: Rows, way: int) -> Rows:
    """Outputs of one direction (0 forward, 1 backward) at all positions, in order."""
    width = layer["state"].shape[1]
    state: State = np.zeros(width), np.zeros(width)
    outputs = np.zeros((len(x), width))
    for s in range(len(x)) if way == 0 else reversed(range(len(x))):
        from_input = to_gates(x[s], layer["input"][:, way]) + layer["bias"][way]
        state = advance(cell, from_input, to_gates(state[0], layer["state"][way]), state)
        outputs[s] = state[0]
    return outputs


def attend(attention: Parameters, state: Rows, memory: Rows) -> Rows:
    """Additive attention, Bahdanau et al. 2015, section 3.1."""
    scores = [
        attention["score"] @ np.tanh(state @ attention["query"] + word @ attention["key"])
        for word in memory
    ]
    result: Rows = sum(
        (w * word for w, word in zip(softmax(np.array(scores)), memory, strict=True)),
        np.zeros_like(memory[0]),
    )
    return result


def look_up(table: Rows, ids: list[int]) -> Rows:
    return np.array([math.sqrt(table.shape[1]) * table[token] for token in ids])


def encode(parameters: Parameters, config: ModelConfig, src: list[int]) -> Rows:
    tied = config.tie_embeddings == "all"
    x = look_up(parameters["tgt_embedding" if tied else "src_embedding"]["table"], src)
    for number, layer in sorted(parameters["encoder"].items()):
        ways = [read_one_way(layer, config.rnn_cell, x, way) for way in (0, 1)]
        after = np.concatenate(ways, axis=1)
        x = x + after if number > 0 and config.residual else after
    return x


def start(parameters: Parameters, memory: Rows) -> list[State]:
    """The initial state of each layer, from the last output of the backward direction."""
    weights, biases = parameters["start"], parameters["start_bias"]
    end = memory[0, -len(weights) :]
    parts = [[np.tanh(end @ weights[:, n, x] + bias) for x, bias in enumerate(biases[n])]
             for n in range(len(biases))]  # fmt: skip
    return [(own[0], own[-1]) for own in parts]


def transform(
    parameters: Parameters, config: ModelConfig, src: list[int], tgt_in: list[int]
) -> Rows:
    """Logits at each target position."""
    memory = encode(parameters, config, src)
    first, others = parameters["attentive"], sorted(parameters.get("decoder", {}).items())
    layers = [first["recurrence"], *(layer for _, layer in others)]
    states = start(parameters, memory)
    outputs = []
    for word in look_up(parameters["tgt_embedding"]["table"], tgt_in):
        context = attend(first["attention"], states[0][0], memory)
        x, more = word, to_gates(context, first["context"])
        for number, layer in enumerate(layers):
            from_input = to_gates(x, layer["input"]) + layer["bias"] + more
            from_state = to_gates(states[number][0], layer["state"])
            states[number] = advance(config.rnn_cell, from_input, from_state, states[number])
            after, more = states[number][0], np.zeros_like(more)
            x = x + after if number > 0 and config.residual else after
        joined = [
            part @ weights
            for part, weights in zip((x, context, word), parameters["readout"], strict=True)
        ]
        outputs.append(np.tanh(np.sum(joined, axis=0) + parameters["readout_bias"]))
    return project(parameters, config, np.array(outputs))
