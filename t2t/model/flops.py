"""Parameters, floating-point and sequential operations of a configuration, in closed form.

The tests hold the first two against the models themselves: their parameters, and the products that
they compute.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from t2t.config.fields import ModelConfig
from t2t.config.variants import CHOICES
from t2t.model.build import describe_model
from t2t.model.position import Relative
from t2t.model.rnn_layers import make_cell


class _Counts(NamedTuple):
    """Of a model without its tables; a pair is a query and a key."""

    parameters: int
    per_src: int  # weights of matrix products that a source token meets
    per_tgt: int  # and that a target token meets
    per_sentence: int  # and that a sentence meets once
    per_pair: int  # multiplications in the attention of all heads
    src_pairs: int  # times that each source token attends to each: layers
    tgt_pairs: int  # each target token to each
    cross_pairs: int  # each target token to each source token


def count_parameters(config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> int:
    """Numbers trained; tied tables count once."""
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
    """Model FLOPs of one update on sentence pairs of these lengths, padding not counted.

    Forward and backward pass are 6 FLOPs for each weight of a matrix product that a token meets,
    and for each multiplication in the attention of a query to a key: h * (d_k + d_v) of them, and
    2 * d_model in additive attention. Causal attention is counted whole, since it is computed
    whole. Not counted: look-ups, norms, softmax, activations, Adam.
    """
    counts = _count(config)
    src, tgt = src_lengths.astype(np.int64), tgt_lengths.astype(np.int64)
    per_tgt = counts.per_tgt + config.d_model * tgt_vocab_size
    weights_met = counts.per_src * int(src.sum()) + per_tgt * int(tgt.sum())
    weights_met += counts.per_sentence * len(src)
    pairs = counts.src_pairs * int(src @ src) + counts.tgt_pairs * int(tgt @ tgt)
    pairs += counts.cross_pairs * int(src @ tgt)
    return 6 * weights_met + 6 * counts.per_pair * pairs


def count_sequential_operations(config: ModelConfig, src_length: int, tgt_length: int) -> int:
    """Layers or positions that wait for the one before, forward and in training (table 1).

    A sub-layer of the Transformer is one, whatever the length; a recurrent layer has one for each
    position. Translating, both have the decoder's once for each word.
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
    positions = {  # of each stack
        "learned": config.max_positions * config.d_model,
        "relative": Relative.buckets * config.num_heads,
    }.get(config.position, 0)
    widths = config.key_width + config.value_width
    query_and_output = config.d_model * config.num_heads * widths  # W^Q and W^O
    key_value = config.d_model * config.kv_heads * widths  # W^K and W^V
    attention = query_and_output + key_value
    norm = {"layer": 2, "rms": 1, "none": 0}[config.norm] * config.d_model
    feed_forward, biases = _count_feed_forward(config)
    feed_forward_block = feed_forward + biases + (norm if feed_forward else 0)
    encoder_layer = attention + norm + feed_forward_block
    decoder_layer = 2 * (attention + norm) + feed_forward_block
    final_norms = 2 if config.norm_position == "pre" else 0
    return _Counts(
        parameters=2 * positions
        + encoder_depth * encoder_layer
        + decoder_depth * decoder_layer
        + final_norms * norm,
        # The decoder's attention to the source projects keys and values from the source's tokens.
        per_src=encoder_depth * (attention + feed_forward) + decoder_depth * key_value,
        per_tgt=decoder_depth * (2 * query_and_output + key_value + feed_forward),
        per_sentence=0,
        per_pair=config.num_heads * widths,
        src_pairs=encoder_depth,
        tgt_pairs=decoder_depth,
        cross_pairs=decoder_depth,
    )


def _count_feed_forward(config: ModelConfig) -> tuple[int, int]:
    """(weights, biases) of one feed-forward, none where it is switched off."""
    if config.feed_forward == "none":
        return 0, 0
    if config.feed_forward not in CHOICES["model.feed_forward"]:
        return _count_variant(config)
    inner = config.d_ff * (2 if config.feed_forward in ("swiglu", "geglu") else 1)
    return (inner + config.d_ff) * config.d_model, inner + config.d_model


def _count_variant(config: ModelConfig) -> tuple[int, int]:
    """(weights, other parameters) of a registered feed-forward.

    A parameter of two or more dimensions is taken for the weights of one product.
    """
    _, params = describe_model(config, 1, 1)
    layer = next(iter((params["encoder"] or params["decoder"]).values()))
    leaves = jax.tree.leaves(layer["feed_forward"]["feed_forward"])
    weights = sum(leaf.size for leaf in leaves if leaf.ndim > 1)
    return weights, sum(leaf.size for leaf in leaves) - weights


def _count_rnn(config: ModelConfig) -> _Counts:
    encoder_depth, decoder_depth = config.depth
    cell, width = make_cell(config), config.d_model
    gates = cell.num_gates * width**2  # weights from one vector to all gates
    # Both ways together: all of the input to twice half of the units, and half to half twice.
    encoder = encoder_depth * (gates + gates // 2)
    keys = width**2
    starts = decoder_depth * cell.num_parts * width
    # From word or layer below and from the state; from the context; query, and three to read out.
    decoder = 2 * decoder_depth * gates + gates + width**2 + 3 * width**2
    biases = (encoder_depth + decoder_depth) * cell.num_gates * width + starts + width
    scores = width  # v
    return _Counts(
        parameters=encoder + keys + decoder + starts * (width // 2) + biases + scores,
        per_src=encoder + keys,
        per_tgt=decoder,
        per_sentence=starts * (width // 2),
        per_pair=2 * width,
        src_pairs=0,
        tgt_pairs=0,
        cross_pairs=1,
    )
