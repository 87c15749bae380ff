"""Beam search over a test set of newstest2014's size: `python -m benchmarks.newstest`.

3,003 sources with WMT-like lengths, and parts of them, in one process under jit: compile time apart
from search time. Parameters are random, so each hypothesis is made as long as its reference.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Int
from matplotlib.figure import Figure

from benchmarks.contest import write
from benchmarks.contestants.decode_t2t import (
    ForcedTranslator,
    draw_params,
    make_config,
    make_vocabulary,
)
from benchmarks.workload import SIZES, Pair, Size, draw_pairs
from t2t.config import Config
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.search import Hypotheses
from t2t.model.encoder_decoder import Params
from t2t.training.ledger import find_versions

COUNTS = 500, 1500, 3003


class TimedTranslator(ForcedTranslator):
    """Keeps what each batch took, compilation left out."""

    def __init__(self, config: Config, vocabulary: Vocabulary):
        """Nothing is timed yet."""
        super().__init__(config, vocabulary)
        self.batches: list[dict[str, float]] = []

    def _search(
        self,
        params: Params,
        src: Int[np.ndarray, "B S"],
        limits: Int[np.ndarray, "B"],
        n_best: int,
        alphas: tuple[float, ...],
    ) -> Hypotheses:
        compiled, started = self.compile_seconds, time.perf_counter()
        found = super()._search(params, src, limits, n_best, alphas)
        seconds = time.perf_counter() - started - (self.compile_seconds - compiled)
        self.batches.append(
            {
                "padded_source_length": src.shape[1],
                "sentences": int((limits > 0).sum()),
                "tokens": int(limits.sum()),
                "seconds": seconds,
            }
        )
        return found


def measure(size: Size, dtype: str, params: Params, pairs: list[Pair]) -> dict[str, Any]:
    """One search of all sources, with a translator that has compiled nothing yet."""
    translator = TimedTranslator(make_config(size, dtype=dtype), make_vocabulary(size))
    sources = [src.tolist() for src, _ in pairs]
    lengths = {tuple(src): len(tgt) for src, (_, tgt) in zip(sources, pairs, strict=True)}
    translator.choose_length = lambda source: lengths[tuple(source)]
    translator.search(params, sources, 1, (0.6,), progress=sys.stderr.isatty())
    seconds = sum(batch["seconds"] for batch in translator.batches)
    tokens = sum(batch["tokens"] for batch in translator.batches)
    return {
        "sentences": len(pairs),
        "tokens": tokens,
        "seconds": seconds,
        "compile_seconds": translator.compile_seconds,
        "milliseconds_per_sentence": 1000 * seconds / len(pairs),
        "tokens_per_second": tokens / seconds,
        "batches": translator.batches,
    }


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Cost of a sentence against the number of sentences, and against their length."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    by_count, by_length = figure.subplots(1, 2)
    means = [run["milliseconds_per_sentence"] for run in runs]
    by_count.plot([run["sentences"] for run in runs], means, "o-")
    by_count.set(
        xlabel="sentences", ylabel="milliseconds a sentence", xlim=0, ylim=(0, 1.2 * max(means))
    )
    batches = runs[-1]["batches"]
    lengths = np.array([batch["tokens"] / batch["sentences"] for batch in batches])
    costs = np.array([1000 * batch["seconds"] / batch["sentences"] for batch in batches])
    by_length.plot(lengths, costs, "o", label="a batch")
    slope = (lengths * costs).sum() / (lengths**2).sum()
    by_length.plot([0, lengths.max()], [0, slope * lengths.max()], "--", label="in proportion")
    by_length.set(xlabel="tokens a sentence", ylabel="milliseconds a sentence", xlim=0, ylim=0)
    by_length.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measures, prints, writes the file, draws the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--counts", default=",".join(map(str, COUNTS)))
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/newstest.json"))
    flags = parser.parse_args()
    size = SIZES[flags.size]
    params = draw_params(size)
    counts = [int(count) for count in flags.counts.split(",")]
    pairs = draw_pairs(size, max(counts), seed=1)
    runs = []
    for count in counts:
        runs.append(measure(size, flags.dtype, params, pairs[:count]))
        run = runs[-1]
        print(
            f"{count:5} sentences: {run['seconds']:7.1f} s of search, "
            f"{run['compile_seconds']:5.1f} s of compiling, "
            f"{run['milliseconds_per_sentence']:6.1f} ms a sentence, "
            f"{run['tokens_per_second']:6.0f} tokens/s",
            flush=True,
        )
    device = jax.devices()[0].device_kind
    versions = find_versions(("jax", "jaxlib", "flax"))
    write(flags.output, {"device": device, "versions": versions, "runs": runs})
    draw(runs, flags.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
