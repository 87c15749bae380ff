"""Measures how often the 95% interval of a loss that a ladder predicts holds what comes out.

    python -m benchmarks.law_intervals

Losses of rungs are drawn from known laws, with the noise of seeds, and a law is fitted. The target
has four times the largest rung's FLOPs, and a run of it is drawn as well. "covered" is the share of
draws whose run lies in the interval of `t2t.scaling.law`, and "warned" that of draws in which the
rungs contradict the law. "bootstrap" is the usual practice beside it: the fit of Hoffmann et al.
(2022, Huber's loss with a threshold of 1e-3), repeated on resampled runs of each rung, with the
percentiles of the predictions as the interval.

The first cells are what the interval promises. The others break its assumptions: rungs that scatter
about the law by themselves, as a rate that suits one better than another makes them, noise that
differs between rungs, and laws that bend.
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tqdm
from scipy import optimize

from benchmarks.contest import write
from t2t.runtime.text_tables import format_table
from t2t.scaling.law import Losses, fit_law
from t2t.training.provenance import find_revision, find_versions, now

SMALLEST, RANGE, FACTOR = 1e12, 27.0, 4.0  # FLOPs of the smallest rung, range of rungs, target
RESAMPLES, BOOTSTRAPPED = 100, 150  # resamples of a draw, and draws of each cell that have them
THRESHOLD = 1e-3  # of Huber's loss

Law = Callable[[float], float]


class Cell(NamedTuple):
    """A law and its noise."""

    name: str
    law: Law
    noise: float
    rungs: int = 4
    scatter: float = 0.0  # of rungs about the law, in noise of seeds
    uneven: float = 1.0  # noise of the smallest rung, in that of the largest
    has_bootstrap: bool = False


def power(floor: float, part: float, exponent: float) -> Law:
    """floor + part (C / SMALLEST)^-exponent."""
    return lambda flops: floor + part * (flops / SMALLEST) ** -exponent


def bend(before: Law, exponent: float) -> Law:
    """A law that goes on with another exponent above the geometric mean of the rungs."""
    at = SMALLEST * RANGE**0.5
    return lambda flops: before(flops) if flops < at else before(at) * (flops / at) ** -exponent


FLOOR, FLAT, NONE = power(1, 2, 0.3), power(2, 1, 0.5), power(0, 3, 0.2)
CELLS = [
    *(
        Cell(f"{name}, {rungs} rungs", law, noise, rungs, has_bootstrap=rungs == 4)
        for name, law, noise in (
            ("E=1, a=0.3, noise 0.3%", FLOOR, 0.003),
            ("E=1, a=0.3, noise 1%", FLOOR, 0.01),
            ("E=2, a=0.5, noise 2%", FLAT, 0.02),
            ("E=0, a=0.2, noise 1%", NONE, 0.01),
        )
        for rungs in (3, 4, 6)
    ),
    *(
        Cell(f"E=1, a=0.3, noise 1%, rungs scatter by {scatter:g} of it, {rungs} rungs",
             FLOOR, 0.01, rungs, scatter=scatter)
        for scatter in (0.5, 1.0) for rungs in (4, 6)
    ),
    Cell("E=1, a=0.3, noise 1%, at the smallest rung 3%, 4 rungs", FLOOR, 0.01, uneven=3),
    *(
        Cell(f"a bend from {before} to {after}, noise {noise:.1%}, {rungs} rungs",
             bend(power(0.0, 3.0, before), after), noise, rungs)
        for before, after in ((0.1, 0.3), (0.3, 0.05))
        for noise in (0.003, 0.01) for rungs in (4, 6)
    ),
]  # fmt: skip


def draw(random: np.random.Generator, cell: Cell, seeds: int) -> Losses:
    """Draws the losses of a ladder."""
    flops = np.geomspace(SMALLEST, SMALLEST * RANGE, cell.rungs)
    rungs = np.repeat(np.arange(cell.rungs), seeds)
    noise = cell.noise * np.geomspace(cell.uneven, 1, cell.rungs)[rungs]
    logs = np.log([cell.law(each) for each in flops.tolist()])
    logs = logs + cell.scatter * cell.noise * random.normal(size=cell.rungs)
    losses = np.exp(logs[rungs] + noise * random.normal(size=len(rungs)))
    return Losses(flops[rungs][:, None], losses, rungs)


def fit_huber(sizes: np.ndarray, logs: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Returns logarithms of E and A, and a, of the fit of Hoffmann et al. (2022)."""

    def compute(params: np.ndarray) -> np.ndarray:
        found = np.logaddexp(params[0], params[1] - params[2] * sizes) - logs
        return np.asarray(found)

    found = optimize.least_squares(
        compute, start, loss="huber", f_scale=THRESHOLD, bounds=([-20, -20, 0], [5, 20, 5])
    )
    return np.asarray(found.x)


