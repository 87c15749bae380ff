"""Plots of a score against a setting."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from t2t.evaluation.saved_evaluations import Evaluation
from t2t.storage.atomic_files import atomic_path


def plot_curve(
    evaluations: Mapping[int, Evaluation], measure: str, varied: str, path: Path
) -> None:
    """Plots the measure with its 95% intervals over sentences, in the format of the file's suffix.

    Each interval belongs to one score alone. All points share a test set, so their differences are
    more certain than overlapping intervals suggest; `t2t.compare` tests them.
    """
    numbers = sorted(evaluations)
    scores = [evaluations[number].result["measures"][measure] for number in numbers]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(
        numbers,
        [score["value"] for score in scores],
        yerr=[
            [max(score["value"] - score["interval"][0], 0) for score in scores],
            [max(score["interval"][1] - score["value"], 0) for score in scores],
        ],
        marker="o",
        capsize=3,
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(varied)
    axes.set_ylabel(measure)
    axes.grid(alpha=0.3)
    with atomic_path(path) as draft:
        figure.savefig(draft, format=path.suffix[1:])
