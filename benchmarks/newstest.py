"""Measures beam search on a test set of newstest2014's size: `python -m benchmarks.newstest`.

The set has 3,003 sources with WMT-like lengths. The first search compiles; the later ones are
timed: on the whole set, on parts of it, and on sentences of similar length. Parameters are random,
so every hypothesis is forced to the length of its reference.
"""

import argparse
import sys
import time
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

from benchmarks.contest import write
from benchmarks.contestants.decode_t2t import (
    PENALTY,
    ForcedSource,
    ForcedTranslator,
    draw_params,
    make_config,
    make_vocabulary,
)
from benchmarks.workload import SIZES, draw_pairs
from t2t.decoding.translation import SourcePiece
from t2t.model.parameters import Params
from t2t.training.provenance import find_versions

PART = 384  # sentences of similar length per search


def measure(
    translator: ForcedTranslator, params: Params, sources: list[ForcedSource]
) -> dict[str, float]:
    """Measures one search over all sources."""
    compiled, started = translator.compile_seconds, time.perf_counter()
    pieces = [SourcePiece(source) for source in sources]
    translator.shows_progress = sys.stderr.isatty()
    translator.search(params, pieces, 1, (PENALTY,))
    compiling = translator.compile_seconds - compiled
    seconds = time.perf_counter() - started - compiling
    tokens = sum(source.output_length for source in sources)
    return {
        "sentences": len(sources),
        "tokens": tokens,
        "seconds": seconds,
        "compile_seconds": compiling,
        "milliseconds_per_sentence": 1000 * seconds / len(sources),
        "tokens_per_second": tokens / seconds,
    }


def draw(runs: list[dict[str, float]], parts: list[dict[str, float]], path: Path) -> None:
    """Plots the time per sentence against the number of sentences and against their length."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    by_count, by_length = figure.subplots(1, 2)
    means = [run["milliseconds_per_sentence"] for run in runs]
    by_count.plot([run["sentences"] for run in runs], means, "o-")
    by_count.set(
        xlabel="sentences", ylabel="milliseconds per sentence", xlim=0, ylim=(0, 1.2 * max(means))
    )
    lengths = np.array([part["tokens"] / part["sentences"] for part in parts])
    costs = np.array([part["milliseconds_per_sentence"] for part in parts])
    by_length.plot(lengths, costs, "o", label=f"{PART} sentences of similar length")
    slope = (lengths * costs).sum() / (lengths**2).sum()
    by_length.plot([0, lengths.max()], [0, slope * lengths.max()], "--", label="proportional")
    by_length.set(xlabel="tokens per sentence", ylabel="milliseconds per sentence", xlim=0, ylim=0)
    by_length.legend()
    figure.savefig(path)


def parse_counts(text: str) -> list[int]:
    """Parses numbers of sentences; returns them in ascending order."""
    counts = sorted(int(count) for count in text.split(","))
    if counts[0] < 1:
        raise ValueError(text)
    return counts


def main() -> None:
    """Measures, prints the figures, writes the file and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--counts", type=parse_counts, default="500,1500,3003")
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/decoding/newstest.json")
    )
    flags = parser.parse_args()
    size = SIZES[flags.size]
    params = draw_params(size)
    translator = ForcedTranslator(make_config(size, dtype=flags.dtype), make_vocabulary(size))
    pairs = draw_pairs(size, flags.counts[-1], seed=1)
    sources = [ForcedSource(src, len(tgt)) for src, tgt in pairs]

    def run(name: str, chosen: list[ForcedSource]) -> dict[str, float]:
        found = measure(translator, params, chosen)
        print(
            f"{name:10} {found['sentences']:5} sentences of {found['tokens'] / len(chosen):5.1f} "
            f"tokens: {found['seconds']:7.1f} s of search, "
            f"{found['milliseconds_per_sentence']:6.1f} ms per sentence, "
            f"{found['tokens_per_second']:6.0f} tokens/s; "
            f"{found['compile_seconds']:5.1f} s of compiling",
            flush=True,
        )
        return found

    cold = run("cold", sources)
    runs = [run("warm", sources[:count]) for count in flags.counts]
    by_length = sorted(sources, key=len)
    parts = [
        run("by length", by_length[start : start + PART]) for start in range(0, len(sources), PART)
    ]
    result = {
        "device": jax.devices()[0].device_kind,
        "versions": find_versions(("jax", "jaxlib", "flax")),
        "cold": cold,
        "warm": runs,
        "by_length": parts,
    }
    write(flags.output, result)
    draw(runs, parts, flags.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
