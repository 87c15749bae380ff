"""Closed-form counts for a config: parameters, training FLOPs and sequential operations.

The tests compare the number of parameters with the model's own, and the FLOPs with the matrix
products in its jaxpr.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from t2t.config.fields import ModelConfig
from t2t.config.variants import CHOICES, GATED
from t2t.model.position import Relative
from t2t.model.rnn_layers import make_cell
from t2t.ops.build_model import describe_model


class _Counts(NamedTuple):
    """Counts of a model without its embedding and output tables.

    Each weight of a matrix counts as one multiplication for each vector that the matrix is applied
    to. A pair is one query position and one key position.
    """

    parameters: int
    per_src: int  # multiplications by weights for one source token
    per_tgt: int  # multiplications by weights for one target token
    per_sentence: int  # multiplications by weights for one sentence, whatever its length
    per_pair: int  # multiplications in the attention of one pair, summed over heads
    encoder_attentions: int  # layers of self-attention in the encoder
    decoder_attentions: int  # layers of self-attention in the decoder
    cross_attentions: int  # layers of attention from target to source


def count_parameters(config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> int:
    """Returns the number of trained parameters; tied tables count once."""
    tables = {
        "all": tgt_vocab_size,
        "decoder": src_vocab_size + tgt_vocab_size,
        "none": src_vocab_size + 2 * tgt_vocab_size,
    }[config.tie_embeddings]
    return tables * config.d_model + _count(config).parameters


def train_flops(
    config: ModelConfig,
    tgt_vocab_size: int,
    src_lengths: Int[np.ndarray, "B"],
    tgt_lengths: Int[np.ndarray, "B"],
) -> int:
    """Returns the model FLOPs of one update on B sentence pairs, in one pass (no R-Drop).

    `src_lengths` and `tgt_lengths` are the lengths of each pair in tokens; no padding is added.
    Forward and backward pass together take 6 FLOPs per multiplication of the forward pass. Each
    token is multiplied by every weight of its layers. Attention adds, for each pair of a query and
    a key, h * (d_k + d_v) multiplications per layer, or 2 * d_model if it is additive. Causal
    attention counts all pairs, since the hidden ones are computed, too. Embedding look-ups, norms,
    softmax, activations and the optimiser are not counted.
    """
    counts = _count(config)
    src, tgt = src_lengths.astype(np.int64), tgt_lengths.astype(np.int64)
    per_tgt = counts.per_tgt + config.d_model * tgt_vocab_size
    by_weights = counts.per_src * int(src.sum()) + per_tgt * int(tgt.sum())
    by_weights += counts.per_sentence * len(src)
    pairs = counts.encoder_attentions * int(src @ src)
    pairs += counts.decoder_attentions * int(tgt @ tgt) + counts.cross_attentions * int(src @ tgt)
    return 6 * by_weights + 6 * counts.per_pair * pairs


def count_sequential_operations(config: ModelConfig, src_length: int, tgt_length: int) -> int:
    """Returns the sequential operations of one forward pass in training (as in table 1).

    A sub-layer of the Transformer is one operation for all positions; a recurrent layer is one
    operation for each position. In decoding, both kinds of decoder run once for each token.
    """
    encoder_depth, decoder_depth = config.depth
    match config.kind:
        case "transformer":
            feed_forward = int(config.feed_forward != "none")
            return encoder_depth * (1 + feed_forward) + decoder_depth * (2 + feed_forward)
        case "rnn":
            return encoder_depth * src_length + decoder_depth * tgt_length
        case other:
            raise ValueError(f"model.kind={other!r} is unknown")


def _count(config: ModelConfig) -> _Counts:
    match config.kind:
        case "transformer":
            return _count_transformer(config)
        case "rnn":
            return _count_rnn(config)
        case other:
            raise ValueError(f"model.kind={other!r} is unknown")


def _count_transformer(config: ModelConfig) -> _Counts:
    encoder_depth, decoder_depth = config.depth
    positions = {  # parameters in each stack
        "learned": config.max_positions * config.d_model,
        "relative": Relative.buckets * config.num_heads,
    }.get(config.position, 0)
    widths = config.key_width + config.value_width
    query_and_output = config.d_model * config.num_heads * widths  # W^Q and W^O
    key_value = config.d_model * config.kv_heads * widths  # W^K and W^V
    attention = query_and_output + key_value
    norm = {"layer": 2, "rms": 1, "none": 0}[config.norm] * config.d_model
    feed_forward, biases = _count_feed_forward(config)
    feed_forward_block = feed_forward + biases + (norm if config.feed_forward != "none" else 0)
    encoder_layer = attention + norm + feed_forward_block
    decoder_layer = 2 * (attention + norm) + feed_forward_block
    final_norms = 2 if config.norm_position == "pre" else 0
    return _Counts(
        parameters=2 * positions
        + encoder_depth * encoder_layer
        + decoder_depth * decoder_layer
        + final_norms * norm,
        # Cross-attention in the decoder projects its keys and values from source tokens.
        per_src=encoder_depth * (attention + feed_forward) + decoder_depth * key_value,
        per_tgt=decoder_depth * (2 * query_and_output + key_value + feed_forward),
        per_sentence=0,
        per_pair=config.num_heads * widths,
        encoder_attentions=encoder_depth,
        decoder_attentions=decoder_depth,
        cross_attentions=decoder_depth,
    )


def _count_feed_forward(config: ModelConfig) -> tuple[int, int]:
    """Returns the numbers of (weights, biases) in one feed-forward."""
    if config.feed_forward == "none":
        return 0, 0
    if config.feed_forward not in CHOICES["model.feed_forward"]:
        return _count_variant(config)
    inner = config.d_ff * (2 if config.feed_forward in GATED else 1)
    return (inner + config.d_ff) * config.d_model, inner + config.d_model


def _count_variant(config: ModelConfig) -> tuple[int, int]:
    """Returns the numbers of (weights, other parameters) in a registered feed-forward.

    Parameters with two or more dimensions count as weights, applied once to each token.
    """
    _, params = describe_model(config, 1, 1)
    layer = next(iter(params["encoder"].values()))
    leaves = jax.tree.leaves(layer["feed_forward"].get("feed_forward", {}))  # it may have none
    weights = sum(leaf.size for leaf in leaves if leaf.ndim > 1)
    return weights, sum(leaf.size for leaf in leaves) - weights


def _count_rnn(config: ModelConfig) -> _Counts:
    encoder_depth, decoder_depth = config.depth
    cell, width = make_cell(config), config.d_model
    gates = cell.num_gates * width**2  # weights from one vector to all gates
    # Two directions with half of the units each: input weights, then recurrent weights.
    encoder = encoder_depth * (gates + gates // 2)
    keys = width**2  # the attention's projection of the memory
    initial_state = decoder_depth * cell.num_parts * width  # units
    # In this order: input and recurrent weights of each layer, the first layer's weights for the
    # context, the attention's query, and the readout of state, context and embedding.
    decoder = 2 * decoder_depth * gates + gates + width**2 + 3 * width**2
    biases = (encoder_depth + decoder_depth) * cell.num_gates * width + initial_state + width
    scores = width  # the vector v of `AdditiveAttention`
    return _Counts(
        parameters=encoder + keys + decoder + initial_state * (width // 2) + biases + scores,
        per_src=encoder + keys,
        per_tgt=decoder,
        per_sentence=initial_state * (width // 2),
        per_pair=2 * width,
        encoder_attentions=0,
        decoder_attentions=0,
        cross_attentions=1,
    )
