"""Measures what t2t.prepare saves at the start of training: `python -m benchmarks.preparation`.

The corpus has generated sentences of WMT-like vocabulary, six words each; the model is small, so
that its compilation does not hide the rest. Seconds from the command to its end, each program in a
process of its own, with a filled compilation cache.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.contest import write
from benchmarks.input_pipeline import write_lines
from t2t.training.provenance import find_revision, find_versions, now

STEPS = 2


def make_command(program: str, folder: Path, workdir: str, changes: dict[str, Any]) -> list[str]:
    """Returns the command of a program for the corpus in `folder` and a small model."""
    flags = {
        "data.train_src": folder / "src",
        "data.train_tgt": folder / "tgt",
        "data.cache_directory": folder / "cache",
        "data.batch_tokens": 1024,
        "data.packed_length": 64,
        "data.max_length": 64,
        "model.num_layers": 1,
        "model.d_model": 64,
        "model.d_ff": 128,
        "tokenizer.vocab_size": 8000,
        "training.log_every": 1,
        **changes,
    }
    command = [sys.executable, "-m", program, "--config=configs/text.py"]
    command += [f"--config.{name}={value}" for name, value in flags.items()]
    return [*command, f"--workdir={folder / workdir}"]


def run(program: str, folder: Path, workdir: str, cache: str, steps: int = STEPS) -> float:
    """Runs a program on the corpus in `folder`; returns its seconds."""
    changes = {"data.cache_directory": folder / cache, "training.steps": steps}
    command = make_command(program, folder, workdir, changes)
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def measure(pairs: int) -> dict[str, Any]:
    """Measures one size of corpus."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, seed in (("src", 1), ("tgt", 2)):
            with (folder / side).open("w") as file:
                file.writelines(write_lines(pairs, seed))
        run("t2t.train", folder, "warm-up", "cache-of-warm-up")  # fills the compilation cache
        figures = {
            "pairs": pairs,
            "train_unprepared": run("t2t.train", folder, "alone", "cache-of-alone"),
            "prepare": run("t2t.prepare", folder, "run", "cache"),
            "prepare_again": run("t2t.prepare", folder, "run", "cache"),
            "train_prepared": run("t2t.train", folder, "run", "cache"),
            "train_continued": run("t2t.train", folder, "run", "cache", 2 * STEPS),
        }
    print(json.dumps(figures), flush=True)
    return figures


def main() -> None:
    """Measures a corpus, and one of a tenth of its size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    default = Path("benchmarks/results/data/preparation.json")
    parser.add_argument("--output", type=Path, default=default, help="output file")
    flags = parser.parse_args()
    facts = {**find_revision(), "date": now(), "versions": find_versions(("jax", "sentencepiece"))}
    sizes = [measure(pairs) for pairs in (flags.pairs // 10, flags.pairs)]
    write(flags.output, facts | {"steps": STEPS, "seconds": sizes})


if __name__ == "__main__":
    main()
