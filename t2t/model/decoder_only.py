"""Decoder-only models: source and target in one sequence, through one stack.

The source is a prefix whose tokens see each other ("prefix LM", Raffel et al. 2020, section 3.2.1).
A target token sees the prefix and the target tokens before it, and only targets have a loss. With
`model.prefix=False` a source token, too, sees only those before it (causal LM). Of text alone the
source is the empty sentence, EOS by itself, so both are the same.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.config.fields import ModelConfig
from t2t.data.batch import BOS_ID, PAD_ID
from t2t.model.attention import Context
from t2t.model.block import Auxiliary, Block, make_embedding_norm, make_final_norm
from t2t.model.compute_policy import Policy
from t2t.model.kv_cache import BlockCache, DecodingCache, KeyValue, KVCache
from t2t.model.layers import normalize, split
from t2t.model.masks import (
    ancestor_mask,
    begun_mask,
    count_prefix,
    padding_mask,
    positions_in_segments,
    prefix_mask,
    source_segment_ids,
    target_segment_ids,
)
from t2t.model.position import make_position
from t2t.model.stack import apply_stack, step_stack
from t2t.model.tables import TableGenerator


class DecoderOnly(TableGenerator):
    """A prefix language model; the source and the target have a table each if they are not tied."""

    def __init__(
        self,
        config: ModelConfig,
        policy: Policy,
        src_vocab_size: int,
        tgt_vocab_size: int,
        key: jax.Array,
    ):
        """Draws the parameters with `key`; they do not depend on the mesh."""
        _, depth = config.depth
        keys = iter(jax.random.split(key, depth + 4))
        super().__init__(config, policy, src_vocab_size, tgt_vocab_size, keys)
        self.scan_layers = config.scan_layers
        self.is_causal = not config.prefix  # else a query in the prefix sees keys to its right
        self.position = make_position(config, policy, next(keys), causal=self.is_causal)
        self.embedding_norm = make_embedding_norm(config, policy)
        self.decoder = nnx.List(Block(config, policy, next(keys)) for _ in range(depth))
        self.decoder_norm = make_final_norm(config, policy)

    def compute_hidden(
        self, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"], key: jax.Array | None = None
    ) -> tuple[Float[Array, "B T D"], Auxiliary]:
        """Returns the stack's output at the target positions, and auxiliary losses.

        Each row is its S source positions, then its T target positions. Of packed sentences, the
        segments with the same number on both sides belong together.
        """
        embedding_key, key = split(key, 2)
        of_src, of_tgt = source_segment_ids(src), target_segment_ids(tgt_in)
        tgt_positions = count_prefix(src, of_tgt) + positions_in_segments(of_tgt)
        positions = jnp.concatenate([positions_in_segments(of_src), tgt_positions], axis=1)
        self.position.check_length(positions.shape[1])
        bias = self.position.bias(positions, positions)
        is_token = jnp.concatenate([src, tgt_in], axis=1) != PAD_ID
        mask = prefix_mask(src, of_tgt, causal=self.is_causal)
        context = Context(mask, self.position, positions, bias, is_token=is_token)
        embedded = jnp.concatenate([self.embed_src(src), self.embed_tgt(tgt_in)], axis=1)
        x = normalize(self.embedding_norm, self.position.add(embedded, positions))
        x = self.policy.operations.dropout(x, self.dropout_rate, embedding_key)
        x, auxiliary = apply_stack(self.decoder, x, context, key, scanned=self.scan_layers)
        return normalize(self.decoder_norm, x[:, src.shape[1] :]), auxiliary

    def init_cache(self, src: Int[Array, "B S"], beam_size: int, max_length: int) -> DecodingCache:
        """Computes the keys and values of the source, with room for `max_length` steps.

        A row may go on with the beginning of its target, BOS w1 ... wn; the first step then takes
        the next token instead of BOS. A block's cache holds the keys of the S positions of `src`,
        then those of each step.
        """
        positions = jnp.arange(src.shape[1])
        bias = self.position.bias(positions, positions)
        is_target = jnp.cumsum(src == BOS_ID, axis=1) > 0
        mask = begun_mask(src, is_target, causal=self.is_causal)
        context = Context(mask, self.position, positions, bias)
        embedded = jnp.where(is_target[..., None], self.embed_tgt(src), self.embed_src(src))
        x = normalize(self.embedding_norm, self.position.add(embedded, positions))
        blocks = []
        for block in self.decoder:
            x, of_source, _ = block(x, context)
            assert isinstance(of_source, KeyValue)  # without a cache
            blocks.append(BlockCache(KVCache.store(of_source).extend(beam_size * max_length)))
        return DecodingCache.start(blocks, src, beam_size, max_length)

    def extend_cache(self, cache: DecodingCache, max_length: int) -> DecodingCache:
        """Returns the cache with capacity for `max_length` steps."""
        return cache.extend(max_length)

    def decode_step(
        self, tokens: Int[Array, "B W"], parents: Int[Array, "B W"], cache: DecodingCache
    ) -> tuple[Float[Array, "B W V"], DecodingCache]:
        """Computes the logits after one more token in each of the W slots of the beam."""
        (beam, length), prefix = cache.ancestors.shape[1:], cache.src.shape[1]
        ancestors = cache.follow_parents(parents)
        source_lengths = padding_mask(cache.src).sum(axis=-1)[:, 0]  # B 1
        positions = jnp.broadcast_to(source_lengths + cache.step, tokens.shape)
        # The cache holds the key of slot w at step l at index S + l * W + w.
        past = source_lengths + jnp.repeat(jnp.arange(length), beam)
        of_source = jnp.zeros_like(cache.src) + jnp.arange(prefix)  # sharded as the source is
        key_positions = jnp.concatenate([of_source, past], axis=1)
        seen = ancestor_mask(ancestors, cache.step)
        sees_source = jnp.broadcast_to(padding_mask(cache.src), (*seen.shape[:3], prefix))
        context = Context(
            jnp.concatenate([sees_source, seen], axis=-1),
            self.position,
            positions,
            self.position.bias(positions, key_positions),
            write_at=prefix + cache.step * beam,
            key_positions=key_positions,
        )
        x = normalize(self.embedding_norm, self.position.add(self.embed_tgt(tokens), positions))
        x, blocks = step_stack(self.decoder, x, context, cache.blocks)
        logits = self.compute_logits(normalize(self.decoder_norm, x))
        return logits, cache._replace(blocks=blocks, ancestors=ancestors, step=cache.step + 1)
