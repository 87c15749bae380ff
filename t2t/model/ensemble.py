"""Ensembles: several models with one vocabulary, whose predictions are combined at each token."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.model.interface import Model


class Ensemble(nnx.Module):
    """The methods of `Model` that search and scoring call, for several models at once."""

    def __init__(self, models: Sequence[Model], weights: tuple[float, ...], mean: str):
        """For the arguments see `t2t.ops.build_model.Members`."""
        self.models = nnx.List(models)
        self.weights = weights
        self.mean = mean

    def init_cache(self, src: Int[Array, "B S"], beam_size: int, max_length: int) -> list[Any]:
        """Creates the state of each model's `decode_step`."""
        return [model.init_cache(src, beam_size, max_length) for model in self.models]

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

    Equal to the mean of the logits up to a constant, which softmax ignores.
    """
    first = logits[0]
    rest = zip(weights[1:], logits[1:], strict=True)
    return first + sum((w * (each - first) for w, each in rest), jnp.zeros_like(first))
