"""Measures how often two equal systems are called different: `python -m benchmarks.verdicts`.

The score of a run is the mean of its values over the sentences. Run r of system i has on sentence s
the value

    difficulty[s] + system[i, s] + run[i, r, s] + scatter * seed[i, r] / sqrt(sentences)

where difficulty, system, run and seed are independent and standard normal, so that systems differ
by chance alone. All runs share the difficulty of a sentence. `scatter` is the standard deviation
that seeds add to the score of a run, in standard errors of the mean of system[i, s] over sentences.
The verdict is the one that `t2t.compare` gives by log-probability, with one token per sentence. It
should be wrong in 5% of all pairs, the level of the test.
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
from t2t.runtime.text_tables import format_table
from t2t.training.provenance import find_revision, find_versions, now

SEEDS = [(2, 2), (1, 3), (3, 3), (5, 5), (1, 1), (1, 2)]  # runs of the first and second system
SCATTER = [0.0, 0.5, 1.0, 3.0]


def draw_system(
    random: np.random.Generator, difficulty: np.ndarray, runs: int, scatter: float
) -> Statistics:
    """Draws (value, 1 token) of each run on each sentence."""
    count = len(difficulty)
    values = difficulty + random.normal(size=count) + random.normal(size=(runs, count))
    values += scatter * random.normal(size=(runs, 1)) / math.sqrt(count)
    return np.stack([values, np.ones_like(values)], axis=-1)


def judge_pair(
    random: np.random.Generator, seeds: tuple[int, int], scatter: float, sentences: int
) -> bool:
    """Draws a pair of equal systems; returns whether the verdict says that they differ."""
    difficulty = random.normal(size=sentences)
    first, second = (draw_system(random, difficulty, runs, scatter) for runs in seeds)
    judgement = judge({"first": first, "second": second}, make_likelihood("token"), TestSet([], []))
    return judgement.comparisons["second"].distinguishable


def main() -> None:
    """Simulates all pairs, prints the rates and writes the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=2_000, help="pairs of systems in each cell")
    parser.add_argument("--sentences", type=int, default=100, help="sentences of the test set")
    default = Path("benchmarks/results/verdicts.json")
    parser.add_argument("--output", type=Path, default=default, help="output file")
    flags = parser.parse_args()
    random = np.random.default_rng(0)
    cells: list[dict[str, Any]] = []
    grid = list(itertools.product(SEEDS, SCATTER))
    for seeds, scatter in tqdm.tqdm(grid, unit="cell", disable=not sys.stderr.isatty()):
        wrong = sum(judge_pair(random, seeds, scatter, flags.sentences) for _ in range(flags.pairs))
        rate = wrong / flags.pairs
        error = math.sqrt(rate * (1 - rate) / flags.pairs)
        cells.append({"seeds": seeds, "scatter": scatter, "rate": rate, "standard_error": error})
    rates = iter(f"{cell['rate']:.1%} ± {cell['standard_error']:.1%}" for cell in cells)
    rows = [[f"{first}, {second}", *(next(rates) for _ in SCATTER)] for first, second in SEEDS]
    print(format_table(rows, ["seeds", *(f"scatter {one:g}" for one in SCATTER)], align="lrrrr"))
    parameters = {"pairs": flags.pairs, "sentences": flags.sentences, "generator_seed": 0}
    parameters |= {"level": LEVEL, "resamples": RESAMPLES}
    facts = {**find_revision(), "date": now(), "versions": find_versions(("numpy", "scipy"))}
    write(flags.output, {**facts, "parameters": parameters, "cells": cells})


if __name__ == "__main__":
    main()
