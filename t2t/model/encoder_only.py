"""Encoder-only models: predict the masked tokens of a sentence (Devlin et al. 2019).

The parameters have the names of a Transformer's encoder, and can start one (`--init_from`).
"""

import jax
from flax import nnx
from jaxtyping import Array, Bool

from t2t.config.fields import ModelConfig
from t2t.data.batch import PAD_ID, DeviceBatch
from t2t.model.block import Block, make_embedding_norm, make_final_norm
from t2t.model.compute_policy import Policy
from t2t.model.interface import Model, Prediction
from t2t.model.position import make_position
from t2t.model.transformer import Encoder


class EncoderOnly(Encoder, Model):
    """A Transformer's encoder with logits; it generates nothing."""

    reads_targets = False

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
        keys = iter(jax.random.split(key, depth + 4))
        super().__init__(config, policy, src_vocab_size, tgt_vocab_size, keys)
        self.scan_layers = config.scan_layers
        self.src_position = make_position(config, policy, next(keys), causal=False)
        self.src_embedding_norm = make_embedding_norm(config, policy)
        self.encoder = nnx.List(Block(config, policy, next(keys)) for _ in range(depth))
        self.encoder_norm = make_final_norm(config, policy)

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
