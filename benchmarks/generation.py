"""Compares generation with Hugging Face: `python -m benchmarks.generation --peer_python=PYTHON`.

PYTHON is an interpreter with torch and transformers (CPU builds suffice). Both programs continue
the same random prompts with a model like GPT-2 (learned positions, pre-norm, one table) of equal
size and random parameters, in float32, by 32 sub-words each. Ratios are medians over rounds in
turns. Where other programs use the same cores, threads of PyTorch spin while they wait for each
other, so compare with its runs on one thread, and per second of CPU time.
"""

import argparse
import os
import sys
from pathlib import Path

from benchmarks.contest import Contestant, compare, describe, take_turns, write

CASES = {  # prompts, beam size
    "32 prompts, greedy": (32, 1),
    "one prompt, greedy": (1, 1),
    "8 prompts, beam 4": (8, 4),
}
FIGURES = {"tokens_per_second": "tokens/s", "tokens_per_cpu_second": "tokens/CPU s"}


def main() -> None:
    """Prints a table for each case and writes all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer_python", required=True)
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/generation/cpu.json")
    )
    parser.add_argument("--note", default="", help="what else the machine did, for the file")
    arguments = parser.parse_args()
    result: dict[str, object] = {"note": arguments.note}
    peer = [arguments.peer_python, "-m", "benchmarks.contestants.generate_huggingface"]
    programs = {"t2t": [sys.executable, "-m", "benchmarks.contestants.generate_t2t"]} | {
        f"Hugging Face, threads: {threads}": [*peer, f"--threads={threads}"]
        for threads in dict.fromkeys((len(os.sched_getaffinity(0)), 1))
    }
    for case, (prompts, beam) in CASES.items():
        flags = [f"--prompts={prompts}", f"--beam={beam}"]
        contestants = [Contestant(name, [*call, *flags]) for name, call in programs.items()]
        turns = take_turns(contestants, arguments.rounds)
        tables = {figure: compare(turns, figure, "t2t") for figure in FIGURES}
        for figure, rows in tables.items():
            print(f"{case}\n{describe(rows, FIGURES[figure])}\n", flush=True)
        result[case] = {"comparison": tables, "turns": turns}
    write(arguments.output, result)


if __name__ == "__main__":
    main()
