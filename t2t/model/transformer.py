"""Figure 1: the Transformer, in training and step by step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.config.fields import ModelConfig
from t2t.model.compute_policy import Policy
from t2t.model.dropout import fold
from t2t.model.interface import EncoderDecoder
from t2t.model.kv_cache import KVCache
from t2t.model.masks import (
    ancestor_mask,
    causal_mask,
    count_positions,
    padding_mask,
    source_mask,
    source_segment_ids,
    target_segment_ids,
)
from t2t.model.position import make_position
from t2t.model.residual import make_final_norm
from t2t.model.transformer_layers import AttentionContext, DecoderLayer, EncoderLayer, Memory


class DecodingCache(NamedTuple):
    """What decoding keeps between steps."""

    past: list[KVCache]  # a layer's own keys and values
    memory: list[KVCache]  # a layer's keys and values of the source
    src: Int[Array, "B S"]
    ancestors: Int[Array, "B W L"]  # slot that each slot's hypothesis was in, at each step
    step: Int[Array, ""]


class Transformer(EncoderDecoder):
    """Figure 1."""

    def __init__(
        self,
        config: ModelConfig,
        policy: Policy,
        src_vocab_size: int,
        tgt_vocab_size: int,
        key: jax.Array,
    ):
        """Parameters by `key`, the same on any mesh."""
        encoder_depth, decoder_depth = config.depth
        keys = iter(jax.random.split(key, encoder_depth + decoder_depth + 5))
        super().__init__(config, policy, src_vocab_size, tgt_vocab_size, keys)
        self.dropout_rate = config.dropout
        self.src_position = make_position(config, next(keys), causal=False)
        self.tgt_position = make_position(config, next(keys), causal=True)
        self.encoder = nnx.List(
            EncoderLayer(config, policy, next(keys)) for _ in range(encoder_depth)
        )
        self.decoder = nnx.List(
            DecoderLayer(config, policy, next(keys)) for _ in range(decoder_depth)
        )
        self.encoder_norm = make_final_norm(config, policy)
        self.decoder_norm = make_final_norm(config, policy)

    def encode(self, src: Int[Array, "B S"], key: jax.Array | None = None) -> Float[Array, "B S D"]:
        """The memory of a batch of source sentences."""
        dropout = self.policy.operations.dropout
        position, positions = self.src_position, jnp.arange(src.shape[1])
        segments = source_segment_ids(src)
        bias = position.bias(positions, positions)
        context = AttentionContext(source_mask(segments, src), position, positions, bias)
        x = position.add(self.embed_src(src), count_positions(segments))
        x = dropout(x, self.dropout_rate, fold(key, 0))
        for number, layer in enumerate(self.encoder, start=1):
            x = layer(x, context, fold(key, number))
        return self.encoder_norm(x)

    def decode(
        self,
        tgt_in: Int[Array, "B T"],
        memory: Float[Array, "B S D"],
        src: Int[Array, "B S"],
        key: jax.Array | None = None,
    ) -> Float[Array, "B T D"]:
        """The decoder's output at each position, from the tokens up to there."""
        dropout = self.policy.operations.dropout
        position, positions = self.tgt_position, jnp.arange(tgt_in.shape[1])
        segments = target_segment_ids(tgt_in)
        bias = position.bias(positions, positions)
        context = AttentionContext(causal_mask(segments), position, positions, bias)
        x = position.add(self.embed_tgt(tgt_in), count_positions(segments))
        x = dropout(x, self.dropout_rate, fold(key, 0))
        for number, layer in enumerate(self.decoder, start=1):
            attention, memory = self.policy.order_gradients(layer.cross_attention, memory)
            source = Memory(attention.project_memory(memory), source_mask(segments, src))
            x, _ = layer(x, context, source, key=fold(key, number))
        return self.decoder_norm(x)

    def init_cache(
        self,
        memory: Float[Array, "B S D"],
        src: Int[Array, "B S"],
        beam_size: int,
        max_length: int,
    ) -> DecodingCache:
        """An empty past, and the memory's keys and values, made once a sentence."""
        source = [
            KVCache.store(layer.cross_attention.project_memory(memory)) for layer in self.decoder
        ]
        row = src[:, :1, None]  # carries the batch's sharding into what is allocated here
        return DecodingCache(
            past=[KVCache.allocate(kv, max_length * beam_size) for kv in source],
            memory=source,
            src=src,
            ancestors=jnp.tile(jnp.zeros_like(row), (1, beam_size, max_length)),
            step=jnp.zeros((), jnp.int32),
        )

    def extend_cache(self, cache: DecodingCache, max_length: int) -> DecodingCache:
        """The same with room for `max_length` steps."""
        beam_size, length = cache.ancestors.shape[1:]
        return cache._replace(
            past=[past.extend(max_length * beam_size) for past in cache.past],
            ancestors=jnp.pad(cache.ancestors, ((0, 0), (0, 0), (0, max_length - length))),
        )

    def decode_step(
        self, tokens: Int[Array, "B W"], parents: Int[Array, "B W"], cache: DecodingCache
    ) -> tuple[Float[Array, "B W V"], DecodingCache]:
        """Logits after one more token in each slot.

        `parents[b, w]` is the slot whose hypothesis slot w continues. Nothing is moved for it:
        the beam's slots are the query positions of one attention over the whole cache, in which
        each slot sees its own ancestors only.
        """
        beam, length = cache.ancestors.shape[1:]
        ancestors = jnp.take_along_axis(cache.ancestors, parents[:, :, None], axis=1)
        own = jnp.arange(beam)[:, None]
        ancestors = jnp.where(jnp.arange(length) == cache.step, own, ancestors)
        position, positions = self.tgt_position, jnp.full(beam, cache.step)
        bias = position.bias(positions, jnp.repeat(jnp.arange(length), beam))
        mask = ancestor_mask(ancestors, cache.step)
        context = AttentionContext(mask, position, positions, bias)
        x = position.add(self.embed_tgt(tokens), positions)
        past = []
        for layer, source, before in zip(self.decoder, cache.memory, cache.past, strict=True):
            x, after = layer(x, context, Memory(source, padding_mask(cache.src)), before)
            assert after is not None
            past.append(after)
        return self.compute_logits(self.decoder_norm(x)), cache._replace(
            past=past, ancestors=ancestors, step=cache.step + 1
        )
