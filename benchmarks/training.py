"""Compares training speed with PyTorch: `python -m benchmarks.training --peer_python=PYTHON`.

PYTHON is an interpreter with torch and transformers (CPU builds suffice); without it t2t runs
alone. Throughput counts target tokens without padding, through forward pass, backward pass and
Adam. Large memory pages help some programs only, so the fastest run with and without them.
"""

import argparse
import re
import sys
from pathlib import Path

from benchmarks.contest import LARGE_PAGES, Contestant, compare, describe, take_turns, write
from benchmarks.workload import SIZES


def list_contestants(size: str, seconds: float, peer_python: str) -> list[Contestant]:
    """Lists the contestants, t2t first."""
    turn = [f"--size={size}", f"--seconds={seconds:g}"]
    ours = [sys.executable, "-m", "benchmarks.contestants.train_t2t", *turn]
    found = [
        Contestant(f"t2t {precision}", [*ours, f"--dtype={precision}"], LARGE_PAGES)
        for precision in ("mixed", "float32")
    ]
    found.append(Contestant("t2t mixed, small pages", [*ours, "--dtype=mixed"]))
    if peer_python:
        peer = [peer_python, "-m", "benchmarks.contestants.train_pytorch", *turn]
        found += [
            Contestant(
                f"{program} {precision}", [*peer, f"--program={key}", f"--precision={precision}"]
            )
            for key, program in {
                "hand": "PyTorch by hand",
                "nn": "PyTorch nn.Transformer",
                "marian": "Hugging Face Marian",
            }.items()
            for precision in ("float32", "bfloat16")
        ]
        found += [
            Contestant(f"{one.name}, large pages", one.command, LARGE_PAGES)
            for one in found
            if one.name in ("PyTorch by hand bfloat16", "PyTorch nn.Transformer bfloat16")
        ]
    return found


def main() -> None:
    """Prints a table for each size and writes all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(SIZES), help="some of " + ", ".join(SIZES))
    parser.add_argument(
        "--only", default="", help="regular expression that the names of contestants must match"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8, help="of a turn, without its warm-up")
    parser.add_argument("--peer_python", default="")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/training/cpu.json"))
    arguments = parser.parse_args()
    result = {}
    for size in arguments.sizes.split(","):
        contestants = [
            one
            for one in list_contestants(size, arguments.seconds, arguments.peer_python)
            if re.search(arguments.only, one.name)
        ]
        if not contestants:
            parser.error(f"--only={arguments.only} matches no contestant")
        turns = take_turns(contestants, arguments.rounds)
        rows = compare(turns, "tokens_per_second", contestants[0].name)
        print(f"{size}\n{describe(rows, 'tokens/s')}\n", flush=True)
        result[size] = {"comparison": rows, "turns": turns}
    write(arguments.output, result)


if __name__ == "__main__":
    main()
