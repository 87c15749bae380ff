"""Section 3.1: one block of a stack (`stack.py`).

A block is what the paper calls a layer: self-attention, attention over a memory if the stack has
one, and a feed-forward. Each of these sub-layers has a residual connection and a norm around it.
All families of models are stacks of this block (`transformer.py`, `decoder_only.py`,
`encoder_only.py`).
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float

from t2t.config.fields import ModelConfig
from t2t.config.variants import CHOICES, call_variant, check_call
from t2t.model.attention import Context, make_sub_layer
from t2t.model.compute_policy import Policy
from t2t.model.experts import Experts
from t2t.model.kv_cache import BlockCache, KeyValue
from t2t.model.layers import FeedForward, Identity, Norm, is_layer, make_norm, normalize
from t2t.model.position import make_block_position

# What feed-forwards return beside their output, summed over blocks; most return nothing. "loss" is
# added to the loss of each predicted token, so it is a mean over the tokens that the layer sees.
# Other entries are vectors of counts, whose shares of their sum are metrics of training.
Auxiliary = dict[str, Float[Array, "..."]]


class DropoutKeys(NamedTuple):
    """The PRNG keys of a block's dropout, by site; all None in evaluation."""

    self_weights: jax.Array | None = None
    self_output: jax.Array | None = None
    cross_weights: jax.Array | None = None
    cross_output: jax.Array | None = None
    hidden: jax.Array | None = None  # of the feed-forward's hidden layer
    feed_forward_output: jax.Array | None = None


class Residual(nnx.Module):
    """Dropout, residual connection and norm around a sub-layer f.

    With y = f(before(x)), the result of the sub-layer is after(x, y):

        model.norm_position=post (the paper)  norm(x + dropout(f(x)))
        model.norm_position=pre               x + dropout(f(norm(x)))

    With model.residual=False "x +" is left out.
    """

    def __init__(self, config: ModelConfig, policy: Policy):
        """Creates the norm."""
        if config.norm_position not in ("post", "pre"):
            raise ValueError(f"model.norm_position={config.norm_position!r} is unknown")
        self.policy = policy
        self.norm = make_norm(config, policy)
        self.is_pre = config.norm_position == "pre"
        self.residual = config.residual
        self.dropout_rate = config.dropout

    def before(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Returns the input of the sub-layer."""
        return normalize(self.norm, x) if self.is_pre else x

    def after(
        self, x: Float[Array, "B T D"], y: Float[Array, "B T D"], key: jax.Array | None
    ) -> Float[Array, "B T D"]:
        """Returns the result, from the input x and the sub-layer's output y."""
        y = self.policy.operations.dropout(y.astype(x.dtype), self.dropout_rate, key)
        result = x + y if self.residual else y
        return result if self.is_pre else normalize(self.norm, result)


def make_embedding_norm(config: ModelConfig, policy: Policy) -> Norm:
    """Creates the norm before the first block of a stack, of `model.embedding_norm`."""
    return make_norm(config, policy) if config.embedding_norm else Identity()


def make_final_norm(config: ModelConfig, policy: Policy) -> Norm:
    """Creates the norm after the last block of a stack, which only pre-norm needs."""
    return make_norm(config, policy) if config.norm_position == "pre" else Identity()


def make_feed_forward(config: ModelConfig, policy: Policy, key: jax.Array) -> nnx.Module | None:
    """Creates the feed-forward that `model.feed_forward` names, or None for "none"."""
    match config.feed_forward:
        case "none":
            return None
        case "moe":
            return Experts(config, policy, key)
        case own if own in CHOICES["model.feed_forward"]:
            return FeedForward(config, policy, key)
        case other:
            variant: nnx.Module = call_variant(
                "model.feed_forward", other, config, policy, key, is_valid=is_layer
            )
            named = {"is_token": None} if takes_is_token(variant) else {}
            check_call("model.feed_forward", other, variant, None, None, **named)
            return variant


def takes_is_token(feed_forward: Callable[..., Any]) -> bool:
    """Returns whether a feed-forward asks which positions are tokens, as `Experts` does."""
    return "is_token" in inspect.signature(feed_forward).parameters


class FeedForwardBlock(nnx.Module):
    """The feed-forward sub-layer with its residual connection and norm.

    With model.feed_forward=none it is the identity, without residual connection and norm.
    """

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        """Creates the feed-forward that `model.feed_forward` names."""
        feed_forward = make_feed_forward(config, policy, key)
        self.enabled = feed_forward is not None
        if feed_forward is not None:
            self.feed_forward = cast(Callable[..., Any], feed_forward)
            self.takes_is_token = takes_is_token(self.feed_forward)
            self.residual = Residual(config, policy)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        keys: DropoutKeys,
        is_token: Bool[Array, "B T"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Auxiliary]:
        """Applies the sub-layer; auxiliary losses and metrics count only where `is_token`."""
        if not self.enabled:
            return x, {}
        named = {"is_token": is_token} if self.takes_is_token else {}
        result = self.feed_forward(self.residual.before(x), keys.hidden, **named)
        auxiliary: Auxiliary = {}
        y, auxiliary = result if isinstance(result, tuple) else (result, auxiliary)
        return self.residual.after(x, y, keys.feed_forward_output), auxiliary


class Block(nnx.Module):
    """Self-attention, attention over a memory (`over_memory`), then feed-forward."""

    def __init__(
        self,
        config: ModelConfig,
        policy: Policy,
        key: jax.Array,
        *,
        over_memory: bool = False,
        causal: bool = False,
    ):
        """Creates the two or three sub-layers; `causal`: keys never lie right of their query."""
        self_key, cross_key, feed_forward_key = jax.random.split(key, 3)
        self.policy = policy
        self.over_memory = over_memory
        position_key = jax.random.fold_in(key, 3)
        self.own_position: Any = make_block_position(config, position_key, causal=causal)
        self.self_attention = make_sub_layer(config, policy, self_key)
        self.self_residual = Residual(config, policy)
        if over_memory:
            self.cross_attention = make_sub_layer(config, policy, cross_key, over_memory=True)
            self.cross_residual = Residual(config, policy)
        self.feed_forward = FeedForwardBlock(config, policy, feed_forward_key)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        context: Context,
        cache: BlockCache | None = None,
        keys: DropoutKeys = DropoutKeys(),  # noqa: B008 (an immutable tuple)
    ) -> tuple[Float[Array, "B T D"], KeyValue | BlockCache, Auxiliary]:
        """Applies the block; returns (output, cache, auxiliary losses).

        Without a cache, the T positions attend to each other, and their keys and values are
        returned in its place. With a cache (decoding), their keys and values are written to it,
        and they attend to the whole cache.
        """
        x = x.astype(self.policy.dtype)  # a registered position may have added float32 numbers
        if self.own_position is not None:
            keys_at = context.key_positions
            keys_at = context.positions if keys_at is None else keys_at
            context = context._replace(bias=self.own_position.bias(context.positions, keys_at))
        y, written = self.self_attention(
            self.self_residual.before(x), context, cache, keys.self_weights
        )
        assert written is not None  # of cross-attention alone
        x = self.self_residual.after(x, y, keys.self_output)
        if self.over_memory:
            y, _ = self.cross_attention(
                self.cross_residual.before(x), context, cache, keys.cross_weights
            )
            x = self.cross_residual.after(x, y, keys.cross_output)
        x, auxiliary = self.feed_forward(x, keys, context.is_token)
        return x, written, auxiliary
