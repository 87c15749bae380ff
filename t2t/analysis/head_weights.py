"""The attention heads of a Transformer, one by one: how they weigh, and the model without one."""

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

# Where the parameters of each stack's attention are.
_PLACES = {
    "encoder": "encoder.{}.attention",
    "decoder": "decoder.{}.self_attention",
    "cross": "decoder.{}.cross_attention",
}


class Head(NamedTuple):
    """Which head, counted from 0."""

    stack: str  # encoder | decoder | cross
    layer: int
    number: int


class HeadWeights(NamedTuple):
    """The softmax of equation 1 in each head, in float32: each row sums to 1.

    Rows of padding see nothing and are 0.
    """

    encoder: Float[Array, "N B H S S"]
    decoder: Float[Array, "M B H T T"]
    cross: Float[Array, "M B H T S"]


def list_heads(config: ModelConfig) -> Iterator[Head]:
    """All heads of a Transformer, stack by stack in the order of `HeadWeights`."""
    encoder_depth, decoder_depth = config.depth
    depths = (encoder_depth, decoder_depth, decoder_depth)
    for stack, depth in zip(HeadWeights._fields, depths, strict=True):
        for layer in range(depth):
            yield from (Head(stack, layer, number) for number in range(config.num_heads))


def find_weights(
    model: Transformer, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"]
) -> HeadWeights:
    """The weights of every head under teacher forcing, on one device; `model` is used up.

    The layers run as they always do, so every variant of them is covered.
    """
    sites = (
        [layer.attention for layer in model.encoder],
        [layer.self_attention for layer in model.decoder],
        [layer.cross_attention for layer in model.decoder],
    )
    recorded = [_record(stack) for stack in sites]
    model.decode_all(src, tgt_in)
    return HeadWeights(*map(jnp.stack, recorded))


def _record(stack: list[MultiHeadAttention]) -> list[Float[Array, "B H T S"]]:
    """A list that is filled, layer by layer, once the model runs."""
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
    memory: KeyValue,
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "H T S"] | None = None,
    *others: Any,
    scaled: bool = True,
) -> Float[Array, "B T H U"]:
    """Attention that also records its weights."""
    recorded.append(weigh(attend, query, memory.keys, mask, bias, scaled=scaled))
    return attend(query, memory, mask, bias, *others, scaled=scaled)


def weigh(
    attend: Callable[..., Float[Array, "B T H U"]],
    query: Float[Array, "B T H K"],
    keys: Float[Array, "B S G K"],
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "H T S"] | None = None,
    *,
    scaled: bool = True,
) -> Float[Array, "B H T S"]:
    """The weights of attention, in float32: its results for values that are unit vectors."""
    length = keys.shape[1]
    values = jnp.broadcast_to(jnp.eye(length)[:, None], (*keys.shape[:3], length))
    heads = attend(query, KeyValue(keys, values), mask, bias, scaled=scaled)
    return jnp.moveaxis(heads, 2, 1)


def switch_off(params: Params, head: Head) -> Params:
    """Parameters with which the head adds nothing: its rows of W^O are zero."""
    place = f"{_PLACES[head.stack].format(head.layer)}.output"

    def change(path: tuple[object, ...], leaf: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name != place:
            return leaf
        kept = np.arange(len(leaf)) != head.number  # no index: that dimension may be sharded
        return jnp.where(kept[:, None, None], leaf, 0)

    changed: Params = jax.tree.map_with_path(change, params)
    return changed
