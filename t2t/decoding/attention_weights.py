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

    `structure` is the model without its parameters, as `abstract_model` returns it. Each attention
    operation is replaced by one that also records its weights. The layers are unchanged, so all
    their variants are supported.
    """
    model = merge(structure, params)
    assert isinstance(model, Transformer)
    stacks = (
        [layer.self_attention for layer in model.encoder],
        [layer.self_attention for layer in model.decoder],
        [layer.cross_attention for layer in model.decoder],
    )
    recorded: list[list[Float[Array, "B H T S"]]] = [[] for _ in stacks]
    for modules, weights in zip(stacks, recorded, strict=True):
        for module in modules:
            module.attention = functools.partial(_attend_and_record, module.attention, weights)
    model.scan_layers = False
    model(src, tgt_in)
    return HeadWeights(*map(jnp.stack, recorded))


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
    """Calls `attend`, and appends its weights in float32: its output for one-hot values."""
    keys = key_value.keys
    one_hot = jnp.broadcast_to(jnp.eye(keys.shape[1])[:, None], (*keys.shape[:3], keys.shape[1]))
    heads = attend(query, KeyValue(keys, one_hot), mask, bias, scaled=scaled)
    recorded.append(jnp.moveaxis(heads, 2, 1))
    return attend(query, key_value, mask, bias, *others, scaled=scaled)