def bootstrap(random: np.random.Generator, runs: Losses, target: float) -> tuple[float, float]:
    """Returns the percentile interval of the predictions of fits to resampled runs."""
    law = fit_law(runs)
    floor = max(law.floor, 1e-3 * float(runs.losses.min()))
    start = np.array([math.log(floor), math.log(law.amplitudes[0]), max(law.exponents[0], 1e-3)])
    start = np.clip(start, [-19, -19, 1e-3], [4, 19, 4.9])
    sizes, logs = np.log(runs.sizes[:, 0] / SMALLEST), np.log(runs.losses)
    found = []
    for _ in range(RESAMPLES):
        chosen = np.concatenate(
            [
                random.choice(np.flatnonzero(runs.rungs == rung), (runs.rungs == rung).sum())
                for rung in range(runs.num_rungs)
            ]
        )
        params = fit_huber(sizes[chosen], logs[chosen], start)
        found.append(np.logaddexp(params[0], params[1] - params[2] * math.log(target / SMALLEST)))
    low, high = np.exp(np.percentile(found, [2.5, 97.5]))
    return float(low), float(high)


def measure(cell: Cell, seeds: int, draws: int) -> dict[str, Any]:
    """Draws ladders and the run that each predicts."""
    random, target = np.random.default_rng(0), SMALLEST * RANGE * FACTOR
    covered, warned, usual = list[bool](), list[bool](), list[bool]()
    for number in range(draws):
        runs = draw(random, cell, seeds)
        scatter = math.hypot(cell.noise, cell.scatter * cell.noise)
        came_out = cell.law(target) * math.exp(scatter * random.normal())
        law = fit_law(runs)
        covered.append(law.find_p_value([target], came_out) >= 0.05)
        warned.append(law.is_misfit)
        if cell.has_bootstrap and number < BOOTSTRAPPED:
            low, high = bootstrap(random, runs, target)
            usual.append(low <= came_out <= high)
    rate = float(np.mean(covered))
    found = {"cell": cell.name, "covered": rate, "warned": float(np.mean(warned))}
    found["standard_error"] = math.sqrt(rate * (1 - rate) / draws)
    return found | ({"bootstrap": float(np.mean(usual))} if usual else {})


def main() -> None:
    """Simulates all cells, prints the rates and writes the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=2_000, help="ladders in each cell")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each rung")
    default = Path("benchmarks/results/law-intervals.json")
    parser.add_argument("--output", type=Path, default=default, help="output file")
    flags = parser.parse_args()
    facts = {**find_revision(), "date": now(), "versions": find_versions(("numpy", "scipy"))}
    cells = [
        measure(cell, flags.seeds, flags.draws)
        for cell in tqdm.tqdm(CELLS, unit="cell", disable=not sys.stderr.isatty())
    ]
    rows = [
        [each["cell"], f"{each['covered']:.1%}", f"{each['warned']:.1%}",
         f"{each['bootstrap']:.1%}" if "bootstrap" in each else ""]
        for each in cells
    ]  # fmt: skip
    print(format_table(rows, ["law", "covered", "warned", "bootstrap"], align="lrrr"))
    parameters = {"draws": flags.draws, "seeds": flags.seeds, "factor": FACTOR, "range": RANGE}
    parameters |= {"resamples": RESAMPLES, "bootstrapped": BOOTSTRAPPED, "generator_seed": 0}
    write(flags.output, {**facts, "parameters": parameters, "cells": cells})


if __name__ == "__main__":
    main()
