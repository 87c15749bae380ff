"""Draws the README's picture from a run of the quickstart.

    python -m docs.pictures.quickstart --workdir=runs/quickstart

It shows the validation loss, the translations of the first sentences of the test split, and the
attention from a translation to its source: the mean over the heads of the last decoder layer but
one, which also gives word alignments.
"""

import json
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
from absl import app, flags
from matplotlib.axes import Axes

from t2t.analysis.head_importance import compute_pair_weights
from t2t.analysis.head_page import make_labels
from t2t.data.corpus_sources import open_split
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.requests import ModelRequest

WORKDIR = flags.DEFINE_string("workdir", "runs/quickstart", "run of configs/quickstart.py")
OUTPUT = flags.DEFINE_string("output", "docs/pictures/quickstart.png", "the picture")
SENTENCE = "In the morning the policeman picked him up."
COUNT = 5  # translations that are shown


def plot_curve(axes: Axes, metrics: Path) -> None:
    """Validation loss by step."""
    lines = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
    points = [
        (line["step"], line["validation/loss"]) for line in lines if "validation/loss" in line
    ]
    axes.plot(*zip(*points, strict=True), marker="o")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_title("Validation loss, nats per sub-word", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def main(_: list[str]) -> None:
    """Reads the run and writes the picture."""
    workdir = Path(WORKDIR.value)
    model = RunModel(ModelRequest((workdir,), "best"))
    translator = model.make_translator()
    params, [label] = model.restore()
    test = open_split(model.config.data, "test").read(0, COUNT)
    with jax.set_mesh(model.mesh):
        placed = model.place(params)
        sentences = [SENTENCE, *(src for src, _ in test)]
        output, *outputs = (found.text for found in translator.translate(placed, sentences))
    pair = SENTENCE, output
    [weights] = compute_pair_weights(translator, params, [pair])
    labels = make_labels(model.vocabulary, pair)["cross"]

    figure = plt.figure(figsize=(9, 6.5), layout="constrained")
    parts = figure.subplot_mosaic(
        [["curve", "attention"], ["text", "text"]], height_ratios=(3, 2), width_ratios=(1, 1.2)
    )
    curve, attention, text = parts["curve"], parts["attention"], parts["text"]
    plot_curve(curve, workdir / "metrics.jsonl")
    attention.imshow(np.mean(weights.cross[-2], axis=0), cmap="Blues", vmin=0)
    attention.set_xticks(range(len(labels["keys"])), labels["keys"], rotation=60, ha="right")
    attention.set_yticks(range(len(labels["queries"])), labels["queries"])
    attention.tick_params(labelsize=8)
    attention.set_title("Attention of the output (rows) to the source", fontsize=10)
    text.axis("off")
    lines = []
    for (source, reference), found in zip(test, outputs, strict=True):
        mark = "" if found == reference else f"\n    reference: {reference}"
        lines.append(f"{source}\n    {found}{mark}")
    title = f"The first {COUNT} sentences of the test split (checkpoint {label})"
    text.set_title(title, fontsize=10, loc="left")
    text.text(0, 1, "\n".join(lines), va="top", fontsize=9, linespacing=1.4, in_layout=False)
    figure.savefig(OUTPUT.value, dpi=110)


if __name__ == "__main__":
    app.run(main)
