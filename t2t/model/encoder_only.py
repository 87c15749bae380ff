"""Encoder-only models: predict the masked tokens of a sentence (Devlin et al. 2019).

The parameters have the names of a Transformer's encoder, and can start one (`--init_from`).
"""

import jax
import jax.numpy as jnp
from flax import nnx

from t2t.config.fields import ModelConfig
from t2t.data.batch import PAD_ID, DeviceBatch
from t2t.model.block import Block, Context, make_final_norm
from t2t.model.compute_policy import Policy
from t2t.model.interface import Model, Prediction
from t2t.model.layers import split
from t2t.model.masks import positions_in_segments, source_mask, source_segment_ids
from t2t.model.position import make_position
from t2t.model.stack import apply_stack
from t2t.model.tables import Tables


class EncoderOnly(Tables, Model):
    """A stack whose positions all see each other; it generates nothing."""

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
        self.dropout_rate = config.dropout
        self.scan_layers = config.scan_layers
        self.src_position = make_position(config, policy, next(keys), causal=False)
        self.encoder = nnx.List(Block(config, policy, next(keys)) for _ in range(depth))
        self.encoder_norm = make_final_norm(config, policy)

    def predict(self, batch: DeviceBatch, key: jax.Array | None = None) -> Prediction:
        """Predicts, at each source position, the target token at the same position."""
        embedding_key, key = split(key, 2)
        src, position = batch.src, self.src_position
        position.check_length(src.shape[1])
        segments, positions = source_segment_ids(src), jnp.arange(src.shape[1])
        bias = position.bias(positions, positions)
        context = Context(
            source_mask(segments, src), position, positions, bias, is_token=src != PAD_ID
        )
        x = position.add(self.embed_src(src), positions_in_segments(segments))
        x = self.policy.operations.dropout(x, self.dropout_rate, embedding_key)
        x, auxiliary = apply_stack(self.encoder, x, context, key, scanned=self.scan_layers)
        # Both sides of a pair are equally long, but may be padded to different lengths.
        length = min(src.shape[1], batch.tgt_out.shape[1])
        cut = batch._replace(tgt_out=batch.tgt_out[:, :length], weights=batch.weights[:, :length])
        return self.make_prediction(self.encoder_norm(x[:, :length]), cut, auxiliary)
