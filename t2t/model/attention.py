"""Section 3.2: scaled dot-product attention, multi-head attention, and the cache for decoding."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2t.config import ModelConfig
from t2t.model.layers import dropout, init_glorot
from t2t.model.masks import apply_mask
from t2t.model.position import Position
from t2t.sharding import spec


class KeyValue(NamedTuple):
    """What a query attends to."""

    keys: Float[Array, "B S G K"]
    values: Float[Array, "B S G E"]


def dot_product_attention(
    query: Float[Array, "B T H K"],
    memory: KeyValue,
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "H T S"] | None = None,
    dropout_rate: float = 0.0,
    key: jax.Array | None = None,
) -> Float[Array, "B T H E"]:
    """Equation 1: softmax(Q K^T / sqrt(d_k)) V, the softmax in float32.

    G key/value heads serve H query heads, H/G each (Ainslie et al. 2023).
    """
    batch, length, heads, width = query.shape
    groups = memory.keys.shape[2]
    grouped = query.reshape(batch, length, groups, heads // groups, width)
    logits = jnp.einsum(
        "BTGRK,BSGK->BGRTS", grouped, memory.keys, preferred_element_type=jnp.float32
    )
    logits /= math.sqrt(width)
    if bias is not None:
        logits += bias.reshape(groups, heads // groups, *bias.shape[1:])
    weights = jax.nn.softmax(apply_mask(logits, mask[:, :, None]), axis=-1)
    weights = dropout(weights, dropout_rate, key).astype(query.dtype)
    return jnp.einsum("BGRTS,BSGE->BTGRE", weights, memory.values).reshape(
        batch, length, heads, memory.values.shape[-1]
    )


class KVCache(NamedTuple):
    """Keys and values of one layer's past, in the order in which they were made, never moved."""

    keys: Float[Array, "B L W G K"]
    values: Float[Array, "B L W G E"]

    def write(self, step: Int[Array, ""], new: KeyValue) -> "KVCache":
        """The cache with the W slots of this step."""
        update = jax.lax.dynamic_update_slice_in_dim
        return KVCache(
            update(self.keys, new.keys[:, None], step, axis=1),
            update(self.values, new.values[:, None], step, axis=1),
        )

    def read(self) -> KeyValue:
        """All slots of all steps as keys to attend to: L*W of them."""
        batch, length, beam, *_ = self.keys.shape
        keys, values = (x.reshape(batch, length * beam, *x.shape[3:]) for x in self)
        return KeyValue(keys, values)


class MultiHeadAttention(nnx.Module):
    """Section 3.2.2: Concat(head_1, ..., head_h) W^O, without biases as in the paper.

    A key/value head and the queries that it serves are one slice of one projection, which keeps
    the whole of a head on one device and computes Q, K and V of self-attention in one product.
    """

    def __init__(self, config: ModelConfig, key: jax.Array, *, over_memory: bool = False):
        """`over_memory`: keys and values come from the encoder, by a projection of their own."""
        d_model, heads, groups = config.d_model, config.num_heads, config.kv_heads
        self.num_heads = heads
        self.dropout_rate = config.attention_dropout
        query_width = heads // groups * config.key_width
        widths = (query_width, config.key_width, config.value_width)
        fans = (d_model, heads * config.key_width)
        query_key, kv_key, output_key = jax.random.split(key, 3)
        names = ("d_model", "heads", None)
        self.splits = (query_width, query_width + config.key_width)
        self.key_width = config.key_width
        if over_memory:
            self.query = init_glorot(query_key, (d_model, groups, query_width), *fans, *names)
            self.key_value = init_glorot(kv_key, (d_model, groups, sum(widths[1:])), *fans, *names)
        else:
            self.query_key_value = init_glorot(
                query_key, (d_model, groups, sum(widths)), *fans, *names
            )
        out_fans = (heads * config.value_width, d_model)
        self.output = init_glorot(
            output_key, (heads, config.value_width, d_model), *out_fans, "heads", None, "d_model"
        )

    def project(
        self, x: Float[Array, "B T D"], position: Position, positions: Int[Array, "T"]
    ) -> tuple[Float[Array, "B T H K"], KeyValue]:
        """Queries, keys and values of self-attention."""
        joined = jnp.einsum("BTD,DGE->BTGE", x, self.query_key_value.astype(x.dtype))
        query, keys, values = jnp.split(joined, self.splits, axis=-1)
        query = position.rotate(self._split_heads(query), positions)
        return query, KeyValue(position.rotate(keys, positions), values)

    def project_query(self, x: Float[Array, "B T D"]) -> Float[Array, "B T H K"]:
        """Queries to the memory."""
        return self._split_heads(jnp.einsum("BTD,DGE->BTGE", x, self.query.astype(x.dtype)))

    def project_memory(self, memory: Float[Array, "B S D"]) -> KeyValue:
        """Keys and values of the encoder's output, made once a sentence."""
        joined = jnp.einsum("BSD,DGE->BSGE", memory, self.key_value.astype(memory.dtype))
        keys, values = jnp.split(joined, [self.key_width], axis=-1)
        return KeyValue(keys, values)

    def attend(
        self,
        query: Float[Array, "B T H K"],
        memory: KeyValue,
        mask: Bool[Array, "#B 1 #T S"],
        bias: Float[Array, "H T S"] | None = None,
        key: jax.Array | None = None,
    ) -> Float[Array, "B T D"]:
        """The heads' results, joined by W^O."""
        heads = dot_product_attention(query, memory, mask, bias, self.dropout_rate, key)
        return jnp.einsum(
            "BTHE,HED->BTD",
            heads,
            self.output.astype(query.dtype),
            out_sharding=spec("batch", None, None),
        )

    def _split_heads(self, query: Float[Array, "B T G RK"]) -> Float[Array, "B T H K"]:
        shape = (*query.shape[:2], self.num_heads, self.key_width)
        return jnp.reshape(query, shape, out_sharding=spec("batch", None, "heads", None))
