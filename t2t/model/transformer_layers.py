"""Section 3.1: a layer of the encoder, and one of the decoder."""

from typing import NamedTuple, cast

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2t.config.fields import ModelConfig
from t2t.model.attention import MultiHeadAttention
from t2t.model.compute_policy import Policy
from t2t.model.dropout import fold
from t2t.model.feed_forward import FeedForward, make_feed_forward
from t2t.model.kv_cache import KeyValue, KVCache
from t2t.model.position import Position
from t2t.model.residual import Residual


class AttentionContext(NamedTuple):
    """How the positions of a sequence attend to each other; the same in all layers of a stack."""

    mask: Bool[Array, "#B 1 #T L"]
    position: Position
    positions: Int[Array, "T"]  # of the queries, in their row
    bias: Float[Array, "H T L"] | None  # added to the logits of attention


class Memory(NamedTuple):
    """The encoder's output, as a layer of the decoder attends to it."""

    key_value: KeyValue | KVCache
    mask: Bool[Array, "B 1 #T S"]


class FeedForwardBlock(nnx.Module):
    """The last sub-layer of every layer; nothing where it is switched off."""

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        """Without a feed-forward there is nothing to add and nothing to normalise."""
        feed_forward = make_feed_forward(config, policy, key)
        self.enabled = feed_forward is not None
        if feed_forward is not None:
            self.feed_forward = cast(FeedForward, feed_forward)
            self.residual = Residual(config, policy)

    def __call__(
        self, x: Float[Array, "B T D"], key: jax.Array | None = None
    ) -> Float[Array, "B T D"]:
        """x after the feed-forward."""
        if not self.enabled:
            return x
        return self.residual(x, self.feed_forward, lambda f, x: f(x, fold(key, 0)), fold(key, 1))


class EncoderLayer(nnx.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        """Each sub-layer has its own key."""
        attention_key, feed_forward_key = jax.random.split(key)
        self.attention = MultiHeadAttention(config, policy, attention_key)
        self.attention_residual = Residual(config, policy)
        self.feed_forward = FeedForwardBlock(config, policy, feed_forward_key)

    def __call__(
        self, x: Float[Array, "B S D"], context: AttentionContext, key: jax.Array | None = None
    ) -> Float[Array, "B S D"]:
        """x after this layer."""

        def attend(attention: MultiHeadAttention, x: Float[Array, "B S D"]) -> Array:
            query, own = attention.project(x, context.position, context.positions)
            return attention.attend(query, own, context.mask, context.bias, fold(key, 0))

        x = self.attention_residual(x, self.attention, attend, fold(key, 1))
        return self.feed_forward(x, fold(key, 2))


class DecoderLayer(nnx.Module):
    """Masked self-attention, attention over the encoder's output, then feed-forward."""

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        """Each sub-layer has its own key."""
        self_key, cross_key, feed_forward_key = jax.random.split(key, 3)
        self.self_attention = MultiHeadAttention(config, policy, self_key)
        self.self_residual = Residual(config, policy)
        self.cross_attention = MultiHeadAttention(config, policy, cross_key, over_memory=True)
        self.cross_residual = Residual(config, policy)
        self.feed_forward = FeedForwardBlock(config, policy, feed_forward_key)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        context: AttentionContext,
        memory: Memory,
        cache: KVCache | None = None,
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, "B T D"], KVCache | None]:
        """(x after this layer, the cache with its positions).

        With a cache the T positions are the beam's slots at one step, `context.positions` all
        that step, and they attend to the whole cache; without one they attend to each other.
        """

        def attend(attention: MultiHeadAttention, x: Float[Array, "B T D"]) -> Array:
            nonlocal cache
            query, own = attention.project(x, context.position, context.positions)
            if cache is not None:
                cache = cache.write(context.positions[0], own)
            past = own if cache is None else cache
            return attention.attend(query, past, context.mask, context.bias, fold(key, 0))

        def attend_memory(attention: MultiHeadAttention, x: Float[Array, "B T D"]) -> Array:
            query = attention.project_query(x)
            return attention.attend(query, memory.key_value, memory.mask, key=fold(key, 2))

        x = self.self_residual(x, self.self_attention, attend, fold(key, 1))
        x = self.cross_residual(x, self.cross_attention, attend_memory, fold(key, 3))
        return self.feed_forward(x, fold(key, 4)), cache
