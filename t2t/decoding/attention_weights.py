"""The weights of a Transformer's attention heads, captured while the model runs."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2t.model.kv_cache import KeyValue
from t2t.model.parameters import Params, merge
from t2t.model.transformer import Transformer


class HeadWeights(NamedTuple):
    """The softmax of equation 1 in each head, in float32.

    Each row sums to 1. Rows of padding have no visible key and are 0.
    """

    encoder: Float[Array, "N B H S S"]
    decoder: Float[Array, "M B H T T"]
    cross: Float[Array, "M B H T S"]


def capture_weights(
    structure: Any, params: Params, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"]
) -> HeadWeights:
    """Returns the weights of every head of a Transformer under teacher forcing, on one device.

    `structure` is the model without its parameters, as `abstract_model` returns it.
    """
    model = merge(structure, params)
    assert isinstance(model, Transformer)
    recorded = record_weights(model)
    model.scan_layers = False
    model(src, tgt_in)
    return HeadWeights(*map(jnp.stack, recorded))


def record_weights(model: Transformer) -> list[list[Float[Array, "B H T S"]]]:
    """Returns a list for each stack, to which its layers append their weights when they run.

    It replaces the attention operation of `model` by one that also records its weights. The layers
    are unchanged, so all their variants are supported.
    """
    stacks = (
        [layer.self_attention for layer in model.encoder],
        [layer.self_attention for layer in model.decoder],
        [layer.cross_attention for layer in model.decoder],
    )
    recorded: list[list[Float[Array, "B H T S"]]] = [[] for _ in stacks]
    for modules, weights in zip(stacks, recorded, strict=True):
        for module in modules:
            attend = module.attention
            module.attention = functools.partial(_attend_and_record, attend, weights)
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
