"""Measures false verdicts on documents and skewed scores: `python -m benchmarks.document_verdicts`.

Run r of system i has on sentence s of document d the latent value

    difficulty[s] + document[i, d] + system[i, s] + run[i, r, s]
        + scatter * seed[i, r] / sqrt(units)

where all parts are independent and standard normal, so that systems differ by chance alone. Scores
of a sentence follow from it: bounded ones lie between 0 and 1, mostly near 1, as those of learned
metrics; skewed ones are log-normal; ratios are errors over words, with as many words as a sentence
has, as TER. The verdict is the one that `t2t.compare` gives. It should be wrong in 5% of all pairs.
Resampling the sentences of documents as if they were independent is shown for contrast.
"""

import argparse
import itertools
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tqdm
from jaxtyping import Float, Int

from benchmarks.contest import write
from t2t.evaluation.measure import LEVEL, RESAMPLES, Measure, TestSet
from t2t.evaluation.significance import judge
from t2t.runtime.text_tables import format_table
from t2t.training.provenance import find_revision, find_versions, now

VALUES = ("bounded", "skewed", "ratio")
RESAMPLED = ("sentences", "documents", "sentences of documents")
SEEDS = [((1, 1), 0.0), ((2, 2), 1.0), ((3, 3), 1.0)]  # runs of each system, scatter of the seeds


class Texts(NamedTuple):
    """The sentences of a test set: each one's difficulty, number of words and document."""

    difficulty: Float[np.ndarray, "n"]
    words: Float[np.ndarray, "n"]
    documents: Int[np.ndarray, "n"]


def draw_texts(random: np.random.Generator, units: int, *, in_documents: bool) -> Texts:
    """Draws a test set of so many documents with one or more sentences, five on average."""
    sizes = np.ones(units, int)
    if in_documents:  # of one distribution, so that all test sets have as many sentences
        sizes = random.permutation(np.random.default_rng(1).geometric(0.2, units))
    count = int(sizes.sum())
    words = np.exp(random.normal(2.5, 0.6, count)).round() + 1
    return Texts(random.normal(size=count), words, np.repeat(np.arange(units), sizes))


def draw_system(
    random: np.random.Generator, texts: Texts, values: str, runs: int, scatter: float
) -> Float[np.ndarray, "m n 2"]:
    """Draws the statistics (score, count) of each run on each sentence."""
    count, units = len(texts.difficulty), int(texts.documents[-1]) + 1
    latent = texts.difficulty + random.normal(size=units)[texts.documents]
    latent = latent + random.normal(size=count) + random.normal(size=(runs, count))
    latent += scatter * random.normal(size=(runs, 1)) / math.sqrt(units)
    match values:
        case "bounded":
            scores, weights = 1 / (1 + np.exp(-latent - 2)), np.ones_like(latent)
        case "skewed":
            scores, weights = np.exp(latent / 2), np.ones_like(latent)
        case _:
            weights = np.broadcast_to(texts.words, latent.shape)
            scores = weights / (1 + np.exp(1 - latent))
    return np.stack([scores, weights], axis=-1)


def judge_pair(
    random: np.random.Generator,
    values: str,
    resampled: str,
    seeds: tuple[tuple[int, int], float],
    units: int,
) -> bool:
    """Draws a pair of equal systems; returns whether the verdict says that they differ."""
    texts = draw_texts(random, units, in_documents=resampled != "sentences")
    documents = texts.documents if resampled == "documents" else None
    test_set = TestSet([], [], documents)
    runs, scatter = seeds
    systems = {
        str(number): draw_system(random, texts, values, count, scatter)
        for number, count in enumerate(runs)
    }
    return judge(systems, Measure(values, ""), test_set).comparisons["1"].distinguishable


def main() -> None:
    """Simulates all pairs, prints the rates and writes the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=2_000, help="pairs of systems in each cell")
    parser.add_argument("--units", type=int, default=100, help="sentences or documents")
    default = Path("benchmarks/results/document-verdicts.json")
    parser.add_argument("--output", type=Path, default=default, help="output file")
    flags = parser.parse_args()
    random = np.random.default_rng(0)
    cells: list[dict[str, Any]] = []
    grid = list(itertools.product(VALUES, SEEDS, RESAMPLED))
    for values, seeds, resampled in tqdm.tqdm(grid, disable=not sys.stderr.isatty()):
        wrong = sum(
            judge_pair(random, values, resampled, seeds, flags.units) for _ in range(flags.pairs)
        )
        rate = wrong / flags.pairs
        cells.append(
            {
                "values": values,
                "seeds": seeds[0],
                "scatter": seeds[1],
                "resampled": resampled,
                "rate": rate,
                "standard_error": math.sqrt(rate * (1 - rate) / flags.pairs),
            }
        )
    rates = iter(f"{cell['rate']:.1%} ± {cell['standard_error']:.1%}" for cell in cells)
    rows = [
        [values, f"{first}, {second}", *(next(rates) for _ in RESAMPLED)]
        for values in VALUES
        for (first, second), _ in SEEDS
    ]
    print(format_table(rows, ["values", "seeds", *RESAMPLED], align="llrrr"))
    parameters = {"pairs": flags.pairs, "units": flags.units, "generator_seed": 0}
    parameters |= {"level": LEVEL, "resamples": RESAMPLES}
    facts = {**find_revision(), "date": now(), "versions": find_versions(("numpy", "scipy"))}
    write(flags.output, {**facts, "parameters": parameters, "cells": cells})


if __name__ == "__main__":
    main()
