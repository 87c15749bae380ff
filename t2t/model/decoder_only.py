"""Decoder-only models: source and target in one sequence, through one stack.

The source is a prefix whose tokens see each other ("prefix LM", Raffel et al. 2020, section 3.2.1).
A target token sees the prefix and the target tokens before it, and only targets have a loss. With
`model.prefix=False` a source token, too, sees only those before it (causal LM). Of text alone the
source is the empty sentence, EOS by itself, so both are the same.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.config.fields import ModelConfig
from t2t.data.batch import BOS_ID, PAD_ID
from t2t.model.attention import Context
from t2t.model.compute_policy import Policy
from t2t.model.interface import Model, multiplications_per_pair
from t2t.model.kv_cache import BlockCache, DecodingCache, KeyValue, KVCache
from t2t.model.masks import (
    begun_mask,
    count_prefix,
    positions_in_segments,
    prefix_mask,
    source_segment_ids,
    target_segment_ids,
)
from t2t.model.position import make_position
from t2t.model.stack import Auxiliary, Block, Shared, Stack, make_outer_norms


class DecoderOnly(Model):
    """A prefix language model; the source and the target have a table each if they are not tied."""

    decoder_parts = "position", "embedding_norm", "decoder", "decoder_norm"

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
        random_keys = iter(jax.random.split(key, depth + 4))
        super().__init__(config, policy, src_vocab_size, tgt_vocab_size, random_keys)
        self.scan_layers = config.scan_layers
        self.is_causal = not config.prefix  # else a query in the prefix sees keys to its right
        self.position = make_position(config, policy, next(random_keys), causal=self.is_causal)
        self.embedding_norm, self.decoder_norm = make_outer_norms(config, policy)
        self.decoder = nnx.List(Block(config, policy, next(random_keys)) for _ in range(depth))

    @property
    def decoder_stack(self) -> Stack:
        """The only stack, of source and target."""
        return Stack(
            self.policy, self.position, self.embedding_norm, self.decoder, self.decoder_norm,
            self.dropout_rate, self.scan_layers,
        )  # fmt: skip

    def compute_hidden(
        self, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"], key: jax.Array | None = None
    ) -> tuple[Float[Array, "B T D"], Auxiliary]:
        """Returns the stack's output at the target positions, and auxiliary losses.

        Each row is its S source positions, then its T target positions. Of packed sentences, the
        segments with the same number on both sides belong together.
        """
        of_src, of_tgt = source_segment_ids(src), target_segment_ids(tgt_in)
        tgt_positions = count_prefix(src, of_tgt) + positions_in_segments(of_tgt)
        positions = jnp.concatenate([positions_in_segments(of_src), tgt_positions], axis=1)
        x, auxiliary = self.decoder_stack(
            jnp.concatenate([self.embed_src(src), self.embed_tgt(tgt_in)], axis=1),
            positions,
            prefix_mask(src, of_tgt, causal=self.is_causal),
            key,
            in_attention=positions,
            is_token=jnp.concatenate([src, tgt_in], axis=1) != PAD_ID,
            causal=self.is_causal,
        )
        return x[:, src.shape[1] :], auxiliary

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
        x, blocks = Shared((self.decoder_stack.begin(embedded, positions),)), []
        for block in self.decoder:
            x, of_source, _ = block(x, context)
            assert isinstance(of_source, KeyValue)  # without a cache
            blocks.append(BlockCache(KVCache.store(of_source).extend(beam_size * max_length)))
        return DecodingCache.start(blocks, src, beam_size, max_length)

    def decode_step(
        self, tokens: Int[Array, "B W"], parents: Int[Array, "B W"], cache: DecodingCache
    ) -> tuple[Float[Array, "B W V"], DecodingCache]:
        """Computes the logits after one more token in each of the W slots of the beam."""
        x, cache = self.decoder_stack.step(self.embed_tgt(tokens), parents, cache)
        return self.compute_logits(x), cache

    @classmethod
    def find_side(cls, name: str) -> str:
        """Returns what a weight of this name multiplies."""
        del name
        return "token"

    @classmethod
    def count_attention(
        cls, config: ModelConfig, src: Int[np.ndarray, "B"], tgt: Int[np.ndarray, "B"]
    ) -> int:
        """Returns the multiplications of attention, for pairs of these lengths."""
        pairs = config.depth[1] * int((src + tgt) @ (src + tgt))
        return multiplications_per_pair(config) * pairs

    @classmethod
    def count_sequential(cls, config: ModelConfig, src_length: int, tgt_length: int) -> int:
        """Returns the operations that follow each other: one for each sub-layer."""
        del src_length, tgt_length
        sub_layers = 1 + (config.feed_forward != "none")
        return config.depth[1] * sub_layers
