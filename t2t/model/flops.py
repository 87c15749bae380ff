"""Counts of a model from the shapes of its parameters: parameters, FLOPs, sequential operations.

The tests compare the FLOPs with the matrix products in the model's jaxpr.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from t2t.config.fields import ModelConfig
from t2t.model.interface import Params
from t2t.ops.build_model import describe_model, find_own_kind


class _Multiplications(NamedTuple):
    """Multiplications by weights in one forward pass, without the output table."""

    per_src: int  # for one source token
    per_tgt: int  # for one target token
    per_sentence: int  # for one sentence, whatever its length


def count_parameters(config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> int:
    """Returns the number of trained parameters; tied tables count once."""
    params = _describe(dataclasses.astuple(config), src_vocab_size, tgt_vocab_size)
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def train_flops(
    config: ModelConfig,
    tgt_vocab_size: int,
    src_lengths: Int[np.ndarray, "B"],
    tgt_lengths: Int[np.ndarray, "B"],
) -> int:
    """Returns the model FLOPs of one update on B sentence pairs, in one pass (no R-Drop).

    `src_lengths` and `tgt_lengths` are the lengths of each pair in tokens; no padding is added.
    Forward and backward pass together take 6 FLOPs per multiplication of the forward pass. Each
    token is multiplied by every weight of its layers, of a mixture of experts by those of its own
    experts. Attention adds, for each pair of a query and
    a key, h * (d_k + d_v) multiplications per layer, or 2 * d_model if it is additive. Causal
    attention counts all pairs, since the hidden ones are computed, too. Embedding look-ups, norms,
    softmax, activations and the optimiser are not counted.
    """
    weights = _count_multiplications(config)
    src, tgt = src_lengths.astype(np.int64), tgt_lengths.astype(np.int64)
    per_pair = config.num_heads * (config.key_width + config.value_width)
    by_weights = weights.per_src * int(src.sum()) + weights.per_sentence * len(src)
    by_weights += (weights.per_tgt + config.d_model * tgt_vocab_size) * int(tgt.sum())
    encoder_depth, decoder_depth = config.depth
    match find_own_kind(config):
        case "transformer":
            pairs = encoder_depth * int(src @ src) + decoder_depth * int(tgt @ tgt + src @ tgt)
        case "decoder_only":
            pairs = decoder_depth * int((src + tgt) @ (src + tgt))
        case "encoder_only":
            pairs = encoder_depth * int(src @ src)
        case "rnn":
            per_pair, pairs = 2 * config.d_model, int(src @ tgt)
        case other:
            raise ValueError(f"model.kind={other!r} is unknown")
    return 6 * by_weights + 6 * per_pair * pairs


def count_sequential_operations(config: ModelConfig, src_length: int, tgt_length: int) -> int:
    """Returns the sequential operations of one forward pass in training (as in table 1).

    A sub-layer of the Transformer is one operation for all positions; a recurrent layer is one
    operation for each position. In decoding, both kinds of decoder run once for each token.
    """
    encoder_depth, decoder_depth = config.depth
    feed_forward = int(config.feed_forward != "none")
    match find_own_kind(config):
        case "transformer":
            return encoder_depth * (1 + feed_forward) + decoder_depth * (2 + feed_forward)
        case "decoder_only":
            return decoder_depth * (1 + feed_forward)
        case "encoder_only":
            return encoder_depth * (1 + feed_forward)
        case "rnn":
            return encoder_depth * src_length + decoder_depth * tgt_length
        case other:
            raise ValueError(f"model.kind={other!r} is unknown")


def _count_multiplications(config: ModelConfig) -> _Multiplications:
    """Adds up the weights: parameters with two or more dimensions, without tables and biases."""
    per_src = per_tgt = per_sentence = 0
    params = _describe(dataclasses.astuple(config), 1, 1)
    for path, leaf in jax.tree.leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if leaf.ndim < 2 or name.endswith(("table", "bias")):
            continue
        size = leaf.size
        if config.feed_forward == "moe" and name.endswith(("forward.inner", "forward.outer")):
            size = size // config.num_experts * config.experts_per_token
        # Keys and values of cross-attention are projected from source tokens.
        of_memory = ("cross_attention.key_value", "attentive.attention.key")
        if name.startswith("encoder.") or name.endswith(of_memory):
            per_src += size
        elif name == "start":  # the first state of a recurrent decoder
            per_sentence += size
        else:
            per_tgt += size
    if find_own_kind(config) == "decoder_only":  # source and target pass through the same layers
        per_src = per_tgt
    return _Multiplications(per_src, per_tgt, per_sentence)


@functools.lru_cache(maxsize=1024)
def _describe(fields: tuple[object, ...], src_vocab_size: int, tgt_vocab_size: int) -> Params:
    """Returns the shapes of the parameters; asks for no device, since dtype and kernels are set."""
    config = ModelConfig(*fields)  # type: ignore[arg-type]
    config = dataclasses.replace(config, dtype="float32", kernels="textbook")
    _, params = describe_model(config, src_vocab_size, tgt_vocab_size)
    return params
