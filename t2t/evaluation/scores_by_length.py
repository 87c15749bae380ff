"""Scores by sentence length: long sentences test the claim about long-range dependencies."""

import dataclasses
from collections.abc import Mapping, Sequence

from t2t.evaluation.significance import (
    Scale,
    ScoreFunction,
    Statistics,
    SystemScore,
    score_system,
)

WIDTH = 10  # words; bucket n holds sources of n * WIDTH + 1 to (n + 1) * WIDTH words
LAST = 5  # number of the last bucket, which also holds all longer sentences


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The sentences whose source length is in one range, and each system's score on them."""

    words: str  # the range, such as "11-20"
    indices: Sequence[int]
    scores: Mapping[str, SystemScore]  # by system


def score_by_length(
    score: ScoreFunction, scale: Scale, systems: Mapping[str, Statistics], sources: Sequence[str]
) -> list[Bucket]:
    """Scores the systems in each bucket that is not empty, the shortest sentences first."""
    members: dict[int, list[int]] = {}
    for index, source in enumerate(sources):
        length = max(len(source.split()), 1)
        members.setdefault(min((length - 1) // WIDTH, LAST), []).append(index)
    buckets = []
    for number, indices in sorted(members.items()):
        first = number * WIDTH + 1
        scores = {
            name: score_system(score, system[:, indices], scale) for name, system in systems.items()
        }
        words = f"{first}+" if number == LAST else f"{first}-{first + WIDTH - 1}"
        buckets.append(Bucket(words, indices, scores))
    return buckets
