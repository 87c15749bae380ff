"""Naive implementations of the model and the loss, as references for the tests.

They use NumPy in float64 and process one sentence without padding, one head, one query and one
token at a time. They follow the papers' formulas and share only the names and shapes of parameters
with t2t.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from t2t.config.fields import ModelConfig
from t2t.data.batch import BOS_ID, EOS_ID

Parameters = dict[str, Any]  # those of init_model, as NumPy arrays
Rows = np.ndarray  # (positions, width)


def softmax(scores: Rows) -> Rows:
    exponentials: Rows = np.exp(scores - scores.max())
    weights: Rows = exponentials / exponentials.sum()
    return weights


def attend(
    query: Rows,
    keys: Rows,
    values: Rows,
    visible: Rows,
    bias: Rows | None = None,
    divisor: float = 1.0,
) -> Rows:
    """One head of equation 1; `visible` and `bias` have shape (queries, keys)."""
    result = np.zeros((len(query), values.shape[1]))
    for t in range(len(query)):
        seen = [s for s in range(len(keys)) if visible[t, s]]
        scores = [query[t] @ keys[s] / divisor for s in seen]
        if bias is not None:
            scores = [score + bias[t, s] for score, s in zip(scores, seen, strict=True)]
        for weight, s in zip(softmax(np.array(scores)), seen, strict=True):
            result[t] += weight * values[s]
    return result


def multi_head_attention(
    parameters: Parameters,
    config: ModelConfig,
    x: Rows,
    memory: Rows,
    visible: Rows,
    bias: Rows | None = None,
) -> Rows:
    """Section 3.2.2; rotary positions rotate queries and keys of self-attention."""
    result = np.zeros_like(x)
    if config.attention_bias:  # a further row of the weights, multiplied by 1
        result = result + parameters["output"]["bias"]
        x, memory = (np.pad(rows, ((0, 0), (0, 1)), constant_values=1) for rows in (x, memory))
    for head in range(config.num_heads):
        w_query, w_key, w_value = split_projections(parameters, config, head)
        query, keys = x @ w_query, memory @ w_key
        if config.position == "rotary" and "query_key_value" in parameters:
            query, keys = rotate(query), rotate(keys)
        head_bias = None if bias is None else bias[head]
        values = memory @ w_value
        attended = attend(query, keys, values, visible, head_bias, find_divisor(config))
        result += attended @ parameters["output"]["weight"][head]
    return result


def find_divisor(config: ModelConfig) -> float:
    """sqrt(d_k), or 1; with mup as at the base, and in proportion to d_k (Yang et al. 2022)."""
    if config.parametrization == "standard":
        return math.sqrt(config.key_width) if config.attention_scale else 1.0
    assert config.base_width
    base = config.base_d_k or config.key_width * config.base_width / config.d_model
    return config.key_width / (math.sqrt(base) if config.attention_scale else base)


def split_projections(
    parameters: Parameters, config: ModelConfig, head: int
) -> tuple[Rows, Rows, Rows]:
    """W^Q, W^K and W^V of one head; the consecutive heads of a group share W^K and W^V."""
    shared_by = config.num_heads // config.kv_heads
    group, own = divmod(head, shared_by)
    d_k, d_v = config.key_width, config.value_width
    weights = {
        name: np.concatenate([own["weight"], own["bias"][None]])
        if config.attention_bias
        else own["weight"]
        for name, own in parameters.items()
        if name in ("query_key_value", "query", "key_value")
    }
    if "query_key_value" in parameters:
        joined = weights["query_key_value"][:, group]
        queries, key_value = joined[:, : shared_by * d_k], joined[:, shared_by * d_k :]
    else:
        queries, key_value = weights["query"][:, group], weights["key_value"][:, group]
    assert key_value.shape[1] == d_k + d_v
    return queries[:, own * d_k : (own + 1) * d_k], key_value[:, :d_k], key_value[:, d_k:]


def rotate(x: Rows) -> Rows:
    """Rotary positions (Su et al. 2021); pair i consists of dimensions i and i + d_k/2."""
    half = x.shape[1] // 2
    result = np.empty_like(x)
    for position in range(len(x)):
        for i in range(half):
            angle = position / 10_000 ** (2 * i / x.shape[1])
            rotated = complex(x[position, i], x[position, half + i]) * np.exp(1j * angle)
            result[position, i], result[position, half + i] = rotated.real, rotated.imag
    return result


def encode_sinusoidal(position: int, d_model: int) -> Rows:
    """Sinusoidal positions, section 3.5."""
    result = np.empty(d_model)
    for i in range(d_model // 2):
        angle = position / 10_000 ** (2 * i / d_model)
        result[2 * i], result[2 * i + 1] = math.sin(angle), math.cos(angle)
    return result


def find_relative_bucket(offset: int, causal: bool, buckets: int = 32, furthest: int = 128) -> int:
    """Raffel et al. 2020 in integer arithmetic; `offset` is key position minus query position."""
    if causal:
        first, distance = 0, max(-offset, 0)
    else:
        buckets //= 2
        first, distance = (buckets if offset > 0 else 0), abs(offset)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    steps, step = buckets - exact, 0
    # Finds the last step with exact * (furthest / exact)^(step / steps) <= distance.
    while step + 1 < steps and (
        distance**steps * exact ** (step + 1) >= furthest ** (step + 1) * exact**steps
    ):
        step += 1
    return first + exact + step


def make_bias(table: Rows | None, config: ModelConfig, length: int, causal: bool) -> Rows | None:
    """Bias of the scores of self-attention, of shape (heads, queries, keys)."""
    bias = np.zeros((config.num_heads, length, length))
    for head, t, s in np.ndindex(*bias.shape):
        match config.position:
            case "relative" | "relative_by_layer" if table is not None:
                bias[head, t, s] = table[find_relative_bucket(s - t, causal), head]
            case "alibi":
                bias[head, t, s] = -(2.0 ** (-8 * (head + 1) / config.num_heads)) * abs(s - t)
            case _:
                return None
    return bias


def normalize(parameters: Parameters | None, config: ModelConfig, x: Rows) -> Rows:
    """Normalizes each row; without parameters returns x unchanged."""
    if not parameters:
        return x
    result = np.empty_like(x)
    for t, row in enumerate(x):
        if config.norm == "layer":
            deviation = math.sqrt(((row - row.mean()) ** 2).mean() + config.norm_epsilon)
            result[t] = (row - row.mean()) / deviation * parameters["scale"] + parameters["bias"]
        else:
            result[t] = row / math.sqrt((row**2).mean() + config.norm_epsilon) * parameters["scale"]
    return result


def activate(kind: str, x: float) -> float:
    match kind:
        case "relu":
            return max(x, 0.0)
        case "gelu" | "geglu":  # the tanh approximation of Hendrycks and Gimpel (2016)
            return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        case "gelu_exact":
            return x / 2 * (1 + math.erf(x / math.sqrt(2)))
        case "silu" | "swiglu":
            return x / (1 + math.exp(-x))
        case _:
            raise AssertionError(kind)


def feed_forward(parameters: Parameters, kind: str, x: Rows) -> Rows:
    """Equation 2, or its gated variants (Shazeer 2020)."""
    inner_weights, outer = parameters["inner"]["weight"], parameters["outer"]
    result = np.empty((len(x), outer["weight"].shape[1]))
    inner_biases = parameters["inner"].get("bias", np.zeros(len(inner_weights)))
    for t, row in enumerate(x):
        halves = [
            row @ weights + bias for weights, bias in zip(inner_weights, inner_biases, strict=True)
        ]
        inner = np.array([activate(kind, value) for value in halves[0]])
        if kind in ("swiglu", "geglu"):
            inner = inner * halves[1]
        result[t] = inner @ outer["weight"] + outer.get("bias", 0)
    return result


def mix_experts(parameters: Parameters, config: ModelConfig, x: Rows) -> Rows:
    """The experts of each token one after the other (Fedus et al. 2022, equation 2)."""
    result = np.zeros_like(x)
    for t, row in enumerate(x):
        probabilities = softmax(row @ parameters["router"])
        for expert in np.argsort(-probabilities)[: config.experts_per_token]:
            inner = np.maximum(row @ parameters["inner"][expert], 0)
            result[t] += probabilities[expert] * (inner @ parameters["outer"][expert])
    return result


def add_residual(
    parameters: Parameters, config: ModelConfig, x: Rows, sublayer: Callable[[Rows], Rows]
) -> Rows:
    """Section 3.1: norm(x + f(x)), or x + f(norm(x)) with pre-norm; f(x) less in deep models."""
    norm, carried = parameters.get("norm"), x if config.residual else np.zeros_like(x)
    ratio = 1.0
    if config.parametrization == "mup" and config.base_layers:
        ratio = config.base_layers / config.depth[config.kind == "decoder_only"]
    if config.norm_position == "post":
        return normalize(norm, config, carried + ratio * sublayer(x))
    result: Rows = carried + ratio * sublayer(normalize(norm, config, x))
    return result


def embed(
    parameters: Parameters, side: str, config: ModelConfig, ids: list[int], first: int = 0
) -> Rows:
    """Scaled embeddings plus positions from `first` on, sections 3.4 and 3.5, normalised or not."""
    width = config.base_width if config.parametrization == "mup" else config.d_model
    scale = math.sqrt(width or 0) if config.embedding_scale else 1.0
    tied = side == "tgt" or config.tie_embeddings in ("all", "input")
    table = parameters["tgt_embedding" if tied else "src_embedding"]["table"]
    rows = []
    for position, token in enumerate(ids, start=first):
        starts_with_eos = token == BOS_ID and config.decoder_start == "eos"
        row = scale * table[EOS_ID if starts_with_eos else token]
        if config.position.startswith("sinusoidal"):
            encoding = encode_sinusoidal(position, config.d_model)
            if config.position == "sinusoidal_halves":
                encoding = np.concatenate([encoding[::2], encoding[1::2]])
            if config.position == "sinusoidal_fairseq":
                half = config.d_model // 2
                angles = [(position + 2) / 10_000 ** (i / (half - 1)) for i in range(half)]
                encoding = np.array([*map(math.sin, angles), *map(math.cos, angles)])
            row = row + encoding
        elif config.position == "learned":
            learned = parameters[f"{side}_position"]["table"][position]
            row = row + scale * learned
        rows.append(row)
    norm = parameters.get(f"{side}_embedding_norm", parameters.get("embedding_norm"))
    return normalize(norm, config, np.array(rows))


def encode(parameters: Parameters, config: ModelConfig, src: list[int]) -> Rows:
    x = embed(parameters, "src", config, src)
    everything = np.ones((len(src), len(src)), bool)
    table = parameters.get("src_position", {}).get("table")
    bias = make_bias(table, config, len(src), causal=False)
    x = apply_layers(parameters["encoder"], config, x, everything, bias)
    return normalize(parameters.get("encoder_norm"), config, x)


def apply_layers(
    layers: Parameters,
    config: ModelConfig,
    x: Rows,
    visible: Rows,
    bias: Rows | None,
    memory: Rows | None = None,
) -> Rows:
    """Self-attention, attention to the memory of a decoder, and feed-forward, layer by layer."""
    for _, layer in sorted(layers.items()):
        if own := layer.get("own_position"):
            bias = make_bias(own["table"], config, len(x), causal=memory is not None)

        def attend_self(x: Rows, layer: Parameters = layer, bias: Rows | None = bias) -> Rows:
            return multi_head_attention(layer["self_attention"], config, x, x, visible, bias)

        def attend_memory(x: Rows, layer: Parameters = layer) -> Rows:
            assert memory is not None
            everything = np.ones((len(x), len(memory)), bool)
            return multi_head_attention(layer["cross_attention"], config, x, memory, everything)

        x = add_residual(layer.get("self_residual", {}), config, x, attend_self)
        if memory is not None:
            x = add_residual(layer.get("cross_residual", {}), config, x, attend_memory)
        x = add_feed_forward(layer, config, x)
    return x


def decode(parameters: Parameters, config: ModelConfig, memory: Rows, tgt_in: list[int]) -> Rows:
    x = embed(parameters, "tgt", config, tgt_in)
    past = np.array([[s <= t for s in range(len(tgt_in))] for t in range(len(tgt_in))])
    table = parameters.get("tgt_position", {}).get("table")
    bias = make_bias(table, config, len(tgt_in), causal=True)
    x = apply_layers(parameters["decoder"], config, x, past, bias, memory)
    return normalize(parameters.get("decoder_norm"), config, x)


def add_feed_forward(layer: Parameters, config: ModelConfig, x: Rows) -> Rows:
    if config.feed_forward == "none":
        return x
    own = layer["feed_forward"]

    def apply(x: Rows) -> Rows:
        if config.feed_forward == "moe":
            return mix_experts(own, config, x)
        return feed_forward(own, config.feed_forward, x)

    return add_residual(layer.get("feed_forward_residual", {}), config, x, apply)


def transform(
    parameters: Parameters, config: ModelConfig, src: list[int], tgt_in: list[int]
) -> Rows:
    """The whole model, figure 1: logits at each target position."""
    hidden = decode(parameters, config, encode(parameters, config, src), tgt_in)
    return project(parameters, config, hidden)


def transform_decoder_only(
    parameters: Parameters, config: ModelConfig, src: list[int], tgt_in: list[int]
) -> Rows:
    """Source and target in one sequence: logits at each target position."""
    position, length = parameters.get("position", {}), len(src) + len(tgt_in)
    parameters = parameters | {"src_position": position, "tgt_position": position}
    embedded = [
        embed(parameters, "src", config, src),
        embed(parameters, "tgt", config, tgt_in, first=len(src)),
    ]
    seen = len(src) if config.prefix else 0
    visible = np.array([[s < seen or s <= t for s in range(length)] for t in range(length)])
    bias = make_bias(position.get("table"), config, length, causal=not config.prefix)
    x = apply_layers(parameters["decoder"], config, np.concatenate(embedded), visible, bias)
    hidden = normalize(parameters.get("decoder_norm"), config, x[len(src) :])
    return project(parameters, config, hidden)


def project(parameters: Parameters, config: ModelConfig, hidden: Rows) -> Rows:
    """Logits from the outputs of the decoder."""
    untied = config.tie_embeddings in ("input", "none")
    table = parameters["own_output_embedding" if untied else "tgt_embedding"]["table"]
    bias = parameters.get("output_bias", np.zeros(len(table)))
    if config.parametrization == "mup":
        hidden = hidden * (config.base_width or 0) / config.d_model
    return np.array([[row @ weights for weights in table] + bias for row in hidden])


def sum_cross_entropies(
    hidden: np.ndarray, table: Rows, targets: Rows, weights: Rows, smoothing: float
) -> float:
    """Weighted sum of cross-entropies between the smoothed targets and the model's distribution."""
    total = 0.0
    for b, t in np.ndindex(*targets.shape):
        wanted = np.full(len(table), smoothing / len(table))
        wanted[targets[b, t]] += 1 - smoothing
        total -= weights[b, t] * (wanted @ np.log(softmax(table @ hidden[b, t])))
    return total


def sum_r_drop_losses(
    hiddens: tuple[np.ndarray, np.ndarray],
    table: Rows,
    targets: Rows,
    weights: Rows,
    smoothing: float,
    alpha: float,
) -> float:
    """Half of equation 4 of Liang et al. (2021), summed over positions with their weights."""
    total = sum(sum_cross_entropies(h, table, targets, weights, smoothing) for h in hiddens) / 2
    for b, t in np.ndindex(*targets.shape):
        p, q = (softmax(table @ hidden[b, t]) for hidden in hiddens)
        both = p @ np.log(p / q) + q @ np.log(q / p)
        total += alpha / 4 * both * weights[b, t]
    return total


def noam_rate(step: int, d_model: int, warmup_steps: int) -> float:
    """The learning rate of equation 3."""
    rate: float = d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
    return rate
