"""Parameters and floating-point operations of a configuration, in closed form.

The tests hold both against the model itself: its parameters, and the products that it computes.
"""

import numpy as np
from jaxtyping import Int

from t2t.config import ModelConfig
from t2t.model.position import Relative


def count_parameters(config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> int:
    """Numbers trained; tied tables count once."""
    encoder_depth, decoder_depth = config.depth
    tables = {
        "all": tgt_vocab_size,
        "decoder": src_vocab_size + tgt_vocab_size,
        "none": src_vocab_size + 2 * tgt_vocab_size,
    }[config.tie_embeddings]
    positions = {  # of each stack
        "learned": config.max_positions * config.d_model,
        "relative": Relative.buckets * config.num_heads,
    }.get(config.position, 0)
    attention = _count_query_and_output(config) + _count_key_value(config)
    norm = {"layer": 2, "rms": 1, "none": 0}[config.norm] * config.d_model
    feed_forward = sum(_count_feed_forward(config))
    if config.feed_forward != "none":
        feed_forward += norm
    encoder_layer = attention + norm + feed_forward
    decoder_layer = 2 * (attention + norm) + feed_forward
    final_norms = 2 if config.norm_position == "pre" else 0
    return (
        tables * config.d_model
        + 2 * positions
        + encoder_depth * encoder_layer
        + decoder_depth * decoder_layer
        + final_norms * norm
    )


def train_flops(
    config: ModelConfig,
    tgt_vocab_size: int,
    src_lengths: Int[np.ndarray, "B"],
    tgt_lengths: Int[np.ndarray, "B"],
) -> int:
    """Model FLOPs of one update on sentence pairs of these lengths, padding not counted.

    Forward and backward pass are 6 FLOPs for each weight of a matrix product that a token meets,
    and 3 * 2 * h * (d_k + d_v) for each pair of a query and a key. Causal attention is counted
    whole, since it is computed whole. Not counted: look-ups, norms, softmax, activations, Adam.
    """
    encoder_depth, decoder_depth = config.depth
    src, tgt = src_lengths.astype(np.int64), tgt_lengths.astype(np.int64)
    query_and_output, key_value = _count_query_and_output(config), _count_key_value(config)
    feed_forward, _ = _count_feed_forward(config)
    # The decoder's attention to the source projects keys and values from the source's tokens.
    per_src = encoder_depth * (query_and_output + key_value + feed_forward)
    per_src += decoder_depth * key_value
    per_tgt = decoder_depth * (2 * query_and_output + key_value + feed_forward)
    per_tgt += config.d_model * tgt_vocab_size
    weights_met = per_src * int(src.sum()) + per_tgt * int(tgt.sum())
    pairs = encoder_depth * int(src @ src) + decoder_depth * int(tgt @ tgt + src @ tgt)
    return 6 * weights_met + 6 * config.num_heads * (config.key_width + config.value_width) * pairs


def _count_query_and_output(config: ModelConfig) -> int:
    """Weights of one attention that a query's token meets: W^Q and W^O."""
    return config.d_model * config.num_heads * (config.key_width + config.value_width)


def _count_key_value(config: ModelConfig) -> int:
    """Weights of one attention that a key's token meets: W^K and W^V."""
    return config.d_model * config.kv_heads * (config.key_width + config.value_width)


def _count_feed_forward(config: ModelConfig) -> tuple[int, int]:
    """(weights, biases) of one feed-forward, none where it is switched off."""
    if config.feed_forward == "none":
        return 0, 0
    inner = config.d_ff * (2 if config.feed_forward in ("swiglu", "geglu") else 1)
    return (inner + config.d_ff) * config.d_model, inner + config.d_model
