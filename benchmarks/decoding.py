"""Compares decoding speed with its peers: `python -m benchmarks.decoding --peer_python=PYTHON`.

PYTHON is an interpreter with torch and transformers (CPU builds suffice); without it Hugging Face
is left out. All programs use beam 4 and outputs forced to the lengths of references. All sentences
are known from the start: t2t forms its own batches; the others get batches whose outputs have equal
length, which is their best case. CTranslate2 has the same random parameters as t2t, Hugging Face
random ones of its own.

Throughput is given per second of wall-clock time and of CPU time, since the former says little if
other programs use the same cores. On such a machine the peers' threads also spin while they wait
for each other, so compare with their runs on one thread.
"""

import argparse
import os
import sys
from pathlib import Path

from benchmarks.contest import Contestant, compare, describe, take_turns, write

SENTENCES = {"tiny": 600, "small": 300, "base": 200}
FIGURES = {"tokens_per_second": "tokens/s", "tokens_per_cpu_second": "tokens/CPU s"}


def list_contestants(size: str, sentences: int, peer_python: str) -> list[Contestant]:
    """Lists the contestants, t2t first."""

    def make(name: str, python: str, program: str, *options: str) -> Contestant:
        turn = [f"--size={size}", f"--sentences={sentences}", *options]
        return Contestant(name, [python, "-m", f"benchmarks.contestants.{program}", *turn])

    found = [
        make(f"t2t {dtype}", sys.executable, "decode_t2t", f"--dtype={dtype}")
        for dtype in ("mixed", "float32")
    ]
    cores = len(os.sched_getaffinity(0))
    for workers, threads in dict.fromkeys(((1, cores), (1, 1), (cores, 1))):
        name = f"CTranslate2, workers: {workers}, threads: {threads}"
        both = f"--workers={workers}", f"--threads={threads}"
        found.append(make(name, sys.executable, "decode_ctranslate2", *both))
    if peer_python:
        for threads in dict.fromkeys((cores, 1)):
            name = f"Hugging Face, threads: {threads}"
            found.append(make(name, peer_python, "decode_huggingface", f"--threads={threads}"))
    return found


def main() -> None:
    """Prints two tables for each size and writes all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="tiny,base")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--sentences", type=int, help=f"sentences of each size; default: {SENTENCES}"
    )
    parser.add_argument("--peer_python", default="")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/decoding/cpu.json"))
    arguments = parser.parse_args()
    result = {}
    for size in arguments.sizes.split(","):
        sentences = arguments.sentences or SENTENCES[size]
        contestants = list_contestants(size, sentences, arguments.peer_python)
        turns = take_turns(contestants, arguments.rounds)
        tables = {figure: compare(turns, figure, contestants[0].name) for figure in FIGURES}
        for figure, rows in tables.items():
            print(f"{size}\n{describe(rows, FIGURES[figure])}\n", flush=True)
        result[size] = {"comparison": tables, "turns": turns}
    write(arguments.output, result)


if __name__ == "__main__":
    main()
