"""Figure 1: the Transformer, with teacher forcing and in step-by-step decoding."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.config.fields import ModelConfig
from t2t.data.batch import PAD_ID
from t2t.model.compute_policy import Policy
from t2t.model.interface import Model, multiplications_per_pair
from t2t.model.kv_cache import BlockCache, DecodingCache, KVCache
from t2t.model.layers import split
from t2t.model.masks import causal_mask, positions_in_segments, source_mask, target_segment_ids
from t2t.model.position import make_position
from t2t.model.stack import Auxiliary, Block, Stack, make_outer_norms


class Transformer(Model):
    """The Transformer of figure 1."""

    encoder_parts = "src_position", "src_embedding_norm", "encoder", "encoder_norm"
    decoder_parts = "tgt_position", "tgt_embedding_norm", "decoder", "decoder_norm"

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
        random_keys = iter(jax.random.split(key, encoder_depth + decoder_depth + 5))
        super().__init__(config, policy, src_vocab_size, tgt_vocab_size, random_keys)
        self.scan_layers = config.scan_layers
        self.src_position = make_position(config, policy, next(random_keys), causal=False)
        self.tgt_position = make_position(config, policy, next(random_keys), causal=True)
        self.src_embedding_norm, self.encoder_norm = make_outer_norms(config, policy)
        self.tgt_embedding_norm, self.decoder_norm = make_outer_norms(config, policy)
        self.encoder = nnx.List(
            Block(config, policy, next(random_keys)) for _ in range(encoder_depth)
        )
        self.decoder = nnx.List(
            Block(config, policy, next(random_keys), over_memory=True, causal=True)
            for _ in range(decoder_depth)
        )

    def compute_hidden(
        self, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"], key: jax.Array | None = None
    ) -> tuple[Float[Array, "B T D"], Auxiliary]:
        """Returns the decoder's output under teacher forcing, and auxiliary losses."""
        encoder_key, decoder_key = split(key, 2)
        memory, of_encoder = self.encode(src, encoder_key)
        hidden, of_decoder = self.decode(tgt_in, memory, src, decoder_key)
        return hidden, jax.tree.map(jnp.add, of_encoder, of_decoder)

    @property
    def encoder_stack(self) -> Stack:
        """The left half of figure 1; all its positions see each other."""
        return Stack(
            self.policy, self.src_position, self.src_embedding_norm, self.encoder,
            self.encoder_norm, self.dropout_rate, self.scan_layers,
        )  # fmt: skip

    @property
    def decoder_stack(self) -> Stack:
        """The right half of figure 1."""
        return Stack(
            self.policy, self.tgt_position, self.tgt_embedding_norm, self.decoder,
            self.decoder_norm, self.dropout_rate, self.scan_layers,
        )  # fmt: skip

    def encode(
        self, src: Int[Array, "B S"], key: jax.Array | None = None
    ) -> tuple[Float[Array, "B S D"], Auxiliary]:
        """Returns the encoder's output, called the memory, and auxiliary losses."""
        return self.encoder_stack.encode(self.embed_src(src), src, key)

    def decode(
        self,
        tgt_in: Int[Array, "B T"],
        memory: Float[Array, "B S D"],
        src: Int[Array, "B S"],
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, "B T D"], Auxiliary]:
        """Returns the decoder's output and auxiliary losses."""
        segments = target_segment_ids(tgt_in)
        return self.decoder_stack(
            self.embed_tgt(tgt_in),
            positions_in_segments(segments),
            causal_mask(segments),
            key,
            memory=memory,
            memory_mask=source_mask(segments, src),
            is_token=tgt_in != PAD_ID,
            causal=True,
        )

    def init_cache(self, src: Int[Array, "B S"], beam_size: int, max_length: int) -> DecodingCache:
        """Allocates an empty cache of the past; computes the keys and values of the memory."""
        memory, _ = self.encode(src)
        blocks = []
        for block in self.decoder:
            of_memory = KVCache.store(block.cross_attention.project_memory(memory))
            past = KVCache.allocate(of_memory, max_length * beam_size)
            blocks.append(BlockCache(past, of_memory))
        return DecodingCache.start(blocks, src, beam_size, max_length)

    def decode_step(
        self, tokens: Int[Array, "B W"], parents: Int[Array, "B W"], cache: DecodingCache
    ) -> tuple[Float[Array, "B W V"], DecodingCache]:
        """Computes the logits after one more token in each of the W slots of the beam."""
        x, cache = self.decoder_stack.step(self.embed_tgt(tokens), parents, cache)
        return self.compute_logits(x), cache

    @classmethod
    def find_side(cls, name: str) -> str:
        """Returns the side, src or tgt, whose tokens a weight of this name multiplies."""
        # The keys and values of cross-attention are computed from source tokens.
        of_memory = name.endswith("cross_attention.key_value.weight")
        return "src" if name.startswith("encoder.") or of_memory else "tgt"

    @classmethod
    def count_attention(
        cls, config: ModelConfig, src: Int[np.ndarray, "B"], tgt: Int[np.ndarray, "B"]
    ) -> int:
        """Returns the multiplications of attention, for pairs of these lengths."""
        encoder_depth, decoder_depth = config.depth
        pairs = encoder_depth * int(src @ src) + decoder_depth * int(tgt @ tgt + src @ tgt)
        return multiplications_per_pair(config) * pairs

    @classmethod
    def count_sequential(cls, config: ModelConfig, src_length: int, tgt_length: int) -> int:
        """Returns the number of operations that wait for each other: one for each sub-layer."""
        del src_length, tgt_length
        sub_layers = 1 + (config.feed_forward != "none")
        encoder_depth, decoder_depth = config.depth
        return encoder_depth * sub_layers + decoder_depth * (1 + sub_layers)
