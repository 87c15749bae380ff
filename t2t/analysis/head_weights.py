"""The attention heads of a Transformer: capturing their weights, and switching one off."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from t2t.config.fields import ModelConfig
from t2t.model.attention import MultiHeadAttention
from t2t.model.interface import Params
from t2t.model.kv_cache import KeyValue
from t2t.model.transformer import Transformer

# The paths of each stack's attention parameters, by layer.
_PATHS = {
    "encoder": "encoder.{}.attention",
    "decoder": "decoder.{}.self_attention",
    "cross": "decoder.{}.cross_attention",
}


class Head(NamedTuple):
    """The position of a head in the model; layers and heads are counted from 0."""

    stack: str  # encoder | decoder | cross
    layer: int
    number: int


class HeadWeights(NamedTuple):
    """The softmax of equation 1 in each head, in float32.

    Each row sums to 1. Rows of padding have no visible key and are 0.
    """

    encoder: Float[Array, "N B H S S"]
    decoder: Float[Array, "M B H T T"]
    cross: Float[Array, "M B H T S"]


def list_heads(config: ModelConfig) -> Iterator[Head]:
    """Yields all heads of a Transformer, stack by stack in the order of `HeadWeights`."""
    encoder_depth, decoder_depth = config.depth
    depths = (encoder_depth, decoder_depth, decoder_depth)
    for stack, depth in zip(HeadWeights._fields, depths, strict=True):
        for layer in range(depth):
            yield from (Head(stack, layer, number) for number in range(config.num_heads))


def capture_weights(
    model: Transformer, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"]
) -> HeadWeights:
    """Returns the weights of every head under teacher forcing, on one device.

    It replaces the attention operation of `model` by one that also records its weights, so do not
    use `model` afterwards. The layers are unchanged, so all their variants are supported.
    """
    sites = (
        [layer.attention for layer in model.encoder],
        [layer.self_attention for layer in model.decoder],
        [layer.cross_attention for layer in model.decoder],
    )
    recorded = [_install_recorder(stack) for stack in sites]
    model.encode_and_decode(src, tgt_in)
    return HeadWeights(*map(jnp.stack, recorded))


def _install_recorder(stack: list[MultiHeadAttention]) -> list[Float[Array, "B H T S"]]:
    """Returns a list to which the stack's layers append their weights when the model runs."""
    recorded: list[Float[Array, "B H T S"]] = []
    for module in stack:
        operations = module.policy.operations
        recording = functools.partial(_attend_and_record, operations.attention, recorded)
        operations = dataclasses.replace(operations, attention=recording)
        module.policy = dataclasses.replace(module.policy, operations=operations)
    return recorded


def _attend_and_record(
    attend: Callable[..., Float[Array, "B T H U"]],
    recorded: list[Float[Array, "B H T S"]],
    query: Float[Array, "B T H K"],
    key_value: KeyValue,
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "H T S"] | None = None,
    *others: Any,
    scaled: bool = True,
) -> Float[Array, "B T H U"]:
    """Calls `attend`, and appends its weights to `recorded`."""
    recorded.append(compute_weights(attend, query, key_value.keys, mask, bias, scaled=scaled))
    return attend(query, key_value, mask, bias, *others, scaled=scaled)


def compute_weights(
    attend: Callable[..., Float[Array, "B T H U"]],
    query: Float[Array, "B T H K"],
    keys: Float[Array, "B S G K"],
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "H T S"] | None = None,
    *,
    scaled: bool = True,
) -> Float[Array, "B H T S"]:
    """Returns the attention weights in float32: the output of `attend` for one-hot values."""
    length = keys.shape[1]
    values = jnp.broadcast_to(jnp.eye(length)[:, None], (*keys.shape[:3], length))
    heads = attend(query, KeyValue(keys, values), mask, bias, scaled=scaled)
    return jnp.moveaxis(heads, 2, 1)


def switch_off(params: Params, head: Head) -> Params:
    """Returns parameters that switch the head off: its rows of W^O are zero."""
    output = f"{_PATHS[head.stack].format(head.layer)}.output"

    def change(path: tuple[object, ...], leaf: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name != output:
            return leaf
        kept = np.arange(len(leaf)) != head.number  # a mask, since the heads may be sharded
        return jnp.where(kept[:, None, None], leaf, 0)

    changed: Params = jax.tree.map_with_path(change, params)
    return changed
