"""Trains from 100 million generated pairs: `python -m benchmarks.large_corpus --folder=NEW`.

It prepares and trains from a tenth of --pairs, then from all, and measures seconds and peak memory
of each program. Another run of the same config is killed by SIGKILL after a checkpoint and started
again; its losses must equal those of the first. The sentences have three words, so that the text is
small: time grows with the text, memory with the number of pairs.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.contest import write
from benchmarks.input_pipeline import write_lines
from benchmarks.preparation import make_command
from t2t.training.provenance import find_revision, find_versions, now
from t2t.training.run_directory import list_steps

STEPS, CHECKPOINT = 60, 20
WORDS = 3  # per line
FLAGS = {
    "training.steps": STEPS,
    "training.validate_every": CHECKPOINT,
    "checkpoints.every": CHECKPOINT,
}


def start(program: str, folder: Path, workdir: str) -> subprocess.Popen[bytes]:
    """Starts a program on the corpus in `folder`."""
    return subprocess.Popen(make_command(program, folder, workdir, FLAGS))


def run(program: str, folder: Path, workdir: str) -> dict[str, float]:
    """Runs a program; returns its seconds and its peak memory.

    The system may drop the pages of mapped files at any time, so memory is told without them.

    Raises:
        RuntimeError: the program failed.
    """
    began, peak = time.perf_counter(), 0
    process = start(program, folder, workdir)
    while True:
        with contextlib.suppress(OSError):  # the process has just ended
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = max(peak, *map(int, re.findall(r"RssAnon:\s*(\d+) kB", status)), 0)
        ended, code, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            break
        time.sleep(0.1)
    if code:
        raise RuntimeError(f"{program} ended with status {os.waitstatus_to_exitcode(code)}")
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_gigabytes": peak * 1024 / 1e9,
        "peak_gigabytes_with_mapped_files": usage.ru_maxrss * 1024 / 1e9,
    }


def read_losses(workdir: Path) -> dict[int, float]:
    """Returns the loss of each training step."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    figures = map(json.loads, lines)
    return {each["step"]: each["train/loss"] for each in figures if "train/loss" in each}


def kill_after_checkpoint(folder: Path, workdir: str) -> int:
    """Kills a training run some steps after its first checkpoint; returns the last step it made.

    Raises:
        RuntimeError: training ended before.
    """
    process = start("t2t.train", folder, workdir)
    path = folder / workdir
    while not list_steps(path) or max(read_losses(path)) < CHECKPOINT + 5:
        if process.poll() is not None:
            raise RuntimeError(f"training ended with status {process.returncode}")
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return max(read_losses(path))


def measure(pairs: int, folder: Path) -> dict[str, Any]:
    """Measures one size of corpus, and removes it."""
    folder.mkdir(parents=True)
    for side, seed in (("src", 1), ("tgt", 2)):
        with (folder / side).open("w") as file:
            file.writelines(write_lines(pairs, seed, WORDS))
    figures: dict[str, Any] = {
        "pairs": pairs,
        "text_gigabytes": sum((folder / side).stat().st_size for side in ("src", "tgt")) / 1e9,
        "prepare": run("t2t.prepare", folder, "whole"),
        "prepare_again": run("t2t.prepare", folder, "whole"),
        "train": run("t2t.train", folder, "whole"),
    }
    shutil.copytree(folder / "whole" / "vocab", folder / "killed" / "vocab")
    figures["killed_at_step"] = kill_after_checkpoint(folder, "killed")
    figures["continue"] = run("t2t.train", folder, "killed")
    losses = [read_losses(folder / workdir) for workdir in ("whole", "killed")]
    figures["same_losses"] = losses[0] == losses[1] and len(losses[0]) == STEPS
    files = (path for path in (folder / "cache").rglob("*") if path.is_file())
    figures["cache_gigabytes"] = sum(path.stat().st_size for path in files) / 1e9
    print(json.dumps(figures), flush=True)
    shutil.rmtree(folder)
    return figures


def main() -> None:
    """Measures a tenth of the pairs, and all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100_000_000)
    parser.add_argument("--folder", type=Path, required=True, help="a new folder for the corpora")
    default = Path("benchmarks/results/data/large-corpus.json")
    parser.add_argument("--output", type=Path, default=default, help="output file")
    flags = parser.parse_args()
    facts = {**find_revision(), "date": now(), "versions": find_versions(("jax", "sentencepiece"))}
    sizes = [
        measure(pairs, flags.folder / str(pairs)) for pairs in (flags.pairs // 10, flags.pairs)
    ]
    write(flags.output, facts | {"words_per_line": WORDS, "steps": STEPS, "sizes": sizes})
    print(flags.output)


if __name__ == "__main__":
    main()
