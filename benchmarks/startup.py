"""Measures the time from process start to the first training step: `python -m benchmarks.startup`.

Starts the quickstart recipe with 1, 4 and 16 batch shapes, with an empty compilation cache (cold)
and with a filled one (warm), and trains until every shape has occurred. The tokenised corpus is
cached in both cases.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.contest import write
from configs.quickstart import get_config
from t2t.data.batching import BatchPlan
from t2t.data.corpus_sources import open_split
from t2t.data.token_cache import tokenize_corpus
from t2t.data.tokenizer import Vocabulary, train_vocabulary
from t2t.runtime.compilation_cache import VARIABLE
from t2t.training.provenance import find_versions

NUM_SHAPES = (1, 4, 16)
PACKAGES = ("jax", "jaxlib", "flax", "orbax-checkpoint")


def find_steps(num_shapes: int, vocabulary: Vocabulary, folder: Path) -> int:
    """Returns the number of steps after which every shape has occurred."""
    config = get_config()
    config.data.num_shapes = num_shapes
    corpus = tokenize_corpus(open_split(config.data, "train"), vocabulary, folder / "cache")
    plan = BatchPlan([(corpus.src_lengths, corpus.tgt_lengths)], config.data, config.seed)
    met = set()
    for step in range(plan.steps_per_epoch):
        met.add(plan.batch(step).shape)
        if met == set(plan.shapes):
            return step + 1
    return plan.steps_per_epoch  # some shape has too few pairs for a batch


def start(
    num_shapes: int, steps: int, vocabulary: Vocabulary, folder: Path, programs: Path
) -> dict[str, float]:
    """Starts training once; returns seconds from the run's own metrics."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        run = Path(name)
        vocabulary.save(run / "vocab")
        command = [
            *(sys.executable, "-m", "t2t.train", "--config=configs/quickstart.py"),
            *(f"--workdir={run}", f"--config.data.cache_directory={folder / 'cache'}"),
            *(f"--config.data.num_shapes={num_shapes}", f"--config.training.steps={steps}"),
            "--config.training.log_every=1",
            *(f"--config.training.validate_every={steps}", f"--config.checkpoints.every={steps}"),
        ]
        began = time.time()
        before = os.times()
        subprocess.run(
            command, env=os.environ | {VARIABLE: str(programs)}, check=True, capture_output=True
        )
        after = os.times()
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        seconds = {line["step"]: line["time"] - began for line in lines if "train/loss" in line}
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return {"first_step": seconds[1], "all_shapes": seconds[steps], "whole_cpu": cpu}


def measure(num_shapes: int, repeats: int, vocabulary: Vocabulary, folder: Path) -> dict[str, Any]:
    """Measures cold and warm starts in turns; returns medians and all figures."""
    steps = find_steps(num_shapes, vocabulary, folder)
    runs: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(dir=folder) as programs:
            for kind in runs:
                runs[kind].append(start(num_shapes, steps, vocabulary, folder, Path(programs)))
    medians = {
        kind: {name: statistics.median(run[name] for run in of_kind) for name in of_kind[0]}
        for kind, of_kind in runs.items()
    }
    print(num_shapes, "shapes:", json.dumps(medians))
    return {"num_shapes": num_shapes, "steps": steps, "medians": medians, "runs": runs}


def draw(result: dict[str, Any], path: Path) -> None:
    """Plots seconds against the number of shapes."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    shapes = [entry["num_shapes"] for entry in result["starts"]]
    for kind, marker in (("cold", "o"), ("warm", "s")):
        for name, line in (("all_shapes", "-"), ("first_step", ":")):
            seconds = [entry["medians"][kind][name] for entry in result["starts"]]
            label = f"{kind}, {name.replace('_', ' ')}"
            axes.plot(shapes, seconds, line, marker=marker, label=label)
    axes.set(xlabel="batch shapes", ylabel="seconds since process start", ylim=(0, None))
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measures, writes the file and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path("benchmarks/results/startup.json")
    parser.add_argument("--output", type=Path, default=default, help="output file")
    parser.add_argument("--repeats", type=int, default=3, help="starts of each kind, cold and warm")
    flags = parser.parse_args()
    result: dict[str, Any] = {"versions": find_versions(PACKAGES)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = get_config()
        corpus = open_split(config.data, "train")
        vocabulary = train_vocabulary([corpus], config.tokenizer, folder / "vocab")
        result["starts"] = [
            measure(num_shapes, flags.repeats, vocabulary, folder) for num_shapes in NUM_SHAPES
        ]
    write(flags.output, result)
    print(flags.output)
    draw(result, flags.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
