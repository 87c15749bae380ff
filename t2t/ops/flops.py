"""Counts of a model from the shapes of its parameters: parameters and FLOPs.

The tests compare the FLOPs with the matrix products in the model's jaxpr.
"""

import dataclasses
from collections import Counter

import jax
import numpy as np
from jaxtyping import Int

from t2t.config.fields import ModelConfig
from t2t.model.parameters import Params, name_leaves
from t2t.ops.build_model import abstract_model, find_family

_described: dict[str, Params] = {}  # what `describe_params` has returned


def count_parameters(config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> int:
    """Returns the number of trained parameters; tied tables count once."""
    params = describe_params(config, src_vocab_size, tgt_vocab_size)
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
    by_weights = sum(count * int(numbers.sum()) for count, numbers in (
        (weights["src"] + weights["token"], src),
        (weights["tgt"] + weights["token"] + config.d_model * tgt_vocab_size, tgt),
        (weights["sentence"], np.ones_like(src)),
    ))  # fmt: skip
    return 6 * (by_weights + find_family(config).count_attention(config, src, tgt))


def _count_multiplications(config: ModelConfig) -> Counter[str]:
    """Adds up the weights by what they multiply (`Model.find_side`).

    Weights are parameters with two or more dimensions, without tables and biases.
    """
    found, counts = find_family(config), Counter[str]()
    for name, leaf in name_leaves(describe_params(config, 1, 1)).items():
        if leaf.ndim < 2 or name.endswith(("table", "bias")):
            continue
        size = leaf.size
        if config.feed_forward == "moe" and name.endswith(("forward.inner", "forward.outer")):
            size = size // config.num_experts * config.experts_per_token
        counts[found.find_side(name)] += size
    return counts


def describe_params(config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> Params:
    """Returns the shapes of the parameters; asks for no device, since dtype and kernels are set."""
    config = dataclasses.replace(config, dtype="float32", kernels="textbook")
    key = repr((config, config.plugin, src_vocab_size, tgt_vocab_size))
    if key not in _described:
        _, _described[key] = abstract_model(config, src_vocab_size, tgt_vocab_size)
    return _described[key]
