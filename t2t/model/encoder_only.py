"""Encoder-only models: predict the masked tokens of a sentence (Devlin et al. 2019).

The parameters have the names of a Transformer's encoder, and can start one (`--init_from`).
"""

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2t.config.fields import ModelConfig
from t2t.data.batch import PAD_ID, DeviceBatch
from t2t.model.compute_policy import Policy
from t2t.model.interface import Model, Prediction, multiplications_per_pair
from t2t.model.position import make_position
from t2t.model.stack import Auxiliary, Block, Stack, make_outer_norms


class EncoderOnly(Model):
    """A Transformer's encoder with logits; it generates nothing, so search cannot call it."""

    reads_targets = False
    encoder_parts = "src_position", "src_embedding_norm", "encoder", "encoder_norm"

    def __init__(
        self,
        config: ModelConfig,
        policy: Policy,
        src_vocab_size: int,
        tgt_vocab_size: int,
        key: jax.Array,
    ):
        """Draws the parameters with `key`; they do not depend on the mesh."""
        depth, _ = config.depth
        random_keys = iter(jax.random.split(key, depth + 4))
        super().__init__(config, policy, src_vocab_size, tgt_vocab_size, random_keys)
        self.scan_layers = config.scan_layers
        self.src_position = make_position(config, policy, next(random_keys), causal=False)
        self.src_embedding_norm, self.encoder_norm = make_outer_norms(config, policy)
        self.encoder = nnx.List(Block(config, policy, next(random_keys)) for _ in range(depth))

    def encode(
        self, src: Int[Array, "B S"], key: jax.Array | None = None
    ) -> tuple[Float[Array, "B S D"], Auxiliary]:
        """Returns the encoder's output and auxiliary losses, as `Transformer.encode`."""
        stack = Stack(
            self.policy, self.src_position, self.src_embedding_norm, self.encoder,
            self.encoder_norm, self.dropout_rate, self.scan_layers,
        )  # fmt: skip
        return stack.encode(self.embed_src(src), src, key)

    def find_tokens(self, batch: DeviceBatch) -> Bool[Array, "B S"]:
        """Returns where the source has tokens: targets have PAD wherever nothing is predicted."""
        return batch.src != PAD_ID

    def predict(self, batch: DeviceBatch, key: jax.Array | None = None) -> Prediction:
        """Predicts, at each source position, the target token at the same position."""
        hidden, auxiliary = self.encode(batch.src, key)
        # Both sides of a pair are equally long, but may be padded to different lengths.
        length = min(batch.src.shape[1], batch.tgt_out.shape[1])
        cut = batch._replace(tgt_out=batch.tgt_out[:, :length], weights=batch.weights[:, :length])
        return self.make_prediction(hidden[:, :length], cut, auxiliary)

    @classmethod
    def find_side(cls, name: str) -> str:
        """Returns what a weight of this name multiplies."""
        return "src" if name.startswith("encoder.") else "tgt"

    @classmethod
    def count_attention(
        cls, config: ModelConfig, src: Int[np.ndarray, "B"], tgt: Int[np.ndarray, "B"]
    ) -> int:
        """Returns the multiplications of attention, for pairs of these lengths."""
        del tgt
        return multiplications_per_pair(config) * config.depth[0] * int(src @ src)

    @classmethod
    def count_sequential(cls, config: ModelConfig, src_length: int, tgt_length: int) -> int:
        """Returns the operations that follow each other: one for each sub-layer."""
        del src_length, tgt_length
        sub_layers = 1 + (config.feed_forward != "none")
        return config.depth[0] * sub_layers
