"""Figure 1: the Transformer, with teacher forcing and in step-by-step decoding."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.config.fields import ModelConfig
from t2t.model.blocks import (
    AttentionContext,
    CrossAttentionContext,
    DecoderLayer,
    EncoderLayer,
    make_final_norm,
)
from t2t.model.compute_policy import Policy
from t2t.model.interface import EncoderDecoder
from t2t.model.kv_cache import KVCache
from t2t.model.layers import split
from t2t.model.masks import (
    ancestor_mask,
    causal_mask,
    padding_mask,
    positions_in_segments,
    source_mask,
    source_segment_ids,
    target_segment_ids,
)
from t2t.model.position import make_position


class DecodingCache(NamedTuple):
    """The state of decoding between steps; the lists have one entry for each decoder layer."""

    past: list[KVCache]  # of self-attention: keys and values of the steps so far
    source: list[KVCache]  # of cross-attention: keys and values of the encoder's output
    src: Int[Array, "B S"]
    ancestors: Int[Array, "B W L"]  # [b, w, l]: slot that, at step l, held what slot w holds now
    step: Int[Array, ""]  # steps done


class Transformer(EncoderDecoder):
    """The Transformer of figure 1."""

    def __init__(
        self,
        config: ModelConfig,
        policy: Policy,
        src_vocab_size: int,
        tgt_vocab_size: int,
        key: jax.Array,
    ):
        """Draws the parameters with `key`; they do not depend on the mesh."""
        encoder_depth, decoder_depth = config.depth
        keys = iter(jax.random.split(key, encoder_depth + decoder_depth + 5))
        super().__init__(config, policy, src_vocab_size, tgt_vocab_size, keys)
        self.dropout_rate = config.dropout
        self.src_position = make_position(config, policy, next(keys), causal=False)
        self.tgt_position = make_position(config, policy, next(keys), causal=True)
        self.encoder = nnx.List(
            EncoderLayer(config, policy, next(keys)) for _ in range(encoder_depth)
        )
        self.decoder = nnx.List(
            DecoderLayer(config, policy, next(keys)) for _ in range(decoder_depth)
        )
        self.encoder_norm = make_final_norm(config, policy)
        self.decoder_norm = make_final_norm(config, policy)

    def encode(self, src: Int[Array, "B S"], key: jax.Array | None = None) -> Float[Array, "B S D"]:
        """Computes the encoder's output, called the memory."""
        dropout = self.policy.operations.dropout
        position, positions = self.src_position, jnp.arange(src.shape[1])
        position.check_length(src.shape[1])
        segments = source_segment_ids(src)
        bias = position.bias(positions, positions)
        context = AttentionContext(source_mask(segments, src), position, positions, bias)
        x = position.add(self.embed_src(src), positions_in_segments(segments))
        embedding_key, keys = split_keys(key, len(self.encoder), EncoderLayer.NUM_DROPOUT_KEYS)
        x = dropout(x, self.dropout_rate, embedding_key)
        for layer, layer_keys in zip(self.encoder, keys, strict=True):
            x = layer(x, context, layer_keys)
        return self.encoder_norm(x)

    def decode(
        self,
        tgt_in: Int[Array, "B T"],
        memory: Float[Array, "B S D"],
        src: Int[Array, "B S"],
        key: jax.Array | None = None,
    ) -> Float[Array, "B T D"]:
        """Computes the decoder's output; a position depends only on target tokens up to it."""
        dropout = self.policy.operations.dropout
        position, positions = self.tgt_position, jnp.arange(tgt_in.shape[1])
        position.check_length(tgt_in.shape[1])
        segments = target_segment_ids(tgt_in)
        bias = position.bias(positions, positions)
        context = AttentionContext(causal_mask(segments), position, positions, bias)
        x = position.add(self.embed_tgt(tgt_in), positions_in_segments(segments))
        embedding_key, keys = split_keys(key, len(self.decoder), DecoderLayer.NUM_DROPOUT_KEYS)
        x = dropout(x, self.dropout_rate, embedding_key)
        for layer, layer_keys in zip(self.decoder, keys, strict=True):
            # `order_gradients` saves memory in the backward pass (see `Policy`). `Residual` calls
            # it for its sub-layer; keys and values of the memory are computed outside of that.
            attention, memory = self.policy.order_gradients(layer.cross_attention, memory)
            source = CrossAttentionContext(
                attention.project_memory(memory), source_mask(segments, src)
            )
            x, _ = layer(x, context, source, keys=layer_keys)
        return self.decoder_norm(x)

    def init_cache(
        self,
        memory: Float[Array, "B S D"],
        src: Int[Array, "B S"],
        beam_size: int,
        max_length: int,
    ) -> DecodingCache:
        """Allocates an empty past, and computes the keys and values of the memory."""
        source = [
            KVCache.store(layer.cross_attention.project_memory(memory)) for layer in self.decoder
        ]
        first_token = src[:, :1, None]  # its `zeros_like` is sharded over the batch, as `src` is
        return DecodingCache(
            past=[KVCache.allocate(kv, max_length * beam_size) for kv in source],
            source=source,
            src=src,
            ancestors=jnp.tile(jnp.zeros_like(first_token), (1, beam_size, max_length)),
            step=jnp.zeros((), jnp.int32),
        )

    def extend_cache(self, cache: DecodingCache, max_length: int) -> DecodingCache:
        """Returns the cache with capacity for `max_length` steps."""
        beam_size, length = cache.ancestors.shape[1:]
        return cache._replace(
            past=[past.extend(max_length * beam_size) for past in cache.past],
            ancestors=jnp.pad(cache.ancestors, ((0, 0), (0, 0), (0, max_length - length))),
        )

    def decode_step(
        self, tokens: Int[Array, "B W"], parents: Int[Array, "B W"], cache: DecodingCache
    ) -> tuple[Float[Array, "B W V"], DecodingCache]:
        """Computes the logits after one more token in each of the W slots of the beam.

        Slot w of sentence b continues the hypothesis that was in slot `parents[b, w]` before. The
        cache is not reordered for this: the W slots are the query positions of one attention over
        the whole cache, and a mask shows each slot only its own ancestors.
        """
        beam, length = cache.ancestors.shape[1:]
        ancestors = jnp.take_along_axis(cache.ancestors, parents[:, :, None], axis=1)
        # In this step each slot holds its own hypothesis.
        is_this_step = jnp.arange(length) == cache.step
        ancestors = jnp.where(is_this_step, jnp.arange(beam)[:, None], ancestors)
        position, positions = self.tgt_position, jnp.full(beam, cache.step)
        # The cache holds the key of slot w at step l at index l * W + w.
        key_positions = jnp.repeat(jnp.arange(length), beam)
        bias = position.bias(positions, key_positions)
        mask = ancestor_mask(ancestors, cache.step)
        context = AttentionContext(mask, position, positions, bias)
        x = position.add(self.embed_tgt(tokens), positions)
        past = []
        for layer, key_value, layer_past in zip(
            self.decoder, cache.source, cache.past, strict=True
        ):
            # In decoding each row of the source is one sentence, so only padding is hidden.
            source = CrossAttentionContext(key_value, padding_mask(cache.src))
            x, written = layer(x, context, source, layer_past)
            assert written is not None
            past.append(written)
        return self.compute_logits(self.decoder_norm(x)), cache._replace(
            past=past, ancestors=ancestors, step=cache.step + 1
        )


def split_keys(
    key: jax.Array | None, num_layers: int, num_keys: int
) -> tuple[jax.Array | None, list[list[jax.Array | None]]]:
    """Splits a stack's key into one for its embeddings and `num_keys` for each layer."""
    embedding_key, *keys = split(key, 1 + num_layers * num_keys)
    return embedding_key, [keys[i : i + num_keys] for i in range(0, len(keys), num_keys)]
