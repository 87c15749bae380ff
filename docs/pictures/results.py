"""Draws the figures of docs/results.md from the raw files in benchmarks/results.

python -m docs.pictures.results
"""

import json
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).parents[2]
RAW = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "docs" / "pictures"
# "- ROW is worse than base: DIFFERENCE MEASURE (95% interval [LOW, HIGH], ..." in a sweep's report.
VERDICT = re.compile(r"^- (\S+) is .*base.*: ([-+][\d.]+) bleu\w* \((.*)\)", re.MULTILINE)
INTERVAL = re.compile(r"95% interval \[?([-+]?[\d.]+)(?: to |, )([-+]?[\d.]+)")
CHIPS = ("h100-1", "h100-8", "h100-8x4", "b200-8")
SECONDS_PER_STEP = 0.3  # of the Multi30k model, on one core


def read(name: str) -> Any:
    """A raw file."""
    return json.loads((RAW / name).read_text("utf-8"))


def draw_ablations() -> None:
    """Differences from base by sweep: a forest plot."""
    titles = {
        "low_resource": "Multi30k, 1,500 steps,\nsentences and seeds",
        "remove_one": "phrasebook, 800 steps,\nsentences, one seed",
        "table3": "the paper's Table 3, small,\nseeds",
    }
    figure, panels = plt.subplots(1, 3, figsize=(11, 4.6), layout="constrained")
    for axes, (sweep, title) in zip(panels, titles.items(), strict=True):
        report = (RAW / "sweeps" / sweep / "report.md").read_text("utf-8")
        found = VERDICT.findall(report)
        for row, (_, difference, rest) in enumerate(found):
            low, high = map(float, INTERVAL.findall(rest)[-1])
            axes.plot([low, high], [row, row], color="tab:blue")
            axes.plot(float(difference), row, "o", color="tab:blue")
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set_yticks(range(len(found)), [name for name, *_ in found], fontsize=8)
        axes.invert_yaxis()
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("BLEU, difference from base, 95%", fontsize=8)
    figure.savefig(PICTURES / "ablations.png", dpi=90)


def draw_transfer() -> None:
    """BLEU against the number of pairs, by what the training begins with."""
    titles = {
        "from-translation": "an English-French model",
        "base": "from scratch",
        "from-spans": "a model of the text alone",
    }
    row = re.compile(r"^\| (\S+) .* ([\d.]+) \[([\d.]+), ([\d.]+)\], 3 seeds", re.MULTILINE)
    sizes = (300, 1_000, 29_000)
    reports = [(RAW / "sweeps" / "transfer" / f"{size}.md").read_text("utf-8") for size in sizes]
    scores = [{name: list(map(float, found)) for name, *found in row.findall(r)} for r in reports]
    figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
    for name, title in titles.items():
        value, low, high = np.array([score[name] for score in scores]).T
        axes.errorbar(sizes, value, [value - low, high - value], marker="o", capsize=3, label=title)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("German-French pairs")
    axes.set_ylabel("bleu_lowercase, validation, 95%")
    axes.legend(fontsize=8)
    figure.savefig(PICTURES / "transfer.png", dpi=90)


def draw_multi30k() -> None:
    """Validation BLEU against the training time of all models that it takes."""
    students, second = read("multi30k/students-10000.json"), read("multi30k/second-generation.json")
    first = read("multi30k/translations.json")["runs"]
    teachers, translating = 2 * 7_000 * SECONDS_PER_STEP / 60, 13
    generation = teachers + translating + 2 * 10_000 * SECONDS_PER_STEP / 60 + 10
    points = {
        "teacher, 7,000 steps (mean of 3 seeds)": (
            teachers / 2,
            students["mean_of_three_teachers"]["validation"],
        ),
        "student, 8,000 steps": (
            teachers + translating + 8_000 * SECONDS_PER_STEP / 60,
            find_score(first["student-en-de"]),
        ),
        "student, 10,000 steps (mean of 3 seeds)": (
            teachers + translating + 10_000 * SECONDS_PER_STEP / 60,
            students["mean_of_three_students"]["validation"]["bleu_multi30k"],
        ),
        "second generation, 13,500 steps": (
            generation + 13_500 * SECONDS_PER_STEP / 60,
            find_score(second["runs"]["student2-three"]),
        ),
    }
    figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
    for label, (minutes, (value, (low, high), *_)) in points.items():
        axes.errorbar(
            minutes, value, [[value - low], [high - value]], fmt="o", capsize=3, label=label
        )
    axes.set_xlim(left=0)
    axes.set_xlabel("minutes of one core, at 0.3 s a step")
    axes.set_ylabel("bleu_multi30k, validation, 95%")
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(PICTURES / "multi30k.png", dpi=90)


def find_score(run: dict[str, Any]) -> tuple[float, tuple[float, float]]:
    """Validation BLEU and its interval over sentences."""
    [name] = [name for name in run if re.fullmatch(r"validation(-ema.*)?", name)]
    score = run[name]["measures"]["bleu_multi30k"]
    return score["value"], score["interval"]


def draw_speed() -> None:
    """Throughput beside other programs: medians, and the least and the most of the rounds."""
    training = read("training/cpu-large-pages.json")
    figure, panels = plt.subplots(2, 3, figsize=(11, 5), layout="constrained")
    parts = {
        f"training, {size}": training[size]["comparison"] for size in ("tiny", "small", "base")
    }
    for size in ("tiny", "base"):
        decoding = read(f"decoding/cpu-{size}.json")[size]["comparison"]
        parts[f"beam search, {size}"] = decoding["tokens_per_second"]
    panels[1, 2].axis("off")
    for axes, (title, rows) in zip(panels.flat, parts.items(), strict=False):
        values = np.array([[row["least"], row["median"], row["most"]] for row in rows])
        errors = np.diff(values, axis=1).T
        colours = ["tab:blue" if row["name"].startswith("t2t") else "silver" for row in rows]
        names = [row["name"].removeprefix("PyTorch ").replace(", ", "\n", 1) for row in rows]
        axes.barh(names, values[:, 1], xerr=errors, color=colours, ecolor="black")
        axes.invert_yaxis()
        axes.tick_params(labelsize=7)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("tokens per second", fontsize=8)
    figure.savefig(PICTURES / "speed.png", dpi=90)


def draw_plans() -> None:
    """Least milliseconds of a step on GPUs, by what limits it."""
    names = [f"{size}-{chips}" for size in ("base", "big") for chips in CHIPS]
    plans = [read(f"plans/{name}.json")["seconds"] for name in names]
    figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
    for place, part in enumerate(("compute", "memory", "NVLink", "network")):
        values = [1000 * plan.get(part, 0) for plan in plans]
        axes.barh(np.arange(len(names)) + 0.2 * place - 0.3, values, height=0.2, label=part)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds a step at the data sheet's peak rates; not run")
    axes.legend(fontsize=8)
    figure.savefig(PICTURES / "plans.png", dpi=90)


if __name__ == "__main__":
    draw_ablations()
    draw_transfer()
    draw_multi30k()
    draw_speed()
    draw_plans()
