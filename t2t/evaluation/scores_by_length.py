"""Scores of short and of long sentences apart: long ones are where the paper's claim lies."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from t2t.evaluation.significance import ScoreOf, Statistics, SystemScore, score_system
from t2t.storage.atomic_files import atomic_path

WIDTH = 10  # words of a bucket
LAST = 5  # the bucket that holds all longer sentences


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The sentences whose sources have about as many words."""

    words: str  # "11-20"
    indices: Sequence[int]
    scores: Mapping[str, SystemScore]  # by system


def score_by_length(
    score: ScoreOf, systems: Mapping[str, Statistics], sources: Sequence[str]
) -> list[Bucket]:
    """The systems' scores in each bucket that is not empty, the shortest sentences first."""
    members: dict[int, list[int]] = {}
    for index, source in enumerate(sources):
        length = max(len(source.split()), 1)
        members.setdefault(min((length - 1) // WIDTH, LAST), []).append(index)
    buckets = []
    for number, indices in sorted(members.items()):
        first = number * WIDTH + 1
        scores = {name: score_system(score, system[:, indices]) for name, system in systems.items()}
        words = f"{first}+" if number == LAST else f"{first}-{first + WIDTH - 1}"
        buckets.append(Bucket(words, indices, scores))
    return buckets


def plot_by_length(buckets: Sequence[Bucket], measure: str, path: Path) -> None:
    """A line for each system with its 95% intervals over sentences, as the file's ending says.

    Raises:
        ValueError: the ending is of no format that can be drawn.
    """
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    systems = list(buckets[0].scores)
    for number, system in enumerate(systems):
        scores = [bucket.scores[system] for bucket in buckets]
        shift = 0.12 * (number - (len(systems) - 1) / 2)  # or the intervals would hide each other
        below = [max(score.value - score.over_sentences[0], 0) for score in scores]
        above = [max(score.over_sentences[1] - score.value, 0) for score in scores]
        axes.errorbar(
            [place + shift for place in range(len(buckets))],
            [score.value for score in scores],
            yerr=[below, above],
            marker="o",
            capsize=3,
            label=system,
        )
    axes.set_xticks(range(len(buckets)), [f"{b.words}\n{len(b.indices)}" for b in buckets])
    axes.set_xlabel("words in the source, and sentences with so many")
    axes.set_ylabel(measure)
    axes.grid(alpha=0.3)
    axes.legend()
    with atomic_path(path) as draft:
        figure.savefig(draft, format=path.suffix[1:])
