"""The recurrent baseline: an RNN encoder-decoder with additive attention.

It follows Bahdanau et al. 2015, section 3 and appendix A. The encoder is bidirectional. Before each
token the decoder attends to the encoder's output, with its state as the query. The readout is a
tanh of the new state, the context and the embedding; theirs is a maxout, with the previous state.
Deeper stacks have residual connections from the second layer on (Wu et al. 2016). Dropout is
applied between layers, not within the recurrence (Zaremba et al. 2014). The letters X, Y and C in
shapes are defined in `rnn_layers.py`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2t.config.fields import ModelConfig
from t2t.data.batch import PAD_ID
from t2t.model.attention import masked_softmax
from t2t.model.compute_policy import Policy
from t2t.model.interface import Model
from t2t.model.layers import split
from t2t.model.linear import add_bias, einsum, init_glorot
from t2t.model.rnn_layers import BidirectionalLayer, RecurrentLayer, make_cell, scan_positions
from t2t.model.stack import Auxiliary
from t2t.runtime.mesh import spec


class EncodedSource(NamedTuple):
    """The encoder's output as the decoder attends to it, the same at each step.

    It is float32, so that the gradients of all steps are summed in it.
    """

    keys: Float[Array, "B S D"]  # projections of the memory
    memory: Float[Array, "B S D"]
    mask: Bool[Array, "B S"]  # False for padding


class RNNCache(NamedTuple):
    """The state of decoding between steps, whose size is constant."""

    states: Float[Array, "B W N X C"]  # of each slot and decoder layer
    source: EncodedSource


class AdditiveAttention(nnx.Module):
    """Appendix A.1.2: scores v tanh(W s + U h) of decoder state s and memory position h."""

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        """Initialises weights as in Glorot and Bengio (2010)."""
        self.policy, d_model = policy, config.d_model
        fans = (d_model, d_model)
        query_key, key_key, score_key = jax.random.split(key, 3)
        self.query = init_glorot(query_key, fans, *fans, None, None)
        # U, which projects the memory to keys
        self.key = init_glorot(key_key, fans, *fans, "d_model", None)
        self.score = init_glorot(score_key, (d_model,), d_model, 1, None)

    def compute_keys(self, memory: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        """Computes U h, once for each sentence."""
        return self.policy.multiply("BSD,DK->BSK", memory, self.key[...]).astype(jnp.float32)

    def __call__(
        self, state: Float[Array, "B W D"], source: EncodedSource
    ) -> Float[Array, "B W D"]:
        """Averages the memory, weighted by the softmax of the scores in float32."""
        query = einsum("BWD,DK->BWK", state, self.query.astype(state.dtype)).astype(jnp.float32)
        inner = jnp.tanh(query[:, :, None] + source.keys[:, None])
        scores = einsum(
            "BWSK,K->BWS",
            inner.astype(state.dtype),
            self.score.astype(state.dtype),
            preferred_element_type=jnp.float32,
        )
        weights = masked_softmax(scores, source.mask[:, None])
        memory = source.memory.astype(state.dtype)
        return einsum("BWS,BSD->BWD", weights.astype(state.dtype), memory)


class AttentiveLayer(nnx.Module):
    """The decoder's first layer; its input is a token and the context from its attention.

    The context is the result of attention with the layer's previous state as the query.
    """

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        """Initialises weights as in Glorot and Bengio (2010)."""
        recurrence_key, attention_key, context_key = jax.random.split(key, 3)
        self.recurrence = RecurrentLayer(config, policy, recurrence_key)
        self.attention = AdditiveAttention(config, policy, attention_key)
        width = config.d_model
        shape = (width, self.recurrence.cell.num_gates, width)
        self.context = init_glorot(context_key, shape, width, width, None, None, None)

    def step(
        self,
        from_token: Float[Array, "B W Y C"],
        state: Float[Array, "B W X C"],
        source: EncodedSource,
    ) -> tuple[Float[Array, "B W X C"], Float[Array, "B W D"]]:
        """Returns (states, contexts) after one more token.

        `from_token` is `recurrence.read_inputs` of the embedded tokens.
        """
        context = self.attention(state[:, :, 0].astype(from_token.dtype), source)
        weights = self.context.astype(context.dtype)
        from_context = einsum("BWD,DYC->BWYC", context, weights)
        return self.recurrence.step(from_token + from_context, state), context

    def __call__(
        self, embedded: Float[Array, "B T D"], start: Float[Array, "B X C"], source: EncodedSource
    ) -> tuple[Float[Array, "B T C"], Float[Array, "B T D"]]:
        """Returns (outputs, contexts) at all positions, under teacher forcing."""

        def step(
            layer: AttentiveLayer, state: Float[Array, "B 1 X C"], from_token: Float[Array, "B Y C"]
        ) -> tuple[Float[Array, "B 1 X C"], tuple[Float[Array, "B C"], Float[Array, "B D"]]]:
            state, context = layer.step(from_token[:, None], state, source)
            return state, (state[:, 0, 0].astype(embedded.dtype), context[:, 0])

        return scan_positions(self, step, start[:, None], self.recurrence.read_inputs(embedded))


class RNN(Model):
    """The recurrent encoder-decoder; every layer's output has d_model features."""

    encoder_parts = ("encoder",)
    decoder_parts = "start", "start_bias", "attentive", "decoder", "readout", "readout_bias"

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
        self.residual = config.residual
        d_model, half = config.d_model, config.d_model // 2
        self.encoder = nnx.List(
            BidirectionalLayer(config, policy, next(random_keys)) for _ in range(encoder_depth)
        )
        self.attentive = AttentiveLayer(config, policy, next(random_keys))
        self.decoder = nnx.List(
            RecurrentLayer(config, policy, next(random_keys)) for _ in range(decoder_depth - 1)
        )
        # `start` computes the decoder's initial states from the encoder's output.
        states = (decoder_depth, make_cell(config).num_parts, d_model)
        names = (None, None, None)
        self.start = init_glorot(next(random_keys), (half, *states), half, d_model, None, *names)
        self.start_bias = nnx.Param(jnp.zeros(states, out_sharding=spec(*names)))
        readout = (3, d_model, d_model)
        self.readout = init_glorot(
            next(random_keys), readout, 3 * d_model, d_model, None, "d_model", None
        )
        self.readout_bias = nnx.Param(jnp.zeros(d_model, out_sharding=spec(None)))

    def compute_hidden(
        self, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"], key: jax.Array | None = None
    ) -> tuple[Float[Array, "B T D"], Auxiliary]:
        """Computes the decoder's output under teacher forcing; there are no auxiliary losses."""
        encoder_key, decoder_key = split(key, 2)
        memory, auxiliary = self.encode(src, encoder_key)
        return self.decode(tgt_in, memory, src, decoder_key), auxiliary

    def encode(
        self, src: Int[Array, "B S"], key: jax.Array | None = None
    ) -> tuple[Float[Array, "B S D"], Auxiliary]:
        """Returns the encoder's output, called the memory; there are no auxiliary losses."""
        dropout = self.policy.dropout
        keys = split(key, 1 + len(self.encoder))
        x = dropout(self.embed_src(src), self.dropout_rate, keys[0])
        for number, layer in enumerate(self.encoder, start=1):
            after = dropout(layer(x, src != PAD_ID), self.dropout_rate, keys[number])
            x = after if number == 1 else self._connect(x, after)
        return x, {}

    def decode(
        self,
        tgt_in: Int[Array, "B T"],
        memory: Float[Array, "B S D"],
        src: Int[Array, "B S"],
        key: jax.Array | None = None,
    ) -> Float[Array, "B T D"]:
        """Computes the decoder's output; a position depends only on target tokens up to it."""
        dropout, rate = self.policy.dropout, self.dropout_rate
        embedding_key, first_key, *keys, output_key = split(key, 3 + len(self.decoder))
        embedded = dropout(self.embed_tgt(tgt_in), rate, embedding_key)
        starts = self._init_states(memory)
        x, contexts = self.attentive(embedded, starts[:, 0], self._prepare_source(memory, src))
        x = dropout(x, rate, first_key)
        for number, layer in enumerate(self.decoder, start=1):
            after = dropout(layer(x, starts[:, number]), rate, keys[number - 1])
            x = self._connect(x, after)
        return dropout(self._read_out(x, contexts, embedded), rate, output_key)

    def init_cache(self, src: Int[Array, "B S"], beam_size: int, max_length: int) -> RNNCache:
        """Copies the decoder's initial states to each slot; `max_length` is not used."""
        del max_length
        memory, _ = self.encode(src)
        states = jnp.tile(self._init_states(memory)[:, None], (1, beam_size, 1, 1, 1))
        return RNNCache(states, self._prepare_source(memory, src))

    def decode_step(
        self, tokens: Int[Array, "B W"], parents: Int[Array, "B W"], cache: RNNCache
    ) -> tuple[Float[Array, "B W V"], RNNCache]:
        """Computes the logits after one more token in each of the W slots of the beam.

        Slot w of sentence b takes over the states of slot `parents[b, w]`, whose hypothesis it
        continues.
        """
        before = jnp.take_along_axis(cache.states, parents[:, :, None, None, None], axis=1)
        embedded = self.embed_tgt(tokens)
        from_tokens = self.attentive.recurrence.read_inputs(embedded)
        state, contexts = self.attentive.step(from_tokens, before[:, :, 0], cache.source)
        states, x = [state], state[:, :, 0].astype(self.policy.dtype)
        for number, layer in enumerate(self.decoder, start=1):
            state = layer.step(layer.read_inputs(x), before[:, :, number])
            states.append(state)
            x = self._connect(x, state[:, :, 0].astype(self.policy.dtype))
        logits = self.compute_logits(self._read_out(x, contexts, embedded))
        return logits, cache._replace(states=jnp.stack(states, axis=2))

    def _init_states(self, memory: Float[Array, "B S D"]) -> Float[Array, "B N X C"]:
        """Computes the decoder's initial states: tanh(W h_1 + b).

        h_1 is the output of the encoder's backward direction at the first position. There this
        direction has read the whole sentence.
        """
        h_1 = memory[:, 0, self.start.shape[0] :]
        start = einsum(
            "BI,INXC->BNXC",
            h_1,
            self.start.astype(memory.dtype),
            preferred_element_type=jnp.float32,
        )
        return jnp.tanh(start + self.start_bias[...])

    def _prepare_source(
        self, memory: Float[Array, "B S D"], src: Int[Array, "B S"]
    ) -> EncodedSource:
        keys = self.attentive.attention.compute_keys(memory)
        return EncodedSource(keys, memory.astype(jnp.float32), src != PAD_ID)

    def _connect(
        self, x: Float[Array, "B T D"], after: Float[Array, "B T D"]
    ) -> Float[Array, "B T D"]:
        return x + after if self.residual else after

    def _read_out(
        self,
        x: Float[Array, "B T D"],
        contexts: Float[Array, "B T D"],
        embedded: Float[Array, "B T D"],
    ) -> Float[Array, "B T D"]:
        """Computes tanh(W [x; contexts; embedded] + b), from which the logits are computed."""
        joined = self.policy.multiply(
            "BTZD,ZDE->BTE",
            jnp.stack([x, contexts, embedded], axis=2),
            self.readout[...],
            spec("batch", None, None),
        )
        return jnp.tanh(add_bias(joined, self.readout_bias[...]))

    @classmethod
    def find_side(cls, name: str) -> str:
        """Returns what a weight of this name multiplies."""
        if name == "start":  # the first state of the decoder
            return "sentence"
        return "src" if name.startswith("encoder.") or name.endswith("attention.key") else "tgt"

    @classmethod
    def count_attention(
        cls, config: ModelConfig, src: Int[np.ndarray, "B"], tgt: Int[np.ndarray, "B"]
    ) -> int:
        """Returns the multiplications of attention, for pairs of these lengths."""
        return 2 * config.d_model * int(src @ tgt)  # of additive attention

    @classmethod
    def count_sequential(cls, config: ModelConfig, src_length: int, tgt_length: int) -> int:
        """Returns the operations that follow each other: one for each layer and position."""
        encoder_depth, decoder_depth = config.depth
        return encoder_depth * src_length + decoder_depth * tgt_length
