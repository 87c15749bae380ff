"""Section 3.2: scaled dot-product attention (equation 1) and multi-head attention."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2t.config.fields import ModelConfig
from t2t.config.variants import (
    CHOICES,
    call_variant,
    describe_value,
    find_variant,
    make_variant_error,
)
from t2t.model.compute_policy import Policy
from t2t.model.kv_cache import BlockCache, KeyValue, KVCache
from t2t.model.layers import dropout, is_layer
from t2t.model.linear import Linear, draw_glorot, draw_linear, einsum
from t2t.model.parametrization import find_query_factor, scale
from t2t.model.position import Position
from t2t.runtime.mesh import spec

# The logit of a masked key, below the logit of any visible key. It is not -inf, since softmax is
# NaN if all logits of a query are -inf.
MASKED = -1e30


class Context(NamedTuple):
    """Inputs that all blocks of a stack share.

    In shapes, S is the number of keys: T in training; in decoding the size of the cache.
    """

    mask: Bool[Array, "#B 1 #T S"]  # of self-attention
    position: Position
    positions: Int[Array, "*#B T"]  # of the queries in their row
    bias: Float[Array, "*#B #H #T #S"] | None  # `position.bias`, added to the attention logits
    memory: Float[Array, "B M D"] | None = None  # what cross-attention attends to
    memory_mask: Bool[Array, "#B 1 #T M"] | None = None
    is_token: Bool[Array, "B T"] | None = None  # False for padding; None: as if there were none
    write_at: Int[Array, ""] | int = 0  # in decoding: index of the first new key in the cache
    key_positions: Int[Array, "*#B S"] | None = None  # None: the same as the queries'
    causal: bool = False  # `mask` hides all keys to the right of their query, in the row


def dot_product_attention(
    query: Float[Array, "B T H K"],
    key_value: KeyValue | KVCache,
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "*#B #H #T #S"] | None = None,
    dropout_rate: float = 0.0,
    key: jax.Array | None = None,
    *,
    scaled: bool = True,
) -> Float[Array, "B T H U"]:
    """Equation 1: softmax(Q K^T / sqrt(d_k)) V, with the softmax in float32.

    In shapes, T counts the queries and S the keys, also in self-attention, where both are
    positions of the same sequence. `scaled=False` leaves out the division by sqrt(d_k). `bias` is
    added to the logits. With `key`, a PRNG key, dropout is applied to the weights. With fewer
    key/value heads than query heads (G < H), H/G query heads share a key/value head (Ainslie et al.
    2023). The result is 0 for a query that sees no key.
    """
    keys, values = (repeat_heads(x, query.shape[2]) for x in (key_value.keys, key_value.values))
    logits = einsum("BTHK,BSHK->BHTS", query, keys, preferred_element_type=jnp.float32)
    if scaled:
        logits /= math.sqrt(query.shape[-1])
    if bias is not None:
        logits += bias
    weights = dropout(masked_softmax(logits, mask), dropout_rate, key)
    return einsum("BHTS,BSHU->BTHU", weights.astype(values.dtype), values)


def apply_mask(logits: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, "..."]:
    """Replaces logits of masked keys by `MASKED`; their softmax is 0 if some key is visible."""
    return jnp.where(mask, logits, MASKED)


def masked_softmax(logits: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, "..."]:
    """Softmax over the visible keys; masked keys have weight 0, even if all keys are masked.

    So the attention of a query that sees no key is 0, and so are its gradients.
    """
    return jnp.where(mask, jax.nn.softmax(apply_mask(logits, mask), axis=-1), 0)


def repeat_heads(x: Float[Array, "B S G K"], num_heads: int) -> Float[Array, "B S H K"]:
    """Repeats each key or value head H/G times, once for each query head that shares it."""
    batch, length, groups, width = x.shape
    if groups == num_heads:
        return x
    repeated = jnp.broadcast_to(
        x[:, :, :, None], (batch, length, groups, num_heads // groups, width)
    )
    return split_heads(repeated, num_heads, width)  # here it merges G and H/G into H


def split_heads(x: Float[Array, "B T *widths"], num_heads: int, width: int) -> Float[Array, "..."]:
    """Reshapes [B, T, ...] to [B, T, num_heads, width], sharded over the heads."""
    sharding = spec("batch", None, "heads", None)
    return jnp.reshape(x, (*x.shape[:2], num_heads, width), out_sharding=sharding)


class MultiHeadAttention(nnx.Module):
    """Section 3.2.2: Concat(head_1, ..., head_h) W^O, without biases unless model.attention_bias.

    Self-attention stores W^Q, W^K and W^V in one weight [D, G, P]. Its slice [:, g] belongs to
    key/value head g and the H/G query heads that share this head, so sharding over G keeps them on
    one device. P = H/G * d_k + d_k + d_v is the sum of the widths of these query heads, the key
    head and the value head. Cross-attention stores two weights: W^Q as [D, G, H/G * d_k] and
    [W^K W^V] as [D, G, d_k + d_v].
    """

    def __init__(
        self, config: ModelConfig, policy: Policy, key: jax.Array, *, over_memory: bool = False
    ):
        """Creates the weights; `over_memory`: keys and values come from the encoder's output."""
        d_model, heads, groups = config.d_model, config.num_heads, config.kv_heads
        self.policy = policy
        self.kind, self.over_memory = config.attention, over_memory
        attention: Any = policy.attention
        if isinstance(attention, type):  # a registered class, with parameters of its own
            arguments = config, policy, jax.random.fold_in(key, 4)
            attention = call_variant(
                "model.attention", config.attention, *arguments, is_valid=is_layer
            )
        self.attention = attention
        self.num_heads = heads
        self.dropout_rate = config.attention_dropout
        self.scaled, self.query_factor = config.attention_scale, find_query_factor(config)
        query_width, self.key_width = heads // groups * config.key_width, config.key_width
        self.splits = (query_width, query_width + config.key_width)
        query_key, key_key, value_key, output_key = jax.random.split(key, 4)
        names = "d_model", "heads", None

        def draw(key: jax.Array, width: int) -> Float[Array, "D G _"]:
            return draw_glorot(key, (d_model, groups, width), d_model, groups * width, *names)

        def concatenate(*weights: Float[Array, "D G _"]) -> Linear:
            joined = jnp.concatenate(weights, axis=-1)
            return Linear(
                policy, "BTD,DGP->BTGP", joined, names,
                matrix=(0, 2), biased=config.attention_bias, kind="attention",
            )  # fmt: skip

        query = draw(query_key, query_width)
        key_value = draw(key_key, config.key_width), draw(value_key, config.value_width)
        if over_memory:
            self.query, self.key_value = concatenate(query), concatenate(*key_value)
        else:
            self.query_key_value = concatenate(query, *key_value)
        self.output = draw_linear(
            policy, "BTHU,HUD->BTD", output_key, (heads, config.value_width, d_model),
            ("heads", None, "d_model"),
            matrix=(1, 2), biased=config.attention_bias, kind="attention",
        )  # fmt: skip

    def project(
        self,
        x: Float[Array, "B T D"] | Sequence[Float[Array, "B T D"]],
        position: Position,
        positions: Int[Array, "*#B T"],
    ) -> tuple[Float[Array, "B T H K"], KeyValue]:
        """Computes queries, keys and values of self-attention: X W^Q, X W^K and X W^V.

        `position.rotate` is applied to queries and keys. x may be three equal arrays, one for each
        product.
        """
        query, keys, values = self.query_key_value.split(x, self.splits)
        query = split_heads(query, self.num_heads, self.key_width)
        query, keys = (position.rotate(y, positions).astype(y.dtype) for y in (query, keys))
        return query, KeyValue(keys, values)

    def project_query(self, x: Float[Array, "B T D"]) -> Float[Array, "B T H K"]:
        """Computes the queries of cross-attention, the attention over the encoder's output."""
        return split_heads(self.query(x), self.num_heads, self.key_width)

    def project_memory(self, memory: Float[Array, "B S D"]) -> KeyValue:
        """Computes keys and values of cross-attention, the same for all decoding steps."""
        return KeyValue(*self.key_value.split(memory, (self.key_width,)))

    def __call__(
        self,
        x: Float[Array, "B T D"],
        context: Context,
        cache: BlockCache | None = None,
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, "B T D"], KeyValue | BlockCache | None]:
        """Applies the sub-layer; returns its output, and keys and values as `find_heads` does."""
        heads, cached = self.find_heads(x, context, cache, key)
        return self.join(heads), cached

    def find_heads(
        self,
        x: Float[Array, "B T D"] | Sequence[Float[Array, "B T D"]],
        context: Context,
        cache: BlockCache | None = None,
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, "B T H U"], KeyValue | BlockCache | None]:
        """Returns the results of all heads, head_1 to head_h, and the keys and values.

        Self-attention returns the T new keys and values. With a cache (decoding) it writes them to
        the cache, attends to all that the cache holds, and returns the cache. Cross-attention
        returns the cache unchanged. With `key`, a PRNG key, dropout is applied to the attention
        weights. x of self-attention may be three equal arrays, one for each product.
        """
        if self.over_memory:
            assert context.memory_mask is not None
            assert isinstance(x, jax.Array)
            query = self.project_query(x)
            if cache is None:
                assert context.memory is not None
                memory: KeyValue | KVCache = self.project_memory(context.memory)
            else:
                assert cache.memory is not None
                memory = cache.memory
            return self.attend(query, memory, context.memory_mask, key=key), cache
        query, new = self.project(x, context.position, context.positions)
        written = new if cache is None else cache.write(context.write_at, new)
        past = written.past if isinstance(written, BlockCache) else written
        heads = self.attend(query, past, context.mask, context.bias, key, causal=context.causal)
        return heads, written

    def attend(
        self,
        query: Float[Array, "B T H K"],
        key_value: KeyValue | KVCache,
        mask: Bool[Array, "#B 1 #T S"],
        bias: Float[Array, "*#B #H #T #S"] | None = None,
        key: jax.Array | None = None,
        *,
        causal: bool = False,
    ) -> Float[Array, "B T H U"]:
        """Attends with all heads; `causal` promises that the mask is causal."""
        query = scale(query, self.query_factor)
        attention = self.attention
        if causal and attention is self.policy.attention:  # no module or function of its own
            attention = self.policy.causal_attention
        heads = attention(query, key_value, mask, bias, self.dropout_rate, key, scaled=self.scaled)
        expected = *query.shape[:3], key_value.values.shape[-1]
        if getattr(heads, "shape", None) != expected:  # as a registered attention may
            fault = f"returned {describe_value(heads)} instead of {expected}"
            raise make_variant_error("model.attention", self.kind, fault)
        result: Float[Array, "B T H U"] = heads.astype(query.dtype)
        return result

    def join(self, heads: Float[Array, "B T H U"]) -> Float[Array, "B T D"]:
        """Multiplies the concatenated results of the heads by W^O."""
        return self.output(heads)


def find_sub_layer(name: str) -> type[MultiHeadAttention]:
    """Returns the class of the attention sub-layers that `model.attention=name` makes.

    It is the registered class if this is a subclass of `MultiHeadAttention`.
    """
    if name not in CHOICES["model.attention"]:
        kind = find_variant("model.attention", name)
        if isinstance(kind, type) and issubclass(kind, MultiHeadAttention):
            return kind
    return MultiHeadAttention
