"""Section 3.1: one layer of the encoder and one layer of the decoder.

Each sub-layer has a residual connection and a norm around it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, cast

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2t.config.fields import ModelConfig
from t2t.model.attention import MultiHeadAttention
from t2t.model.compute_policy import Policy
from t2t.model.kv_cache import KeyValue, KVCache
from t2t.model.layers import FeedForward, Identity, Norm, make_feed_forward, make_norm
from t2t.model.position import Position

Module = TypeVar("Module", bound=nnx.Module)
Apply = Callable[[Module, Float[Array, "B T D"]], Float[Array, "B T D"]]


class Residual(nnx.Module):
    """Applies dropout, residual connection and norm around a sub-layer.

    With model.norm_position=post (the paper) it computes norm(x + dropout(sublayer(x))), with pre
    it computes x + dropout(sublayer(norm(x))). With model.residual=False it leaves out "x +".
    """

    def __init__(self, config: ModelConfig, policy: Policy):
        """Creates the norm; the sub-layer is an argument of `__call__`."""
        self.policy = policy
        self.norm = make_norm(config, policy)
        self.norm_position = config.norm_position
        self.residual = config.residual
        self.dropout_rate = config.dropout

    def __call__(
        self,
        x: Float[Array, "B T D"],
        sublayer: Module,
        apply: Apply[Module],
        key: jax.Array | None,
    ) -> Float[Array, "B T D"]:
        """Applies the sub-layer, apply(sublayer, x), with dropout, residual connection and norm.

        The module `sublayer` is an argument of its own, because `order_gradients`, which saves
        memory in the backward pass (see `Policy`), needs its parameters.
        """
        sublayer, x = self.policy.order_gradients(sublayer, x)

        def sublayer_output(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
            y = apply(sublayer, x)
            return self.policy.operations.dropout(y, self.dropout_rate, key)

        match self.norm_position:
            case "post":
                return self.norm(self._add(x, sublayer_output(x)))
            case "pre":
                return self._add(x, sublayer_output(self.norm(x)))
            case other:
                raise ValueError(f"model.norm_position={other!r} is unknown")

    def _add(self, x: Float[Array, "B T D"], y: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return x + y if self.residual else y


def make_final_norm(config: ModelConfig, policy: Policy) -> Norm:
    """Creates the norm after the last layer of a stack, which only pre-norm needs."""
    return make_norm(config, policy) if config.norm_position == "pre" else Identity()


# PRNG keys of a layer's dropout, in the order in which its `__call__` unpacks them; all None in
# evaluation.
DropoutKeys = Sequence[jax.Array | None]


class AttentionContext(NamedTuple):
    """Inputs of self-attention that all layers of a stack share.

    In shapes, S is the number of keys: T in training; in decoding L * W, the size of the cache.
    """

    mask: Bool[Array, "#B 1 #T S"]
    position: Position
    positions: Int[Array, "T"]  # of the queries in their row; in decoding, each is the current step
    bias: Float[Array, "H T S"] | None  # `position.bias`, added to the attention logits


class CrossAttentionContext(NamedTuple):
    """Inputs of a decoder layer's attention over the encoder's output."""

    key_value: KeyValue | KVCache  # this layer's projections of the encoder's output
    mask: Bool[Array, "B 1 #T S"]


class FeedForwardBlock(nnx.Module):
    """The feed-forward sub-layer with its residual connection and norm.

    With model.feed_forward=none it is the identity, without residual connection and norm.
    """

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        """Creates the feed-forward that `model.feed_forward` names."""
        feed_forward = make_feed_forward(config, policy, key)
        self.enabled = feed_forward is not None
        if feed_forward is not None:
            self.feed_forward = cast(FeedForward, feed_forward)
            self.residual = Residual(config, policy)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        inner_key: jax.Array | None,
        residual_key: jax.Array | None,
    ) -> Float[Array, "B T D"]:
        """Applies the sub-layer."""
        if not self.enabled:
            return x
        return self.residual(x, self.feed_forward, lambda f, x: f(x, inner_key), residual_key)


class EncoderLayer(nnx.Module):
    """Self-attention, then feed-forward."""

    NUM_DROPOUT_KEYS = 4

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        """Creates the two sub-layers."""
        attention_key, feed_forward_key = jax.random.split(key)
        self.attention = MultiHeadAttention(config, policy, attention_key)
        self.attention_residual = Residual(config, policy)
        self.feed_forward = FeedForwardBlock(config, policy, feed_forward_key)

    def __call__(
        self, x: Float[Array, "B S D"], context: AttentionContext, keys: DropoutKeys
    ) -> Float[Array, "B S D"]:
        """Applies the layer."""
        weights_key, attention_key, *feed_forward_keys = keys

        def attend(attention: MultiHeadAttention, x: Float[Array, "B S D"]) -> Array:
            query, key_value = attention.project(x, context.position, context.positions)
            return attention.attend(query, key_value, context.mask, context.bias, weights_key)

        x = self.attention_residual(x, self.attention, attend, attention_key)
        return self.feed_forward(x, *feed_forward_keys)


class DecoderLayer(nnx.Module):
    """Masked self-attention, attention over the encoder's output, then feed-forward."""

    NUM_DROPOUT_KEYS = 6

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        """Creates the three sub-layers."""
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
        source: CrossAttentionContext,
        cache: KVCache | None = None,
        keys: DropoutKeys = (None,) * NUM_DROPOUT_KEYS,
    ) -> tuple[Float[Array, "B T D"], KVCache | None]:
        """Applies the layer; returns (output, cache).

        Without a cache, the T positions attend to each other. With a cache (decoding), they are the
        beam's slots at one step; their keys and values are written to the cache, and they attend to
        the whole cache.
        """
        self_weights_key, self_key, cross_weights_key, cross_key, *feed_forward_keys = keys

        def attend(attention: MultiHeadAttention, x: Float[Array, "B T D"]) -> Array:
            nonlocal cache
            query, new = attention.project(x, context.position, context.positions)
            if cache is not None:  # then each of the positions is the current step
                cache = cache.write(context.positions[0], new)
            key_value = new if cache is None else cache
            return attention.attend(query, key_value, context.mask, context.bias, self_weights_key)

        def attend_to_source(attention: MultiHeadAttention, x: Float[Array, "B T D"]) -> Array:
            query = attention.project_query(x)
            return attention.attend(query, source.key_value, source.mask, key=cross_weights_key)

        x = self.self_residual(x, self.self_attention, attend, self_key)
        x = self.cross_residual(x, self.cross_attention, attend_to_source, cross_key)
        return self.feed_forward(x, *feed_forward_keys), cache
