"""The interface of all models, through which training, search and evaluation call them.

The embedding tables and the output logits are implemented here, once for all models. Subclasses
implement the encoder and the decoder.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.config.fields import ConfigError, ModelConfig
from t2t.model.compute_policy import Policy
from t2t.model.layers import Embedding, split

Model = TypeVar("Model", bound=nnx.Module)
Params = dict[str, Any]  # nested by module and parameter name; the leaves are float32 arrays


class EncoderDecoder(nnx.Module):
    """An encoder-decoder model: embedding tables, an encoder and a decoder.

    Methods that have the parameter `key`, a PRNG key, apply dropout only if it is not None.
    """

    def __init__(
        self,
        config: ModelConfig,
        policy: Policy,
        src_vocab_size: int,
        tgt_vocab_size: int,
        keys: Iterator[jax.Array],
    ):
        """Creates the embedding tables, each from the next of `keys`.

        With config.tie_embeddings="all" one table serves source, target and output, with "decoder"
        the source has its own table, and with "none" each has its own.
        """
        self.policy = policy
        self.tie_embeddings = config.tie_embeddings
        self.tgt_embedding = Embedding(tgt_vocab_size, config.d_model, next(keys))
        if config.tie_embeddings != "all":
            self.src_embedding = Embedding(src_vocab_size, config.d_model, next(keys))
        if config.tie_embeddings == "none":
            self.own_output_embedding = Embedding(tgt_vocab_size, config.d_model, next(keys))

    @abstractmethod
    def encode(self, src: Int[Array, "B S"], key: jax.Array | None = None) -> Float[Array, "B S D"]:
        """Computes the encoder's output, called the memory."""

    @abstractmethod
    def decode(
        self,
        tgt_in: Int[Array, "B T"],
        memory: Float[Array, "B S D"],
        src: Int[Array, "B S"],
        key: jax.Array | None = None,
    ) -> Float[Array, "B T D"]:
        """Computes the decoder's output; a position depends only on target tokens up to it."""

    @abstractmethod
    def init_cache(
        self,
        memory: Float[Array, "B S D"],
        src: Int[Array, "B S"],
        beam_size: int,
        max_length: int,
    ) -> Any:
        """Creates the state of `decode_step` before the first of at most `max_length` steps.

        It is a pytree of scalars and of arrays whose first dimension is B.
        """

    def extend_cache(self, cache: Any, max_length: int) -> Any:
        """Returns the cache with capacity for `max_length` steps.

        The default returns it unchanged, for models whose cache has a constant size.
        """
        del max_length
        return cache

    @abstractmethod
    def decode_step(
        self, tokens: Int[Array, "B W"], parents: Int[Array, "B W"], cache: Any
    ) -> tuple[Float[Array, "B W V"], Any]:
        """Computes the logits after one more token in each of the W slots of the beam.

        Slot w of sentence b continues the hypothesis that was in slot `parents[b, w]` before. At
        the first step all slots are equal, and beam search passes parents[b, w] = w.
        """

    def __call__(
        self, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"], key: jax.Array | None = None
    ) -> Float[Array, "B T V"]:
        """Computes the logits under teacher forcing."""
        return self.compute_logits(self.encode_and_decode(src, tgt_in, key))

    def encode_and_decode(
        self, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"], key: jax.Array | None = None
    ) -> Float[Array, "B T D"]:
        """Computes the decoder's output under teacher forcing."""
        encoder_key, decoder_key = split(key, 2)
        return self.decode(tgt_in, self.encode(src, encoder_key), src, decoder_key)

    def embed_src(self, src: Int[Array, "B S"]) -> Float[Array, "B S D"]:
        """Embeds source tokens."""
        embedding = self.tgt_embedding if self.tie_embeddings == "all" else self.src_embedding
        return embedding.look_up(src, self.policy.dtype)

    def embed_tgt(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Embeds target tokens."""
        return self.tgt_embedding.look_up(tokens, self.policy.dtype)

    def compute_logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Computes the logits from the decoder's output."""
        return self.output_embedding.project(x.astype(self.policy.product_dtype))

    @property
    def output_embedding(self) -> Embedding:
        """The table whose rows are multiplied with the decoder's output to give the logits."""
        return self.tgt_embedding if self.tie_embeddings != "none" else self.own_output_embedding


def merge(structure: nnx.GraphDef[Model], params: Params) -> Model:
    """Returns the model with these parameters; called inside pure functions such as a step."""
    return nnx.merge(structure, nnx.State(params))


def check_params(expected: Params, params: Params) -> None:
    """Raises `ConfigError` if the parameters do not have the names and shapes of `expected`."""
    wanted, found = (
        {jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape for path, leaf in x}
        for x in map(jax.tree_util.tree_leaves_with_path, (expected, params))
    )
    for name in wanted | found:
        if wanted.get(name) != found.get(name):
            raise ConfigError(
                f"the checkpoint does not fit its config and vocabulary: parameter {name} has "
                f"shape {found.get(name)} instead of {wanted.get(name)}; use the config.json and "
                "the vocab/ that were written with it"
            )
