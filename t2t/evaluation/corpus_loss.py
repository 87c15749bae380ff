"""`CorpusLoss`: the loss of a corpus and its perplexity, of validation and of evaluations."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

DTYPE = "float32"  # of the computation, so that scores can be compared between devices

NatsAndTokens = Float[np.ndarray, "n 2"]


class CorpusLoss(NamedTuple):
    """The loss of a corpus."""

    nats: float  # sum of the negative log-likelihoods, without smoothing
    tokens: int  # target sub-words, EOS included


def compute_perplexity(nats: float, count: float) -> float:
    """Returns exp(nats / count), where `count` is the number of tokens or of words.

    It is infinite if a model has diverged, and NaN without a token.
    """
    with np.errstate(all="ignore"):
        return float(np.exp(np.divide(nats, count)))


def sum_losses(sentences: NatsAndTokens) -> CorpusLoss:
    """Sums the losses of all pairs that were not left out."""
    nats, tokens = sentences[sentences[:, 1] > 0].sum(axis=0)
    return CorpusLoss(float(nats), int(tokens))
