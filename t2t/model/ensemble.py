"""Ensembles: several models with one vocabulary, whose predictions are combined at each token."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.config.fields import ModelConfig
from t2t.model.build import describe_model, make_model
from t2t.model.interface import EncoderDecoder, Params


class Members(NamedTuple):
    """The models of an ensemble, or one model, and how their predictions are combined."""

    configs: tuple[ModelConfig, ...]
    weights: tuple[float, ...] = (1.0,)  # one for each model; their sum is 1
    mean: str = "probabilities"  # mean of probabilities | log_probs (normalised again)

    @property
    def position_limit(self) -> int | None:
        """The longest sentence that all models accept, EOS included; None: no limit."""
        return min((c.position_limit for c in self.configs if c.position_limit), default=None)

    def with_dtype(self, dtype: str) -> "Members":
        """The same models, computing in `dtype`."""
        configs = tuple(dataclasses.replace(config, dtype=dtype) for config in self.configs)
        return self._replace(configs=configs)

    def describe(self, src_vocab_size: int, tgt_vocab_size: int) -> tuple[Any, Params]:
        """Returns structure and parameters as `describe_model` does.

        The parameters of an ensemble are {"models": {0: those of the first model, 1: ...}}.
        """
        sizes = src_vocab_size, tgt_vocab_size
        if len(self.configs) == 1:
            return describe_model(self.configs[0], *sizes)

        def make() -> Ensemble:
            key = jax.random.key(0)
            models = [make_model(config, *sizes, key) for config in self.configs]
            return Ensemble(models, self.weights, self.mean)

        structure, state = nnx.split(nnx.eval_shape(make))
        return structure, nnx.to_pure_dict(state)

    def join(self, params: Sequence[Params]) -> Params:
        """The parameters of all models in one tree, as `describe` has them."""
        return params[0] if len(params) == 1 else {"models": dict(enumerate(params))}


class Ensemble(nnx.Module):
    """The methods of `EncoderDecoder` that search and scoring call, for several models at once."""

    def __init__(self, models: Sequence[EncoderDecoder], weights: tuple[float, ...], mean: str):
        """For the arguments see `Members`."""
        self.models = nnx.List(models)
        self.weights = weights
        self.mean = mean

    def encode(self, src: Int[Array, "B S"]) -> list[Float[Array, "B S _"]]:
        """Computes the memory of each model."""
        return [model.encode(src) for model in self.models]

    def init_cache(
        self,
        memory: list[Float[Array, "B S _"]],
        src: Int[Array, "B S"],
        beam_size: int,
        max_length: int,
    ) -> list[Any]:
        """Creates the state of each model's `decode_step`."""
        return [
            model.init_cache(own, src, beam_size, max_length)
            for model, own in zip(self.models, memory, strict=True)
        ]

    def extend_cache(self, cache: list[Any], max_length: int) -> list[Any]:
        """Returns the caches with capacity for `max_length` steps."""
        return [
            model.extend_cache(own, max_length)
            for model, own in zip(self.models, cache, strict=True)
        ]

    def decode_step(
        self, tokens: Int[Array, "B W"], parents: Int[Array, "B W"], cache: list[Any]
    ) -> tuple[Float[Array, "B W V"], list[Any]]:
        """Computes the combined logits after one more token in each slot of the beam."""
        steps = [
            model.decode_step(tokens, parents, own)
            for model, own in zip(self.models, cache, strict=True)
        ]
        return self._combine([logits for logits, _ in steps]), [new for _, new in steps]

    def __call__(self, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        """Computes the combined logits under teacher forcing."""
        return self._combine([model(src, tgt_in) for model in self.models])

    def _combine(self, logits: list[Float[Array, "B T V"]]) -> Float[Array, "B T V"]:
        logits = [each.astype(jnp.float32) for each in logits]
        combine = mean_of_probabilities if self.mean == "probabilities" else mean_of_log_probs
        return combine(logits, self.weights)


def mean_of_probabilities(
    logits: Sequence[Float[Array, "*B V"]], weights: Sequence[float]
) -> Float[Array, "*B V"]:
    """Logits of the weighted mean of softmax(logits); equal logits give exactly themselves.

    With p_i the probabilities of model i, and m the largest of log p_i, the logits of the mean are
    logits_0 - log p_0 + m + log(1 + sum_i w_i (p_i / e^m - 1)).
    """
    log_probs = [jax.nn.log_softmax(each) for each in logits]
    highest = log_probs[0]
    for each in log_probs[1:]:
        highest = jnp.maximum(highest, each)
    rest = sum(w * jnp.expm1(p - highest) for w, p in zip(weights, log_probs, strict=True))
    return logits[0] + (highest - log_probs[0]) + jnp.log1p(rest)


def mean_of_log_probs(
    logits: Sequence[Float[Array, "*B V"]], weights: Sequence[float]
) -> Float[Array, "*B V"]:
    """Logits of the weighted mean of log softmax(logits); equal logits give exactly themselves.

    It is that of the logits, apart from a constant, which does not count.
    """
    first = logits[0]
    rest = zip(weights[1:], logits[1:], strict=True)
    return first + sum((w * (each - first) for w, each in rest), jnp.zeros_like(first))
