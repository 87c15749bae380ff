"""Figure 1: the Transformer, with teacher forcing and in step-by-step decoding."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.config.fields import ModelConfig
from t2t.data.batch import PAD_ID
from t2t.model.attention import Context
from t2t.model.block import Auxiliary, Block, make_embedding_norm, make_final_norm
from t2t.model.compute_policy import Policy
from t2t.model.kv_cache import BlockCache, DecodingCache, KVCache
from t2t.model.layers import Norm, normalize, split
from t2t.model.masks import (
    ancestor_mask,
    causal_mask,
    padding_mask,
    positions_in_segments,
    source_mask,
    source_segment_ids,
    target_segment_ids,
)
from t2t.model.position import Position, make_position
from t2t.model.stack import apply_stack, step_stack
from t2t.model.tables import TableGenerator, Tables


class Encoder(Tables):
    """The left half of figure 1: a stack whose positions all see each other."""

    src_position: Position
    src_embedding_norm: Norm
    encoder: nnx.List[Block]
    encoder_norm: Norm
    scan_layers: bool

    def encode(
        self, src: Int[Array, "B S"], key: jax.Array | None = None
    ) -> tuple[Float[Array, "B S D"], Auxiliary]:
        """Returns the encoder's output, called the memory, and auxiliary losses."""
        embedding_key, key = split(key, 2)
        position, positions = self.src_position, jnp.arange(src.shape[1])
        position.check_length(src.shape[1])
        segments = source_segment_ids(src)
        bias = position.bias(positions, positions)
        context = Context(
            source_mask(segments, src), position, positions, bias, is_token=src != PAD_ID
        )
        x = position.add(self.embed_src(src), positions_in_segments(segments))
        x = normalize(self.src_embedding_norm, x)
        x = self.policy.operations.dropout(x, self.dropout_rate, embedding_key)
        x, auxiliary = apply_stack(self.encoder, x, context, key, scanned=self.scan_layers)
        return normalize(self.encoder_norm, x), auxiliary


class Transformer(Encoder, TableGenerator):
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
        self.scan_layers = config.scan_layers
        self.src_position = make_position(config, policy, next(keys), causal=False)
        self.tgt_position = make_position(config, policy, next(keys), causal=True)
        self.src_embedding_norm = make_embedding_norm(config, policy)
        self.tgt_embedding_norm = make_embedding_norm(config, policy)
        self.encoder = nnx.List(Block(config, policy, next(keys)) for _ in range(encoder_depth))
        self.decoder = nnx.List(
            Block(config, policy, next(keys), over_memory=True, causal=True)
            for _ in range(decoder_depth)
        )
        self.encoder_norm = make_final_norm(config, policy)
        self.decoder_norm = make_final_norm(config, policy)

    def compute_hidden(
        self, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"], key: jax.Array | None = None
    ) -> tuple[Float[Array, "B T D"], Auxiliary]:
        """Returns the decoder's output under teacher forcing, and auxiliary losses."""
        encoder_key, decoder_key = split(key, 2)
        memory, of_encoder = self.encode(src, encoder_key)
        hidden, of_decoder = self.decode(tgt_in, memory, src, decoder_key)
        return hidden, jax.tree.map(jnp.add, of_encoder, of_decoder)

    def decode(
        self,
        tgt_in: Int[Array, "B T"],
        memory: Float[Array, "B S D"],
        src: Int[Array, "B S"],
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, "B T D"], Auxiliary]:
        """Returns the decoder's output and auxiliary losses."""
        embedding_key, key = split(key, 2)
        position, positions = self.tgt_position, jnp.arange(tgt_in.shape[1])
        position.check_length(tgt_in.shape[1])
        segments = target_segment_ids(tgt_in)
        bias = position.bias(positions, positions)
        mask, memory_mask = causal_mask(segments), source_mask(segments, src)
        context = Context(mask, position, positions, bias, memory, memory_mask, tgt_in != PAD_ID)
        x = position.add(self.embed_tgt(tgt_in), positions_in_segments(segments))
        x = normalize(self.tgt_embedding_norm, x)
        x = self.policy.operations.dropout(x, self.dropout_rate, embedding_key)
        x, auxiliary = apply_stack(self.decoder, x, context, key, scanned=self.scan_layers)
        return normalize(self.decoder_norm, x), auxiliary

    def init_cache(self, src: Int[Array, "B S"], beam_size: int, max_length: int) -> DecodingCache:
        """Allocates an empty past, and computes the keys and values of the memory."""
        memory, _ = self.encode(src)
        blocks = []
        for block in self.decoder:
            of_memory = KVCache.store(block.cross_attention.project_memory(memory))
            past = KVCache.allocate(of_memory, max_length * beam_size)
            blocks.append(BlockCache(past, of_memory))
        return DecodingCache.start(blocks, src, beam_size, max_length)

    def extend_cache(self, cache: DecodingCache, max_length: int) -> DecodingCache:
        """Returns the cache with capacity for `max_length` steps."""
        return cache.extend(max_length)

    def decode_step(
        self, tokens: Int[Array, "B W"], parents: Int[Array, "B W"], cache: DecodingCache
    ) -> tuple[Float[Array, "B W V"], DecodingCache]:
        """Computes the logits after one more token in each of the W slots of the beam.

        Slot w of sentence b continues the hypothesis that was in slot `parents[b, w]` before. The
        cache is not reordered for this: the W slots are the query positions of one attention over
        the whole cache, and a mask shows each slot only its own ancestors.
        """
        beam, length = cache.ancestors.shape[1:]
        ancestors = cache.follow_parents(parents)
        position, positions = self.tgt_position, jnp.full(beam, cache.step)
        # The cache holds the key of slot w at step l at index l * W + w.
        key_positions = jnp.repeat(jnp.arange(length), beam)
        context = Context(
            ancestor_mask(ancestors, cache.step),
            position,
            positions,
            position.bias(positions, key_positions),
            # In decoding each row of the source is one sentence, so only padding is hidden.
            memory_mask=padding_mask(cache.src),
            write_at=cache.step * beam,
            key_positions=key_positions,
        )
        x = normalize(self.tgt_embedding_norm, position.add(self.embed_tgt(tokens), positions))
        x, blocks = step_stack(self.decoder, x, context, cache.blocks)
        logits = self.compute_logits(normalize(self.decoder_norm, x))
        return logits, cache._replace(blocks=blocks, ancestors=ancestors, step=cache.step + 1)
