"""The residual wrapper, the two kinds of layer, and their stacks (section 3.1)."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2t.config.fields import ModelConfig
from t2t.model.attention import KeyValue, KVCache, MultiHeadAttention
from t2t.model.dropout import dropout, fold
from t2t.model.layers import FeedForward, Norm, make_norm
from t2t.model.position import Position

Sublayer = Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]]
Own = TypeVar("Own", bound=nnx.Module)


def prompt_gradients(module: Own, x: Float[Array, "B T D"]) -> tuple[Own, Float[Array, "B T D"]]:
    """The same; in the backward pass the gradient of x waits for those of the module's weights.

    Else XLA puts the weights' gradients off to the end of the pass, and what they are made of has
    to be kept until then: on a TPU a third of a step's memory.
    """
    structure, params = nnx.split(module)
    params, x = _wait_for_all(params, x)
    return nnx.merge(structure, params), x


@jax.custom_vjp
def _wait_for_all(params: Any, x: Float[Array, "B T D"]) -> tuple[Any, Float[Array, "B T D"]]:
    return params, x


_wait_for_all.defvjp(
    lambda params, x: ((params, x), None),
    lambda _, gradients: jax.lax.optimization_barrier(gradients),
)


class Residual(nnx.Module):
    """Where the norm goes and whether x is added: decided here for all sub-layers.

    post (the paper): norm(x + dropout(f(x))); pre: x + dropout(f(norm(x))).
    """

    def __init__(self, config: ModelConfig):
        """Owns the sub-layer's norm."""
        self.norm = make_norm(config)
        self.placement = config.norm_position
        self.residual = config.residual
        self.dropout_rate = config.dropout

    def __call__(
        self, x: Float[Array, "B T D"], sublayer: Sublayer, key: jax.Array | None
    ) -> Float[Array, "B T D"]:
        """X after the sub-layer."""
        match self.placement:
            case "post":
                return self.norm(self._add(x, dropout(sublayer(x), self.dropout_rate, key)))
            case "pre":
                return self._add(x, dropout(sublayer(self.norm(x)), self.dropout_rate, key))
            case other:
                raise ValueError(f"model.norm_position={other!r} is unknown")

    def _add(self, x: Float[Array, "B T D"], y: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return x + y if self.residual else y


class FeedForwardBlock(nnx.Module):
    """The last sub-layer of every layer, or nothing where it is switched off."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        """Without feed-forward there is nothing to add and nothing to normalise."""
        self.enabled = config.feed_forward != "none"
        if self.enabled:
            self.feed_forward = FeedForward(config, key)
            self.residual = Residual(config)

    def __call__(
        self, x: Float[Array, "B T D"], key: jax.Array | None = None
    ) -> Float[Array, "B T D"]:
        """X after the feed-forward."""
        if not self.enabled:
            return x
        feed_forward, x = prompt_gradients(self.feed_forward, x)
        return self.residual(x, lambda x: feed_forward(x, fold(key, 0)), fold(key, 1))


class EncoderLayer(nnx.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        """Each sub-layer has its own key."""
        attention_key, feed_forward_key = jax.random.split(key)
        self.attention = MultiHeadAttention(config, attention_key)
        self.attention_residual = Residual(config)
        self.feed_forward = FeedForwardBlock(config, feed_forward_key)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        mask: Bool[Array, "B 1 #S S"],
        position: Position,
        positions: Int[Array, "S"],
        bias: Float[Array, "H S S"] | None,
        key: jax.Array | None = None,
    ) -> Float[Array, "B S D"]:
        """X after this layer."""
        attention, x = prompt_gradients(self.attention, x)

        def attend(x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
            query, memory = attention.project(x, position, positions)
            return attention.attend(query, memory, mask, bias, fold(key, 0))

        x = self.attention_residual(x, attend, fold(key, 1))
        return self.feed_forward(x, fold(key, 2))


class DecoderLayer(nnx.Module):
    """Masked self-attention, attention over the encoder's output, then feed-forward."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        """Each sub-layer has its own key."""
        self_key, cross_key, feed_forward_key = jax.random.split(key, 3)
        self.self_attention = MultiHeadAttention(config, self_key)
        self.self_residual = Residual(config)
        self.cross_attention = MultiHeadAttention(config, cross_key, over_memory=True)
        self.cross_residual = Residual(config)
        self.feed_forward = FeedForwardBlock(config, feed_forward_key)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: KeyValue | KVCache,
        memory_mask: Bool[Array, "B 1 #T S"],
        mask: Bool[Array, "#B 1 T L"],
        position: Position,
        positions: Int[Array, "T"],
        bias: Float[Array, "H T L"] | None,
        cache: KVCache | None = None,
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, "B T D"], KVCache | None]:
        """X after this layer.

        With a cache the T positions are the beam's slots at one step, `positions` all that step,
        and they attend to the whole cache; without one they attend to each other.
        """
        self_attention, x = prompt_gradients(self.self_attention, x)

        def attend_self(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
            nonlocal cache
            query, own = self_attention.project(x, position, positions)
            if cache is not None:
                cache = cache.write(positions[0], own)
            past = own if cache is None else cache
            return self_attention.attend(query, past, mask, bias, fold(key, 0))

        x = self.self_residual(x, attend_self, fold(key, 1))
        cross_attention, x = prompt_gradients(self.cross_attention, x)

        def attend_memory(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
            query = cross_attention.project_query(x)
            return cross_attention.attend(query, memory, memory_mask, key=fold(key, 2))

        x = self.cross_residual(x, attend_memory, fold(key, 3))
        return self.feed_forward(x, fold(key, 4)), cache


def make_final_norm(config: ModelConfig) -> Norm:
    """Pre-norm leaves the stack's output unnormalised, so one more norm ends it."""
    return make_norm(config) if config.norm_position == "pre" else Norm()
