"""Compares programs; they run in turns, so that changes of the machine's speed affect all alike.

A contestant is a command that prints one line of JSON; it may use a Python environment of its own.
"""

import dataclasses
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tqdm

from t2t.runtime.machine_speed import read_cpu
from t2t.runtime.text_tables import format_table

ROOT = Path(__file__).parents[1]
PLACES = {"--peer_python": "PYTHON", "--checkout": "PATH", "--before": "CHECKOUT"}
VECTORS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")  # by which speeds differ
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # as in launch/quickstart.sh


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A program and its settings."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    folder: Path = ROOT  # where it runs

    def run(self) -> dict[str, Any]:
        """Runs the program once and returns its figures.

        Raises:
            SystemExit: the program failed.
        """
        usual = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        environment = {**os.environ, **usual, **self.environment}
        done = subprocess.run(
            self.command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{self.name} failed:\n{' '.join(self.command)}\n{done.stderr}")
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures


def take_turns(contestants: Sequence[Contestant], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Runs all contestants in turns; returns name -> figures, one entry per round.

    Every other round has the opposite order, since a program may be slowed by the one before it.
    """
    results: dict[str, list[dict[str, Any]]] = {one.name: [] for one in contestants}
    with tqdm.tqdm(total=rounds * len(contestants), disable=not sys.stderr.isatty()) as bar:
        for number in range(rounds):
            for one in contestants[:: -1 if number % 2 else 1]:
                bar.set_description(one.name)
                results[one.name].append(one.run())
                bar.update()
    return results


def compare(
    results: Mapping[str, Sequence[Mapping[str, Any]]], figure: str, ours: str
) -> list[dict[str, Any]]:
    """Compares one figure; returns median, minimum, maximum and ratio, the best contestant first.

    The ratio is the median over rounds of `ours` divided by the contestant.
    """
    rows = []
    for name, turns in results.items():
        values = [turn[figure] for turn in turns]
        ratios = [own[figure] / value for own, value in zip(results[ours], values, strict=True)]
        rows.append(
            {
                "name": name,
                "median": statistics.median(values),
                "least": min(values),
                "most": max(values),
                "ours_over_this": statistics.median(ratios),
            }
        )
    return sorted(rows, key=lambda row: -float(row["median"]))


def describe(rows: Sequence[Mapping[str, Any]], unit: str) -> str:
    """Formats the comparison as a table, with the ratio first."""
    lines = [
        [
            f"{row['ours_over_this']:.2f}",
            *(f"{row[name]:,.0f}" for name in ("median", "least", "most")),
            row["name"],
        ]
        for row in rows
    ]
    return format_table(lines, ["ours / this", unit, "from", "to", ""], align="rrrr")


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Writes the result as JSON, with the machine and the command."""
    given = [_hide_place(flag) for flag in sys.argv[1:]]
    command = shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *given])
    machine = {
        "cpu": read_cpu("model name") or platform.processor(),
        "vectors": [name for name in VECTORS if name in read_cpu("flags").split()],
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"command": command, "machine": machine, **result}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")


def _hide_place(flag: str) -> str:
    """Returns the flag without the place of a peer, which means nothing on other machines."""
    name, equals, _ = flag.partition("=")
    return f"{name}={PLACES[name]}" if equals and name in PLACES else flag
