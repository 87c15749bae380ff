"""Measures how soon programs answer: `python -m benchmarks.startup [--multi30k=DATA]`.

It measures seconds from the start of the process to the first training step, and to the first
translation. Each is measured with an empty compilation cache (cold) and with a filled one (warm);
text, tokens and vocabulary exist in both cases. It also measures the seconds of CPU that --help of
each program takes.
"""

import argparse
import functools
import json
import os
import shutil
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
from t2t.runtime.jax_settings import CACHE_VARIABLE, SHORTEST_COMPILATION
from t2t.training.provenance import find_revision, find_versions, now

PACKAGES = ("jax", "jaxlib", "flax", "orbax-checkpoint")
STEPS = 2
SENTENCE = "A girl climbs.\n"


def run(command: list[str], programs: Path, text: str = "") -> tuple[float, float]:
    """Runs a program of t2t; returns its seconds of wall time and of CPU."""
    began, before = time.time(), os.times()
    subprocess.run(
        [sys.executable, "-m", *command],
        input=text,
        # With the first variable alone JAX would keep only what compiles for more than a second.
        env=os.environ
        | {
            CACHE_VARIABLE: str(programs),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(SHORTEST_COMPILATION),
        },
        check="--help" not in command,  # absl ends with status 1 after --help
        capture_output=True,
        text=True,
    )
    after = os.times()
    cpu = after.children_user + after.children_system
    return time.time() - began, cpu - before.children_user - before.children_system


def train(recipe: list[str], workdir: Path, programs: Path) -> dict[str, float]:
    """Trains in a run directory that only has a vocabulary, if it exists at all.

    Returns:
        Seconds to the first step, from the run's own metrics.
    """
    if workdir.exists():
        for path in workdir.iterdir():
            if path.name != "vocab":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    began = time.time()
    flags = {
        "data.cache_directory": workdir.parent / "cache",
        "training.steps": STEPS,
        "training.log_every": 1,
        "training.validate_every": STEPS,
        "checkpoints.every": STEPS,
    }
    options = [f"--config.{name}={value}" for name, value in flags.items()]
    run(["t2t.train", *recipe, *options, f"--workdir={workdir}"], programs)
    first = json.loads((workdir / "metrics.jsonl").read_text().splitlines()[0])
    return {"first_step": first["time"] - began}


def translate(workdir: Path, programs: Path) -> dict[str, float]:
    """Translates one sentence; returns the seconds that it took."""
    seconds, _ = run(["t2t.translate", f"--workdir={workdir}"], programs, SENTENCE)
    return {"first_translation": seconds}


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
    default = Path("benchmarks/results/quickstart/startup.json")
    parser.add_argument("--output", type=Path, default=default, help="output file")
    parser.add_argument("--repeats", type=int, default=3, help="starts of each kind, cold and warm")
    parser.add_argument("--multi30k", help="data.directory of Multi30k; without it: quickstart")
    flags = parser.parse_args()
    recipes = {"quickstart": ["--config=configs/quickstart.py"]}
    if flags.multi30k:
        directory = f"--config.data.directory={flags.multi30k}"
        recipes["multi30k"] = ["--config=configs/multi30k.py:en-de", directory]
    facts = {**find_revision(), "date": now(), "versions": find_versions(PACKAGES)}
    shown = f"python -m benchmarks.startup --repeats={flags.repeats}"
    shown += " --multi30k=DATA" if flags.multi30k else ""
    result: dict[str, Any] = {"command": shown} | facts | {"training": {}, "translation": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for recipe, options in recipes.items():
            workdir = folder / recipe
            train(options, workdir, folder / "programs")  # makes vocabulary and tokens
            start = functools.partial(train, options, workdir)
            result["training"][recipe] = measure(start, flags.repeats)
            start = functools.partial(translate, workdir)
            result["translation"][recipe] = measure(start, flags.repeats)
        result["help_cpu"] = {
            program: run([f"t2t.{program}", "--help"], folder)[1] for program in list_programs()
        }
    write(flags.output, result)
    print(flags.output)


if __name__ == "__main__":
    main()
