"""The Transformer: embeddings, encoder, decoder, logits; in training and step by step.

`init_transformer` gives the pure pair (structure, parameters) that all other rooms work with.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.config import ModelConfig
from t2t.model.attention import KeyValue, KVCache
from t2t.model.blocks import DecoderLayer, EncoderLayer, fold, make_final_norm
from t2t.model.dropout import dropout
from t2t.model.layers import Embedding
from t2t.model.masks import ancestor_mask, causal_mask, padding_mask
from t2t.model.position import make_position
from t2t.sharding import platform

Params = dict[str, Any]  # nested, float32 leaves


class DecodingCache(NamedTuple):
    """What decoding keeps between steps."""

    past: list[KVCache]  # a layer's own keys and values
    memory: list[KeyValue]  # a layer's keys and values of the source
    src: Int[Array, "B S"]
    ancestors: Int[Array, "B W L"]  # slot that each slot's hypothesis was in, at each step
    step: Int[Array, ""]


class Transformer(nnx.Module):
    """Figure 1."""

    def __init__(
        self, config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int, key: jax.Array
    ):
        """Parameters by `key`, the same on any mesh."""
        encoder_depth, decoder_depth = config.depth
        self.dropout_rate = config.dropout
        self.dtype = compute_dtype(config.dtype)
        self.tie_embeddings = config.tie_embeddings
        keys = iter(jax.random.split(key, encoder_depth + decoder_depth + 5))
        self.tgt_embedding = Embedding(tgt_vocab_size, config.d_model, next(keys))
        if config.tie_embeddings != "all":
            self.src_embedding = Embedding(src_vocab_size, config.d_model, next(keys))
        if config.tie_embeddings == "none":
            self.own_output_embedding = Embedding(tgt_vocab_size, config.d_model, next(keys))
        self.src_position = make_position(config, next(keys), causal=False)
        self.tgt_position = make_position(config, next(keys), causal=True)
        self.encoder = nnx.List(EncoderLayer(config, next(keys)) for _ in range(encoder_depth))
        self.decoder = nnx.List(DecoderLayer(config, next(keys)) for _ in range(decoder_depth))
        self.encoder_norm = make_final_norm(config)
        self.decoder_norm = make_final_norm(config)

    def encode(self, src: Int[Array, "B S"], key: jax.Array | None = None) -> Float[Array, "B S D"]:
        """The memory of a batch of source sentences."""
        position, positions = self.src_position, jnp.arange(src.shape[1])
        mask, bias = padding_mask(src), position.bias(positions, positions)
        embedding = self.tgt_embedding if self.tie_embeddings == "all" else self.src_embedding
        x = position.add(embedding.look_up(src, self.dtype), positions)
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
        mask, bias = causal_mask(tgt_in.shape[1]), position.bias(positions, positions)
        x = position.add(self.tgt_embedding.look_up(tgt_in, self.dtype), positions)
        x = dropout(x, self.dropout_rate, fold(key, 0))
        for number, layer in enumerate(self.decoder, start=1):
            source = layer.cross_attention.project_memory(memory)
            x, _ = layer(
                x,
                source,
                padding_mask(src),
                mask,
                position,
                positions,
                bias,
                None,
                fold(key, number),
            )
        return self.decoder_norm(x)

    def __call__(
        self, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"], key: jax.Array | None = None
    ) -> Float[Array, "B T V"]:
        """Logits under teacher forcing; a key switches dropout on."""
        return self.output_embedding.project(self.decode_all(src, tgt_in, key))

    def decode_all(
        self, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"], key: jax.Array | None = None
    ) -> Float[Array, "B T D"]:
        """The decoder's output under teacher forcing."""
        return self.decode(tgt_in, self.encode(src, fold(key, 0)), src, fold(key, 1))

    def init_cache(
        self,
        memory: Float[Array, "B S D"],
        src: Int[Array, "B S"],
        beam_size: int,
        max_length: int,
    ) -> DecodingCache:
        """An empty past, and the memory's keys and values, made once a sentence."""
        source = [layer.cross_attention.project_memory(memory) for layer in self.decoder]
        row = src[:, :1, None]  # carries the batch's sharding into what is allocated here

        def allocate(like: Float[Array, "B S G K"]) -> Float[Array, "B L W G K"]:
            zeros = jnp.zeros_like(like[:, :1, None])
            return jnp.tile(zeros, (1, max_length, beam_size, 1, 1))

        return DecodingCache(
            past=[KVCache(allocate(kv.keys), allocate(kv.values)) for kv in source],
            memory=source,
            src=src,
            ancestors=jnp.tile(jnp.zeros_like(row), (1, beam_size, max_length)),
            step=jnp.zeros((), jnp.int32),
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
        x = position.add(self.tgt_embedding.look_up(tokens, self.dtype), positions)
        past = []
        for layer, source, before in zip(self.decoder, cache.memory, cache.past, strict=True):
            x, after = layer(
                x, source, padding_mask(cache.src), mask, position, positions, bias, before
            )
            assert after is not None
            past.append(after)
        return self.output_embedding.project(self.decoder_norm(x)), cache._replace(
            past=past, ancestors=ancestors, step=cache.step + 1
        )

    @property
    def output_embedding(self) -> Embedding:
        """The table whose rows give the logits."""
        return self.tgt_embedding if self.tie_embeddings != "none" else self.own_output_embedding


def compute_dtype(name: str) -> jnp.dtype:
    """`auto` is bfloat16 where the hardware multiplies it faster, float32 on CPU."""
    if name == "auto":
        name = "float32" if platform() == "cpu" else "bfloat16"
    return jnp.dtype(name)


def init_transformer(
    config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int, key: jax.Array
) -> tuple[nnx.GraphDef[Transformer], Params]:
    """The model's structure, and its parameters, each created in its own sharding."""
    structure = None

    @jax.jit
    def init(key: jax.Array) -> Params:
        nonlocal structure
        structure, state = nnx.split(Transformer(config, src_vocab_size, tgt_vocab_size, key))
        return nnx.to_pure_dict(state)

    params = init(key)
    assert structure is not None
    return structure, params


def merge(structure: nnx.GraphDef[Transformer], params: Params) -> Transformer:
    """The model with these parameters, to be called inside a pure function."""
    return nnx.merge(structure, nnx.State(params))
