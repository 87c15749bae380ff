"""Scores of sentence pairs by models of both directions (Junczys-Dowmunt 2018).

A pair is good if both models find each side probable given the other, and agree on how probable:

    score = exp(-(|H(y|x) - H(x|y)| + (H(y|x) + H(x|y)) / 2))

H is the cross-entropy in nats for each sub-word, EOS included. The score is between 0 and 1.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float

from t2t.data.corpus import DataError, TextFile


def score_pairs(
    forward: Float[np.ndarray, "pairs"], backward: Float[np.ndarray, "pairs"]
) -> Float[np.ndarray, "pairs"]:
    """Returns the score of each pair from the two cross-entropies; NaN counts as infinite."""
    entropies = np.stack([forward, backward])
    entropies = np.where(np.isnan(entropies), np.inf, entropies)
    with np.errstate(invalid="ignore"):  # inf - inf
        distance = np.abs(entropies[0] - entropies[1]) + entropies.mean(axis=0)
    return np.exp(-np.where(np.isnan(distance), np.inf, distance))


def read_entropies(path: Path, count: int) -> Float[np.ndarray, "pairs"]:
    """Reads the cross-entropies of `count` pairs from what `t2t.score --tokens` printed.

    Raises:
        DataError: the file has another number of lines, or no log-probabilities of sub-words.
    """
    file = TextFile(path)
    if len(file) != count:
        raise DataError(
            f"--scores: {path} has {len(file)} lines for {count} pairs; score the same text, in "
            "its order"
        )
    return np.array([*_read_lines(path, file)])


def _read_lines(path: Path, file: TextFile) -> Iterator[float]:
    for number, line in enumerate(file.read(0, len(file)), start=1):
        total, *columns = line.split("\t")
        try:
            count = len(columns[0].split())
            yield -float(total) / count if count else math.nan
        except (IndexError, ValueError):
            raise DataError(
                f"--scores: {path}, line {number}: {line[:40]!r} has no log-probabilities of "
                "sub-words; make the file by t2t.score --tokens"
            ) from None


def select_best(scores: Float[np.ndarray, "pairs"], share: float) -> list[int]:
    """Returns the numbers of the pairs with the best scores, in order; of equal ones the first."""
    kept = max(round(share * len(scores)), 1)
    best: list[int] = sorted(np.argsort(-scores, kind="stable")[:kept].tolist())
    return best
