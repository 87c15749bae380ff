"""What every kind of model is: the interface that training, search and evaluation know.

Tables and logits are the same for all of them and live here; `build.py` chooses.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.config.fields import ModelConfig
from t2t.model.compute_policy import Policy
from t2t.model.dropout import fold
from t2t.model.embedding import Embedding

Params = dict[str, Any]  # nested, float32 leaves


class EncoderDecoder(nnx.Module):
    """Tables of words, and an encoder and a decoder between them.

    A key given to a method switches dropout on.
    """

    def __init__(
        self,
        config: ModelConfig,
        policy: Policy,
        src_vocab_size: int,
        tgt_vocab_size: int,
        keys: Iterator[jax.Array],
    ):
        """Takes as many keys as it has tables."""
        self.policy = policy
        self.tie_embeddings = config.tie_embeddings
        self.tgt_embedding = Embedding(tgt_vocab_size, config.d_model, next(keys))
        if config.tie_embeddings != "all":
            self.src_embedding = Embedding(src_vocab_size, config.d_model, next(keys))
        if config.tie_embeddings == "none":
            self.own_output_embedding = Embedding(tgt_vocab_size, config.d_model, next(keys))

    @abstractmethod
    def encode(self, src: Int[Array, "B S"], key: jax.Array | None = None) -> Float[Array, "B S D"]:
        """The memory of a batch of source sentences."""

    @abstractmethod
    def decode(
        self,
        tgt_in: Int[Array, "B T"],
        memory: Float[Array, "B S D"],
        src: Int[Array, "B S"],
        key: jax.Array | None = None,
    ) -> Float[Array, "B T D"]:
        """The decoder's output at each position, from the tokens up to there."""

    @abstractmethod
    def init_cache(
        self,
        memory: Float[Array, "B S D"],
        src: Int[Array, "B S"],
        beam_size: int,
        max_length: int,
    ) -> Any:
        """What `decode_step` keeps between steps, before the first of at most `max_length`.

        Scalars, and arrays with a row for each sentence.
        """

    def extend_cache(self, cache: Any, max_length: int) -> Any:
        """The same with room for `max_length` steps; where the cache does not grow, itself."""
        del max_length
        return cache

    @abstractmethod
    def decode_step(
        self, tokens: Int[Array, "B W"], parents: Int[Array, "B W"], cache: Any
    ) -> tuple[Float[Array, "B W V"], Any]:
        """Logits after one more token in each slot.

        `parents[b, w]` is the slot whose hypothesis slot w continues.
        """

    def __call__(
        self, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"], key: jax.Array | None = None
    ) -> Float[Array, "B T V"]:
        """Logits under teacher forcing."""
        return self.compute_logits(self.decode_all(src, tgt_in, key))

    def decode_all(
        self, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"], key: jax.Array | None = None
    ) -> Float[Array, "B T D"]:
        """The decoder's output under teacher forcing."""
        return self.decode(tgt_in, self.encode(src, fold(key, 0)), src, fold(key, 1))

    def embed_src(self, src: Int[Array, "B S"]) -> Float[Array, "B S D"]:
        """The source's words as vectors."""
        own = self.tgt_embedding if self.tie_embeddings == "all" else self.src_embedding
        return own.look_up(src, self.policy.dtype)

    def embed_tgt(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """The target's words as vectors."""
        return self.tgt_embedding.look_up(tokens, self.policy.dtype)

    def compute_logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Logits of the decoder's output."""
        return self.output_embedding.project(x.astype(self.policy.product_dtype))

    @property
    def output_embedding(self) -> Embedding:
        """The table whose rows give the logits."""
        return self.tgt_embedding if self.tie_embeddings != "none" else self.own_output_embedding
