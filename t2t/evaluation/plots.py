"""Plots of scores: by sentence length, a setting, the training step, cost of training or speed.

And of differences by each measure, and of attention weights. `write_figure` writes one to a file,
whose suffix is the format; `embed_figure` makes HTML for notebooks.
"""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from t2t.config.fields import ConfigError
from t2t.evaluation.forest import ForestRow, find_correction
from t2t.evaluation.measure import Interval
from t2t.evaluation.saved_evaluations import Evaluation
from t2t.evaluation.significance import Bucket, SystemScore
from t2t.storage.atomic_files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png", ".pdf")


def check_format(path: Path, flag: str = "plot") -> None:
    """Raises `ConfigError` if a flag names a file of another format than `FORMATS`."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"--{flag}={path} must end in one of {', '.join(FORMATS)}")


def draw_by_setting(evaluations: Mapping[int, Evaluation], measure: str, varied: str) -> "Figure":
    """Draws the measure with its 95% intervals over sentences.

    Each interval belongs to one score alone. All points share a test set, so their differences are
    more certain than overlapping intervals suggest; `t2t.compare` tests them.
    """
    numbers = sorted(evaluations)
    chosen = [evaluations[number] for number in numbers]
    intervals = [each.result["measures"][measure]["interval"] for each in chosen]
    scores = [*zip([each.value(measure) for each in chosen], intervals, strict=True)]
    from matplotlib.ticker import MaxNLocator

    figure, axes = _make_axes(6, 4)
    axes.errorbar(
        numbers,
        [value for value, _ in scores],
        yerr=_find_errors(scores),
        marker="o",
        capsize=3,
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(varied)
    axes.set_ylabel(measure)
    return figure


def draw_by_step(curves: Mapping[str, Sequence[tuple[int, float]]], measure: str) -> "Figure":
    """Draws the measure against the training step: for each run its (step, value).

    A curve of one point is a dot.
    """
    figure, axes = _make_axes(9, 5)
    for number, (name, curve) in enumerate(curves.items()):
        steps, values = zip(*curve, strict=True)
        style = ("-", "--", ":", "-.")[number // 10 % 4]  # matplotlib cycles through ten colours
        axes.plot(steps, values, style, label=name, marker="o" if len(curve) == 1 else None)
    axes.set_xlabel("step")
    axes.set_ylabel(measure)
    figure.legend(loc="outside right upper", fontsize="small")
    return figure


def draw_attention(
    weights: Float[np.ndarray, "N H T S"], queries: Sequence[str], keys: Sequence[str]
) -> "Figure":
    """Draws a map for each head: a row for each layer, a column for each head; black is 1."""
    from matplotlib.figure import Figure

    layers, heads, rows, columns = weights.shape
    size = heads * (0.18 * columns + 0.3) + 1, layers * (0.18 * rows + 0.5) + 1
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
    for (layer, head), axes in np.ndenumerate(panels):
        axes.imshow(weights[layer, head], cmap="Greys", vmin=0, vmax=1)
        axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize="small")
        axes.set_xticks(range(columns), keys, rotation=90, fontsize="x-small")
        axes.set_yticks(range(rows), queries, fontsize="x-small")
    return figure


def embed_figure(figure: "Figure", description: str) -> str:
    """Returns an HTML image that needs no file."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    data = base64.b64encode(picture.getvalue()).decode()
    return f'<img alt="{html.escape(description)}" src="data:image/png;base64,{data}">'


