"""Section 3.4: a model's tables of embeddings, from one of which its logits are computed."""

from collections.abc import Iterator

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.config.fields import ModelConfig
from t2t.data.batch import DeviceBatch
from t2t.model.block import Auxiliary
from t2t.model.compute_policy import Policy
from t2t.model.interface import Prediction
from t2t.model.layers import Embedding


class Tables(nnx.Module):
    """The base class of all families: embeds tokens, and computes logits.

    With config.tie_embeddings="all" one table serves source, target and output, with "decoder" the
    source has its own table, and with "none" each has its own.
    """

    def __init__(
        self,
        config: ModelConfig,
        policy: Policy,
        src_vocab_size: int,
        tgt_vocab_size: int,
        keys: Iterator[jax.Array],
    ):
        """Creates the tables, each from the next of `keys`."""
        self.policy = policy
        self.tie_embeddings = config.tie_embeddings
        self.tgt_embedding = Embedding(tgt_vocab_size, config.d_model, next(keys))
        if config.tie_embeddings != "all":
            self.src_embedding = Embedding(src_vocab_size, config.d_model, next(keys))
        if config.tie_embeddings == "none":
            self.own_output_embedding = Embedding(tgt_vocab_size, config.d_model, next(keys))

    @property
    def output_embedding(self) -> Embedding:
        """The table whose rows are multiplied with a stack's output to give the logits."""
        return self.tgt_embedding if self.tie_embeddings != "none" else self.own_output_embedding

    def embed_src(self, src: Int[Array, "B S"]) -> Float[Array, "B S D"]:
        """Embeds source tokens."""
        embedding = self.tgt_embedding if self.tie_embeddings == "all" else self.src_embedding
        return embedding.look_up(src, self.policy.dtype)

    def embed_tgt(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Embeds target tokens."""
        return self.tgt_embedding.look_up(tokens, self.policy.dtype)

    def compute_logits(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Computes the logits from a stack's output."""
        return self.output_embedding.project(hidden.astype(self.policy.product_dtype))

    def make_prediction(
        self, hidden: Float[Array, "B T D"], batch: DeviceBatch, auxiliary: Auxiliary | None = None
    ) -> Prediction:
        """Predicts the batch's targets from a stack's output."""
        return Prediction(
            hidden.astype(self.policy.product_dtype),
            self.output_embedding.table[...],
            batch.tgt_out,
            batch.weights,
            auxiliary or {},
        )
