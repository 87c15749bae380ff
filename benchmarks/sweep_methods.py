"""Compares the verdicts of two finished sweeps of the same rows, made in different ways.

    python -m benchmarks.sweep_methods runs/modern runs/modern-tuned --output=FILE.json

The first one is without trials and gates. If the second one has trials, its verdicts rest on one
half of the sentences, so those of the first are also shown on that half. A verdict has changed if
it is another word: better, worse or not distinguishable.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.contest import write
from t2t.evaluation.number_format import format_p_value
from t2t.evaluation.systems import STEP, read_system
from t2t.evaluation.trials import CHOICE
from t2t.evaluation.verdict_table import VerdictTable
from t2t.runtime.text_tables import format_table
from t2t.sweeps.judge_rows import judge_rows
from t2t.sweeps.sweep_rows import BASE, EVALUATION, Row
from t2t.training.provenance import find_revision, find_versions, now

Lines = dict[str, dict[str, Any]]  # of the table in a report.json, by row


def read_lines(folder: Path) -> Lines:
    """Returns the lines of a sweep's report."""
    report = json.loads((folder / "report.json").read_text("utf-8"))
    return {line["name"]: line for line in report["table"]}


def judge_half(folder: Path, lines: Lines) -> Lines:
    """Judges the rows of a sweep without trials by the half on which those with trials are."""
    systems = []
    for row in lines:
        runs = sorted(folder.glob(f"{row}-seed*/evaluations/{EVALUATION}.json"))
        operand = ",".join(str(path.parents[1]) for path in runs)
        if runs:
            systems.append(read_system(operand, "", EVALUATION, (STEP,), name=row))
    measure = lines[BASE]["measure"]
    found, _ = judge_rows(systems, measure, {row: Row(row) for row in lines}, is_tuned=True)
    return {line["name"]: line for line in VerdictTable(found.lines, measure).record()}


def show(line: dict[str, Any]) -> str:
    """Shows the difference from base, its interval and the verdict."""
    if found := line["by_measure"]:
        low, high = found["interval"] or (float("nan"),) * 2
        p_value = format_p_value(found["p_corrected"], sign=True) if found["p_corrected"] else ""
        return (
            f"{found['difference']:+.2f} [{low:+.2f}, {high:+.2f}] {found['verdict']}, p {p_value}"
        )
    return f"{line['score']:.2f}" if line["score"] is not None else "no score"


def read_choice(folder: Path, row: str) -> dict[str, Any]:
    """Returns what was chosen for a row; empty without trials."""
    path = folder / f"{row}-choice" / CHOICE
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def main() -> None:
    """Prints the table and writes the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plain", type=Path, help="folder of the sweep without trials and gates")
    parser.add_argument("other", type=Path, help="folder of the sweep with them")
    parser.add_argument("--output", type=Path, help="output file")
    flags = parser.parse_args()
    plain, other = read_lines(flags.plain), read_lines(flags.other)
    choices = {row: read_choice(flags.other, row) for row in plain}
    columns = {"plain": plain, "other": other}
    if any(choices.values()):
        columns = {"plain": plain, "plain, half": judge_half(flags.plain, plain), "other": other}
    rows, results, sums = list[list[str]](), list[dict[str, Any]](), [0.0, 0.0]
    for row in plain:
        lines = {name: each[row] for name, each in columns.items()}
        words = [(line["by_measure"] or {}).get("verdict") for line in lines.values()]
        changed = words[-2] != words[-1]
        costs = [plain[row]["cost"]["core_minutes"], other[row]["cost"]["core_minutes"]]
        sums = [before + cost for before, cost in zip(sums, costs, strict=True)]
        value = choices[row].get("value")
        rows.append(
            [
                row,
                "" if value is None else f"{value:g}",
                *map(show, lines.values()),
                "changed" if changed else "",
                *(f"{cost:.1f}" for cost in costs),
            ]
        )
        results.append(
            {"row": row, "choice": choices[row], "changed": changed, "core_minutes": costs, **lines}
        )
    rows.append(["all", *[""] * (len(columns) + 2), *(f"{cost:.1f}" for cost in sums)])
    header = ["row", "chosen", *columns, "verdict", "core-minutes", "other"]
    print(format_table(rows, header, align="lr" + "l" * (len(columns) + 1) + "rr"))
    if flags.output:
        facts = {**find_revision(), "date": now(), "versions": find_versions(("numpy", "scipy"))}
        write(flags.output, {**facts, "rows": results})


if __name__ == "__main__":
    main()
