"""Search as loops over lists: every hypothesis, or a beam of them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID

# Log-probabilities of the next token after a prefix (without BOS).
NextLogProbs = Callable[[tuple[int, ...]], np.ndarray]


class Hypothesis(NamedTuple):
    score: float
    log_prob: float
    tokens: tuple[int, ...]  # EOS included


def score(log_prob: float, length: int, alpha: float) -> float:
    return float(log_prob / ((5 + length) / 6) ** alpha)


def search_all(next_log_probs: NextLogProbs, limit: int, alpha: float) -> list[Hypothesis]:
    """All hypotheses of at most `limit` tokens, best first."""
    found = []
    prefixes: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    while prefixes:
        log_prob, prefix = prefixes.pop()
        for token, step in enumerate(next_log_probs(prefix)):
            total, tokens = log_prob + float(step), (*prefix, token)
            if token == EOS_ID:
                found.append(Hypothesis(score(total, len(tokens), alpha), total, tokens))
            elif token not in (PAD_ID, BOS_ID) and len(tokens) < limit:
                prefixes.append((total, tokens))
    return sorted(found, reverse=True)


def search_beam(
    next_log_probs: NextLogProbs, limit: int, alpha: float, beam_size: int
) -> list[Hypothesis]:
    """Beam search that never stops before the limit; best first."""
    finished: list[Hypothesis] = []
    alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for length in range(1, limit + 1):
        candidates = sorted(
            (
                (total + float(step), (*prefix, token))
                for total, prefix in alive
                for token, step in enumerate(next_log_probs(prefix))
                if token not in (PAD_ID, BOS_ID) and (token == EOS_ID or length < limit)
            ),
            reverse=True,
        )[: 2 * beam_size]
        for total, tokens in candidates:
            if tokens[-1] == EOS_ID:
                finished.append(Hypothesis(score(total, length, alpha), total, tokens))
        alive = [c for c in candidates if c[1][-1] != EOS_ID][:beam_size]
    return sorted(finished, reverse=True)[:beam_size]
