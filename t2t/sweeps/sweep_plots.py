"""Plots of a sweep: validation curves, and scores against training cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from t2t.evaluation.significance import SystemScore
from t2t.storage.atomic_files import atomic_path

Curve = Sequence[tuple[int, float]]  # steps and values


def plot_curves(curves: Mapping[str, Curve], measure: str, path: Path) -> None:
    """Plots the measure against the step, a line for each run."""
    figure, axes = _make_axes()
    for number, (name, curve) in enumerate(curves.items()):
        steps, values = zip(*curve, strict=True)
        style = ("-", "--", ":", "-.")[number // 10 % 4]  # matplotlib cycles through ten colours
        axes.plot(steps, values, style, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel(measure)
    _save(figure, axes, path)


def plot_costs(rows: Mapping[str, tuple[int, SystemScore]], measure: str, path: Path) -> None:
    """Plots the measure with its 95% interval over sentences against the training FLOPs."""
    figure, axes = _make_axes()
    for number, (name, (flops, score)) in enumerate(rows.items()):
        low, high = score.over_sentences
        errors = [[max(score.value - low, 0)], [max(high - score.value, 0)]]
        marker = "osD^v"[number // 10 % 5]
        axes.errorbar([flops], [score.value], yerr=errors, marker=marker, capsize=3, label=name)
    axes.set_xlabel("training FLOPs")
    axes.set_ylabel(measure)
    _save(figure, axes, path)


def _make_axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9, 5), layout="constrained")
    return figure, figure.subplots()


def _save(figure: Figure, axes: Axes, path: Path) -> None:
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    with atomic_path(path) as draft:  # no date, so that equal figures give equal files
        figure.savefig(draft, format=path.suffix[1:], metadata={"Date": None})