def draw_against(
    points: Mapping[str, tuple[float, SystemScore]], measure: str, cost: str, *, log: bool = False
) -> "Figure":
    """Draws scores with 95% intervals over sentences against what systems cost, or their speed.

    `points` are (cost, score) by system. With `log` the axis of `cost` is logarithmic.
    """
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure, axes = _make_axes(9, 5)
    for number, (name, (place, score)) in enumerate(points.items()):
        errors = _find_errors([(score.value, score.over_sentences)])
        marker = "osD^v"[number // 10 % 5]
        axes.errorbar([place], [score.value], yerr=errors, marker=marker, capsize=3, label=name)
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(cost)
    axes.set_ylabel(measure)
    figure.legend(loc="outside right upper", fontsize="small")
    return figure


def draw_by_length(buckets: Sequence[Bucket], measure: str) -> "Figure":
    """Draws a line for each system with 95% intervals over sentences."""
    figure, axes = _make_axes(7, 4)
    systems = list(buckets[0].scores)
    for number, system in enumerate(systems):
        scores = [bucket.scores[system] for bucket in buckets]
        shift = 0.12 * (number - (len(systems) - 1) / 2)  # so that intervals do not overlap
        axes.errorbar(
            [place + shift for place in range(len(buckets))],
            [score.value for score in scores],
            yerr=_find_errors([(score.value, score.over_sentences) for score in scores]),
            marker="o",
            capsize=3,
            label=system,
        )
    axes.set_xticks(range(len(buckets)), [f"{b.words}\n{len(b.indices)}" for b in buckets])
    axes.set_xlabel("words in the source (below: number of sentences)")
    axes.set_ylabel(measure)
    axes.legend()
    return figure


def draw_forest(rows: Sequence[ForestRow], first: str) -> "Figure":
    """Draws differences from the first system with 95% intervals, a strip for each measure.

    Better is to the right. Each strip has its own scale, with zero in the middle. The label says
    how the intervals are corrected.
    """
    from matplotlib.figure import Figure

    strips: dict[str, list[ForestRow]] = {}
    for row in rows:
        strips.setdefault(row.measure.name, []).append(row)
    systems = [*dict.fromkeys(row.system for row in rows)]
    heights = [0.35 + 0.2 * len(strip) for strip in strips.values()]
    figure = Figure(figsize=(7, 1 + sum(heights)), layout="constrained")
    panels = figure.subplots(len(strips), squeeze=False, gridspec_kw={"height_ratios": heights})[
        :, 0
    ]
    for axes, strip in zip(panels, strips.values(), strict=True):
        for place, row in enumerate(strip):
            comparison, number = row.comparison, systems.index(row.system)
            errors = _find_errors([(comparison.difference, comparison.interval)])
            axes.errorbar(
                [comparison.difference], [-place], xerr=errors, marker="o", capsize=3,
                color=f"C{number % 10}", label=row.system,
            )  # fmt: skip
        axes.axvline(0, color="grey", linewidth=0.8)
        edge = 1.1 * max(map(abs, axes.get_xlim()))
        axes.set_xlim((-edge, edge) if strip[0].measure.higher_is_better else (edge, -edge))
        axes.set_ylim(-len(strip) + 0.4, 0.6)
        axes.set_yticks([])
        axes.set_ylabel(strip[0].label.replace(", ", "\n"), rotation=0, ha="right", va="center")
        axes.grid(alpha=0.3)
    correction = find_correction(rows)
    intervals = f"\n95% intervals with {correction}" if correction else ""
    panels[-1].set_xlabel(f"difference from {first}; right is better{intervals}")
    handles = {each.get_label(): each for axes in panels for each in axes.containers}
    if len(systems) > 1:
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", fontsize="small")
    else:
        figure.suptitle(systems[0], fontsize="small")
    return figure


def _find_errors(scores: Sequence[tuple[float, Interval | None]]) -> list[list[float]]:
    """Returns the error bars below and above each (value, interval); 0 without an interval."""
    known = [(value, interval or (value, value)) for value, interval in scores]
    below = [max(value - low, 0.0) for value, (low, _) in known]
    return [below, [max(high - value, 0.0) for value, (_, high) in known]]


def _make_axes(width: float, height: float) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure  # here because it takes a second, and few calls plot

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    return figure, axes


def write_figure(figure: "Figure", path: Path) -> None:
    """Writes a figure to a file."""
    metadata = {"Date": None} if path.suffix == ".svg" else None  # equal figures, equal files
    with atomic_path(path) as draft:
        figure.savefig(draft, format=path.suffix[1:], metadata=metadata)
