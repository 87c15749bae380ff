"""Measures how often a tuned system is called different from an equal one.

    python -m benchmarks.tuned_verdicts

The first system has one trial, the second the best of nine, and all are equal. Run r of system i
has on sentence s the value of `benchmarks.verdicts`, and each trial is a system of its own. One run
of each trial chooses, by its mean over the sentences that choose; then some runs of each system are
judged. There are four ways, which differ in two things. Either the halves of the test set are
apart, so that one chooses and the other judges, or one half does both. And the runs that are judged
either have other seeds than those that chose, or the run that was chosen is one of them.

A verdict should be wrong in 5% of all pairs, the level of the test, and the tuned system should be
called better in half of these.
"""

import argparse
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tqdm

from benchmarks.contest import write
from t2t.evaluation.measure import LEVEL, RESAMPLES, Statistics, TestSet, make_likelihood
from t2t.evaluation.significance import judge
from t2t.evaluation.trials import Halves, choose_trial, halve
from t2t.runtime.text_tables import format_table
from t2t.training.provenance import find_revision, find_versions, now

TRIALS = 9
SEEDS = [(1, 1), (2, 2), (3, 1), (3, 3)]  # runs of both systems that are judged
SCATTER = [0.0, 1.0, 3.0]  # of the seeds, in standard errors of a system on one half
WAYS = {  # halves apart, other seeds
    "halves apart, other seeds": (True, True),
    "halves apart, the chosen run is judged": (True, False),
    "one half, other seeds": (False, True),
    "one half, the chosen run is judged": (False, False),
}
MEASURE = make_likelihood("token")


def make_halves(sentences: int) -> Halves:
    """Returns halves of so many sentences each."""
    return halve(TestSet([str(number) for number in range(2 * sentences)], []))


def draw_pair(
    random: np.random.Generator,
    halves: Halves,
    seeds: tuple[int, int],
    scatter: float,
    *,
    apart: bool = True,
    other_seeds: bool = True,
) -> tuple[Statistics, Statistics]:
    """Draws the runs of two equal systems that are judged, the second the best of nine trials."""
    sentences = len(halves.choosing.sources)
    shape = TRIALS + 1, max(seeds) + 1, sentences  # run 0 of each system chooses
    values = random.normal(size=sentences) + random.normal(size=(TRIALS + 1, 1, sentences))
    values = values + random.normal(size=shape)
    values += scatter * random.normal(size=(*shape[:2], 1)) / math.sqrt(sentences / 2)
    runs = np.stack([values, np.ones(shape)], axis=-1)
    trials = {float(number): runs[number, :1] for number in range(1, TRIALS + 1)}
    test_set = halves.choosing if apart else halves.judging
    best = choose_trial("rate", trials, 1.0, MEASURE, test_set).value
    chosen = runs[int(best), 1:] if other_seeds else runs[int(best)]
    return runs[0, 1 : 1 + seeds[0]], chosen[: seeds[1]]


def main() -> None:
    """Simulates all pairs, prints the rates and writes the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=2_000, help="pairs of systems in each cell")
    parser.add_argument("--sentences", type=int, default=100, help="sentences of a half")
    default = Path("benchmarks/results/tuned-verdicts.json")
    parser.add_argument("--output", type=Path, default=default, help="output file")
    flags = parser.parse_args()
    random, halves = np.random.default_rng(0), make_halves(flags.sentences)
    cells: list[dict[str, Any]] = []
    grid = list(itertools.product(WAYS, SEEDS, SCATTER))
    for way, seeds, scatter in tqdm.tqdm(grid, unit="cell", disable=not sys.stderr.isatty()):
        apart, other_seeds = WAYS[way]
        verdicts = []
        for _ in range(flags.pairs):
            first, second = draw_pair(
                random, halves, seeds, scatter, apart=apart, other_seeds=other_seeds
            )
            found = judge({"first": first, "second": second}, MEASURE, halves.judging)
            verdicts.append(found.comparisons["second"])
        wrong = [each for each in verdicts if each.distinguishable]
        rate = len(wrong) / flags.pairs
        cell = {"way": way, "seeds": seeds, "scatter": scatter, "rate": rate}
        cell["standard_error"] = math.sqrt(rate * (1 - rate) / flags.pairs)
        cell["rate_better"] = sum(each.better for each in wrong) / flags.pairs
        cells.append(cell)
    rates = iter(f"{cell['rate']:.1%} ({cell['rate_better']:.1%})" for cell in cells)
    rows = [
        [way, f"{first}, {second}", *(next(rates) for _ in SCATTER)]
        for way, (first, second) in itertools.product(WAYS, SEEDS)
    ]
    header = ["false verdicts (tuned is better)", "seeds"]
    print(format_table(rows, [*header, *(f"scatter {one:g}" for one in SCATTER)], align="llrrr"))
    parameters = {"pairs": flags.pairs, "sentences": flags.sentences, "trials": TRIALS}
    parameters |= {"generator_seed": 0, "level": LEVEL, "resamples": RESAMPLES}
    facts = {**find_revision(), "date": now(), "versions": find_versions(("numpy", "scipy"))}
    write(flags.output, {**facts, "parameters": parameters, "cells": cells})


if __name__ == "__main__":
    main()
