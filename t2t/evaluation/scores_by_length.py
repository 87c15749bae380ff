"""Scores by sentence length: long sentences test the claim about long-range dependencies."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from t2t.evaluation.significance import ScoreFunction, Statistics, SystemScore, score_system
from t2t.storage.atomic_files import atomic_path

WIDTH = 10  # words; bucket n holds sources of n * WIDTH + 1 to (n + 1) * WIDTH words
LAST = 5  # number of the last bucket, which also holds all longer sentences


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The sentences whose source length is in one range, and each system's score on them."""

    words: str  # the range, such as "11-20"
    indices: Sequence[int]
    scores: Mapping[str, SystemScore]  # by system


def score_by_length(
    score: ScoreFunction, systems: Mapping[str, Statistics], sources: Sequence[str]
) -> list[Bucket]:
    """Scores the systems in each bucket that is not empty, the shortest sentences first."""
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
    """Plots a line for each system with 95% intervals over sentences.

    The file's suffix is the format.

    Raises:
        ValueError: matplotlib does not know this format.
    """
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    systems = list(buckets[0].scores)
    for number, system in enumerate(systems):
        scores = [bucket.scores[system] for bucket in buckets]
        shift = 0.12 * (number - (len(systems) - 1) / 2)  # so that intervals do not overlap
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
    axes.set_xlabel("words in the source (below: number of sentences)")
    axes.set_ylabel(measure)
    axes.grid(alpha=0.3)
    axes.legend()
    with atomic_path(path) as draft:
        figure.savefig(draft, format=path.suffix[1:])
