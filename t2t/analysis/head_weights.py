"""The attention heads of a Transformer, one by one: how they weigh, and the model without one."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from t2t.config.fields import ModelConfig
from t2t.model.attention import KeyValue, KVCache, MultiHeadAttention, dot_product_attention
from t2t.model.interface import Params
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


def weigh(
    query: Float[Array, "B T H K"],
    keys: Float[Array, "B S G K"],
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "H T S"] | None = None,
    *,
    scaled: bool = True,
) -> Float[Array, "B H T S"]:
    """softmax(Q K^T / sqrt(d_k)): what attention makes of values that are unit vectors."""
    length = keys.shape[1]
    values = jnp.broadcast_to(jnp.eye(length)[:, None], (*keys.shape[:3], length))
    heads = dot_product_attention(query, KeyValue(keys, values), mask, bias, scaled=scaled)
    return jnp.moveaxis(heads, 2, 1)


class _Watched(MultiHeadAttention):
    """Hands the weights of each call to whom wants them."""

    record: Callable[[Float[Array, "B H T S"]], None]

    def attend(
        self,
        query: Float[Array, "B T H K"],
        memory: KeyValue | KVCache,
        mask: Bool[Array, "#B 1 #T S"],
        bias: Float[Array, "H T S"] | None = None,
        key: jax.Array | None = None,
    ) -> Float[Array, "B T D"]:
        assert isinstance(memory, KeyValue), "weights are those of teacher forcing"
        self.record(weigh(query, memory.keys, mask, bias, scaled=self.scaled))
        return super().attend(query, memory, mask, bias, key)


def find_weights(
    model: Transformer, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"]
) -> HeadWeights:
    """How every head weighs under teacher forcing, on one device; `model` is used up.

    The layers run as they always do, so that no variant of them has to be known here.
    """
    sites = (
        [layer.attention for layer in model.encoder],
        [layer.self_attention for layer in model.decoder],
        [layer.cross_attention for layer in model.decoder],
    )
    recorded = [_watch(stack) for stack in sites]
    model.decode_all(src, tgt_in)
    return HeadWeights(*map(jnp.stack, recorded))


def _watch(stack: list[MultiHeadAttention]) -> list[Float[Array, "B H T S"]]:
    """Fills, layer by layer, once the model runs.

    The modules stay what they are, under the class that watches: it has all that it needs.
    """
    recorded: list[Float[Array, "B H T S"]] = []
    for attention in stack:
        attention.__class__ = _Watched
        assert isinstance(attention, _Watched)
        attention.record = recorded.append
    return recorded


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
