"""The base of all models: tables of embeddings (section 3.4), and what training and search call.

The families derive from it in a file each: `transformer.py` (encoder-decoder), `decoder_only.py`,
`encoder_only.py` and `rnn.py`.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2t.config.fields import ModelConfig
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID, DeviceBatch
from t2t.model.compute_policy import Policy
from t2t.model.kv_cache import DecodingCache
from t2t.model.layers import Embedding
from t2t.model.parametrization import find_logit_factor, scale
from t2t.model.stack import Auxiliary
from t2t.runtime.mesh import count_parts, reshard, spec


class Prediction(NamedTuple):
    """A model's predictions for a batch: logits = hidden table^T at each position."""

    hidden: Float[Array, "B T D"]  # in the dtype of the operands of products
    table: Float[Array, "V D"]
    targets: Int[Array, "B T"]
    weights: Float[Array, "B T"]  # 0 where nothing is to be predicted
    auxiliary: Auxiliary  # its loss is added to the loss of each predicted token


class Model(nnx.Module):
    """A model: training calls `predict`; search calls `init_cache`, `extend_cache`, `decode_step`.

    A family implements `compute_hidden`, `init_cache` and `decode_step`; one that generates nothing
    implements `predict`. Plans and sweeps also ask for the three last methods. All families have
    tables of embeddings, from one of which logits are computed. With config.tie_embeddings="all"
    one table serves source, target and output, with "decoder" the source has its own table, with
    "input" the output has, and with "none" each has its own.
    """

    reads_targets = True  # whether target tokens are inputs
    # Attributes of the encoder and of the decoder, of which tasks may have their own
    # (`t2t.training.sharing`); (): the family has no such stack.
    encoder_parts: tuple[str, ...] = ()
    decoder_parts: tuple[str, ...] = ()

    def __init__(
        self,
        config: ModelConfig,
        policy: Policy,
        src_vocab_size: int,
        tgt_vocab_size: int,
        random_keys: Iterator[jax.Array],
    ):
        """Creates the tables, each from the next of `random_keys`."""
        self.policy = policy
        self.dropout_rate = config.dropout
        self.tie_embeddings = config.tie_embeddings
        self.logit_factor = find_logit_factor(config)
        key, scaled = next(random_keys), config.embedding_scale
        if self.reads_targets or config.tie_embeddings != "none":
            self.tgt_embedding = Embedding(config, tgt_vocab_size, key, scaled=scaled)
        if config.tie_embeddings in ("decoder", "none"):
            self.src_embedding = Embedding(config, src_vocab_size, next(random_keys), scaled=scaled)
        if config.tie_embeddings in ("input", "none"):
            self.own_output_embedding = Embedding(config, tgt_vocab_size, next(random_keys))
        self.decoder_start = {"bos": BOS_ID, "eos": EOS_ID, "unk": UNK_ID}[config.decoder_start]
        self.biased = config.output_bias
        if self.biased:
            zeros = jnp.zeros(tgt_vocab_size, out_sharding=spec("vocabulary"))
            self.output_bias = nnx.Param(zeros, kind="scalar")

    @property
    def output_embedding(self) -> Embedding:
        """The table whose rows are multiplied with a stack's output to give the logits."""
        tied = self.tie_embeddings in ("all", "decoder")
        return self.tgt_embedding if tied else self.own_output_embedding

    def embed_src(self, src: Int[Array, "B S"]) -> Float[Array, "B S D"]:
        """Embeds source tokens."""
        tied = self.tie_embeddings in ("all", "input")
        embedding = self.tgt_embedding if tied else self.src_embedding
        return embedding.look_up(src, self.policy.dtype)

    def embed_tgt(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Embeds target tokens, of which BOS is the first input of the decoder."""
        if self.decoder_start != BOS_ID:
            tokens = jnp.where(tokens == BOS_ID, self.decoder_start, tokens)
        return self.tgt_embedding.look_up(tokens, self.policy.dtype)

    def compute_logits(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Computes the logits from a stack's output."""
        hidden = scale(hidden, self.logit_factor).astype(self.policy.product_dtype)
        logits = self.output_embedding.compute_logits(hidden)
        return logits + self.output_bias[...] if self.biased else logits

    def make_prediction(
        self, hidden: Float[Array, "B T D"], batch: DeviceBatch, auxiliary: Auxiliary
    ) -> Prediction:
        """Predicts the batch's targets from a stack's output.

        A bias of the logits is further columns of the table, which are multiplied by 1.
        """
        hidden, table = scale(hidden, self.logit_factor), self.output_embedding.table[...]
        if self.biased:
            columns = jnp.stack(split_bias(self.output_bias[...], self.policy.product_dtype), -1)
            # Zeros, so that the mesh can divide the table.
            padding = (0, 0), (0, -columns.shape[-1] % count_parts("d_model"))
            columns = jnp.pad(reshard(columns, "vocabulary", None), padding)
            whole = reshard(table, "vocabulary", None)
            table = reshard(jnp.concatenate([whole, columns], axis=-1), "vocabulary", "d_model")
            ones = jnp.ones_like(hidden[..., :1])
            repeats = (1,) * (hidden.ndim - 1) + columns.shape[-1:]
            hidden = jnp.concatenate([hidden, jnp.tile(ones, repeats)], axis=-1)
        return Prediction(
            hidden.astype(self.policy.product_dtype),
            table,
            batch.tgt_out,
            batch.weights,
            auxiliary,
        )

    def compute_hidden(
        self, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"], key: jax.Array | None = None
    ) -> tuple[Float[Array, "B T D"], Auxiliary]:
        """Returns the outputs of the last stack at the target positions, and auxiliary losses.

        A position depends on the source and on target tokens up to it. A key switches dropout on.
        """
        raise NotImplementedError(type(self).__name__)

    def predict(self, batch: DeviceBatch, key: jax.Array | None = None) -> Prediction:
        """Predicts the targets of a batch under teacher forcing; a key switches dropout on."""
        hidden, auxiliary = self.compute_hidden(batch.src, batch.tgt_in, key)
        return self.make_prediction(hidden, batch, auxiliary)

    def find_tokens(self, batch: DeviceBatch) -> Bool[Array, "B T"]:
        """Returns where the side of the pairs that it learns to predict has tokens, no padding."""
        return batch.tgt_out != PAD_ID

    def __call__(
        self, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"], key: jax.Array | None = None
    ) -> Float[Array, "B T V"]:
        """Computes the logits under teacher forcing; a key switches dropout on."""
        return self.compute_logits(self.compute_hidden(src, tgt_in, key)[0])

    def init_cache(self, src: Int[Array, "B S"], beam_size: int, max_length: int) -> Any:
        """Creates the state of `decode_step` before the first of at most `max_length` steps.

        It is a pytree of scalars and of arrays whose first dimension is B.
        """
        raise NotImplementedError(type(self).__name__)

    def extend_cache(self, cache: Any, max_length: int) -> Any:
        """Returns the cache with capacity for `max_length` steps, or one of constant size."""
        return cache.extend(max_length) if isinstance(cache, DecodingCache) else cache

    def decode_step(
        self, tokens: Int[Array, "B W"], parents: Int[Array, "B W"], cache: Any
    ) -> tuple[Float[Array, "B W V"], Any]:
        """Computes the logits after one more token in each of the W slots of the beam.

        Slot w of sentence b continues the hypothesis that was in slot `parents[b, w]` before. At
        the first step all slots are equal, and beam search passes parents[b, w] = w.
        """
        raise NotImplementedError(type(self).__name__)

    # What `ops/flops.py` asks of a family; all numbers count one forward pass.

    @classmethod
    def find_side(cls, name: str) -> str:
        """Returns what a weight of this name multiplies: each src | tgt | token | sentence."""
        raise NotImplementedError(name)

    @classmethod
    def count_attention(
        cls, config: ModelConfig, src: Int[np.ndarray, "B"], tgt: Int[np.ndarray, "B"]
    ) -> int:
        """Returns the multiplications of attention, for pairs of these lengths."""
        raise NotImplementedError(config, src, tgt)

    @classmethod
    def count_sequential(cls, config: ModelConfig, src_length: int, tgt_length: int) -> int:
        """Returns the operations that follow each other (as in table 1)."""
        raise NotImplementedError(config, src_length, tgt_length)


def multiplications_per_pair(config: ModelConfig) -> int:
    """Returns the multiplications of a layer's heads for each pair of a query and a key."""
    return config.num_heads * (config.key_width + config.value_width)


def split_bias(bias: Float[Array, "V"], dtype: jnp.dtype) -> list[Float[Array, "V"]]:
    """Returns numbers of `dtype` whose sum is the float32 bias; its gradient is that of the first.

    So a product with operands in bfloat16 and sums in float32 adds the bias in float32. A number of
    `dtype` holds its first 8 bits, and two more hold the other 16.
    """
    if dtype == jnp.float32:
        return [bias]
    info, rest, parts = jnp.finfo(dtype), jax.lax.stop_gradient(bias), []
    for _ in range(math.ceil(24 / (info.nmant + 1))):
        # Not by `astype` and back, which XLA may leave out.
        parts.append(jax.lax.reduce_precision(rest, info.nexp, info.nmant))
        rest -= parts[-1]
    parts[0] += bias - jax.lax.stop_gradient(bias)  # adds 0, and has the gradient
    return parts
