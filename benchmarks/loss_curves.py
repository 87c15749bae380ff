"""Compares loss curves of low precision and float32: `python -m benchmarks.loss_curves`.

Trains the quickstart recipe from the same initial parameters on the same batches in float32 and in
another dtype, and once more in float32 with another seed, as a scale for the difference.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
from matplotlib.figure import Figure

from benchmarks.contest import write
from t2t.training.provenance import find_versions

EVERY = 10  # losses are means over this many steps
SEED = "another seed"


def train(folder: Path, steps: int, dtype: str, seed: int) -> dict[int, float]:
    """Trains; returns step -> training loss in nats per sub-word, mean of `EVERY` steps."""
    workdir = folder / f"{dtype}-{seed}"
    options = {
        "model.dtype": dtype,
        "seed": seed,
        "training.steps": steps,
        "training.log_every": EVERY,
        "training.validate_every": steps,
        "checkpoints.every": steps,
        "data.cache_directory": folder / "cache",
    }
    subprocess.run(
        [
            *(sys.executable, "-m", "t2t.train", "--config=configs/quickstart.py"),
            f"--workdir={workdir}",
            *(f"--config.{name}={value}" for name, value in options.items()),
        ],
        check=True,
        capture_output=True,
    )
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}


def draw(curves: dict[str, dict[int, float]], path: Path) -> None:
    """Plots the losses and their differences from float32."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    wide = curves["float32"]
    for name, curve in curves.items():
        left.plot(list(curve), list(curve.values()), label=name)
        if curve is not wide:
            right.plot(list(curve), [loss - wide[step] for step, loss in curve.items()], label=name)
    left.set(xlabel="step", ylabel="training loss, nats per sub-word")
    right.set(xlabel="step", ylabel="loss minus loss in float32")
    left.legend()
    right.legend()
    figure.savefig(path)


def main() -> None:
    """Trains three times, prints the largest differences, writes the file and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    narrow = "mixed" if jax.default_backend() == "cpu" else "bfloat16"
    parser.add_argument("--dtype", default=narrow)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/training/loss-curves.json")
    )
    flags = parser.parse_args()
    runs = {"float32": ("float32", 0), flags.dtype: (flags.dtype, 0), SEED: ("float32", 1)}
    with tempfile.TemporaryDirectory() as name:
        curves = {run: train(Path(name), flags.steps, *settings) for run, settings in runs.items()}
    result: dict[str, Any] = {
        "device": jax.devices()[0].device_kind,
        "versions": find_versions(("jax", "jaxlib", "flax")),
        "largest_difference": {
            run: max(abs(loss - curves["float32"][step]) for step, loss in curve.items())
            for run, curve in curves.items()
            if run != "float32"
        },
        "curves": curves,
    }
    for run, difference in result["largest_difference"].items():
        print(f"{run:12} at most {difference:.4f} nats away from float32 (means of {EVERY} steps)")
    write(flags.output, result)
    draw(curves, flags.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
