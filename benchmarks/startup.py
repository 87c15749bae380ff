"""Measures how soon programs answer: `python -m benchmarks.startup [--multi30k=DATA]`.

Seconds from the start of the process to the first and the hundredth training step, with batches of
packed rows and of several shapes, and to the first translation. Each with an empty compilation
cache (cold) and with a filled one (warm); text and tokens are cached in both cases. Then the
seconds of CPU that --help of each program takes.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contest import write
from t2t.__main__ import list_programs
from t2t.runtime.compilation_cache import VARIABLE
from t2t.training.provenance import find_versions

PACKAGES = ("jax", "jaxlib", "flax", "orbax-checkpoint")
STEPS = 100
BATCHES = {"packed rows": [], "shapes": ["--config.data.packed_length=0"]}
SENTENCE = "A girl climbs.\n"


def run(command: list[str], programs: Path, text: str = "") -> tuple[float, float]:
    """Runs a program of t2t; returns its seconds of wall time and of CPU."""
    began, before = time.time(), os.times()
    environment = os.environ | {VARIABLE: str(programs)}
    python = [sys.executable, "-m", *command]
    subprocess.run(python, input=text, env=environment, check=True, capture_output=True, text=True)
    after = os.times()
    cpu = after.children_user + after.children_system
    return time.time() - began, cpu - before.children_user - before.children_system


def train(recipe: list[str], folder: Path, programs: Path) -> dict[str, float]:
    """Trains `STEPS` steps in an empty run directory; returns seconds from its own metrics."""
    workdir = Path(tempfile.mkdtemp(dir=folder)) / "run"
    began = time.time()
    run(
        [
            *("t2t.train", *recipe, f"--workdir={workdir}", "--config.training.log_every=1"),
            f"--config.data.cache_directory={folder / 'cache'}",
            f"--config.training.steps={STEPS}",
            f"--config.checkpoints.every={STEPS}",
        ],
        programs,
    )
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    seconds = {line["step"]: line["time"] - began for line in lines if "train/loss" in line}
    return {"first_step": seconds[1], f"step_{STEPS}": seconds[STEPS]}


def measure(start: Callable[[Path], dict[str, float]], repeats: int) -> dict[str, Any]:
    """Measures cold and warm starts in turns; returns their medians and all figures."""
    runs: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as programs:
            for kind in runs:
                runs[kind].append(start(Path(programs)))
    medians = {
        kind: {name: statistics.median(each[name] for each in of_kind) for name in of_kind[0]}
        for kind, of_kind in runs.items()
    }
    print(json.dumps(medians), flush=True)
    return {"medians": medians, "runs": runs}


def main() -> None:
    """Measures, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path("benchmarks/results/startup.json")
    parser.add_argument("--output", type=Path, default=default, help="output file")
    parser.add_argument("--repeats", type=int, default=3, help="starts of each kind, cold and warm")
    parser.add_argument("--multi30k", help="data.directory of Multi30k; without it: quickstart")
    flags = parser.parse_args()
    recipes = {"quickstart": ["--config=configs/quickstart.py"]}
    if flags.multi30k:
        directory = f"--config.data.directory={flags.multi30k}"
        recipes["multi30k"] = ["--config=configs/multi30k.py:en-de", directory]
    result: dict[str, Any] = {"versions": find_versions(PACKAGES), "training": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for recipe, options in recipes.items():
            for batches, more in BATCHES.items():
                command = [*options, *more]
                train(command, folder, folder / "programs")  # fills the caches of text and tokens
                result["training"][f"{recipe}, {batches}"] = measure(
                    functools.partial(train, command, folder),
                    flags.repeats,
                )
        [workdir, *_] = sorted(folder.glob("*/run"))
        translate = ["t2t.translate", f"--workdir={workdir}"]
        result["translation"] = measure(
            lambda programs: {"first_translation": run(translate, programs, SENTENCE)[0]},
            flags.repeats,
        )
        result["help_cpu"] = {
            program: run([f"t2t.{program}", "--help"], folder)[1] for program in list_programs()
        }
    write(flags.output, result)
    print(flags.output)


if __name__ == "__main__":
    main()
