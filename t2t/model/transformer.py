"""The Transformer: encoder and decoder, in training and step by step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.config.fields import ModelConfig
from t2t.model.attention import KVCache
from t2t.model.dropout import dropout, fold
from t2t.model.interface import EncoderDecoder
from t2t.model.masks import (
    ancestor_mask,
    causal_mask,
    count_positions,
    number_sources,
    number_targets,
    padding_mask,
    source_mask,
)
from t2t.model.position import make_position
from t2t.model.transformer_layers import (
    DecoderLayer,
    EncoderLayer,
    make_final_norm,
    prompt_gradients,
)


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
        self, config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int, key: jax.Array
    ):
        """Parameters by `key`, the same on any mesh."""
        encoder_depth, decoder_depth = config.depth
        keys = iter(jax.random.split(key, encoder_depth + decoder_depth + 5))
        super().__init__(config, src_vocab_size, tgt_vocab_size, keys)
        self.dropout_rate = config.dropout
        self.src_position = make_position(config, next(keys), causal=False)
        self.tgt_position = make_position(config, next(keys), causal=True)
        self.encoder = nnx.List(EncoderLayer(config, next(keys)) for _ in range(encoder_depth))
        self.decoder = nnx.List(DecoderLayer(config, next(keys)) for _ in range(decoder_depth))
        self.encoder_norm = make_final_norm(config)
        self.decoder_norm = make_final_norm(config)

    def encode(self, src: Int[Array, "B S"], key: jax.Array | None = None) -> Float[Array, "B S D"]:
        """The memory of a batch of source sentences."""
        position, positions = self.src_position, jnp.arange(src.shape[1])
        numbers = number_sources(src)
        mask, bias = source_mask(numbers, src), position.bias(positions, positions)
        x = position.add(self.embed_src(src), count_positions(numbers))
        x = dropout(x, self.dropout_rate, fold(key, 0))
        for number, layer in enumerate(self.encoder, start=1):
            x = layer(x, mask, position, positions, bias, fold(key, number))
        return self.encoder_norm(x)

    def decode(
        self,
        tgt_in: Int[Array, "B T"],
        memory: Float[Array, "B S D"],
        src: Int[Array, "B S"],
        key: jax.Array | None = None,
    ) -> Float[Array, "B T D"]:
        """The decoder's output at each position, from the tokens up to there."""
        position, positions = self.tgt_position, jnp.arange(tgt_in.shape[1])
        numbers = number_targets(tgt_in)
        mask, bias = causal_mask(numbers), position.bias(positions, positions)
        x = position.add(self.embed_tgt(tgt_in), count_positions(numbers))
        x = dropout(x, self.dropout_rate, fold(key, 0))
        for number, layer in enumerate(self.decoder, start=1):
            projection, memory = prompt_gradients(layer.cross_attention, memory)
            source = projection.project_memory(memory)
            x, _ = layer(
                x,
                source,
                source_mask(numbers, src),
                mask,
                position,
                positions,
                bias,
                None,
                fold(key, number),
            )
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
            KVCache.arrange(layer.cross_attention.project_memory(memory)) for layer in self.decoder
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
        mask = ancestor_mask(ancestors, cache.step)
        bias = position.bias(positions, jnp.repeat(jnp.arange(length), beam))
        x = position.add(self.embed_tgt(tokens), positions)
        past = []
        for layer, source, before in zip(self.decoder, cache.memory, cache.past, strict=True):
            x, after = layer(
                x, source, padding_mask(cache.src), mask, position, positions, bias, before
            )
            assert after is not None
            past.append(after)
        return self.compute_logits(self.decoder_norm(x)), cache._replace(
            past=past, ancestors=ancestors, step=cache.step + 1
        )
