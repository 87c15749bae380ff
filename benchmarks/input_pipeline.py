"""Measures the input pipeline alone: `python -m benchmarks.input_pipeline`.

The parts are the cache (text to ids), the plan of an epoch, and the batches (cache to host batches,
on one core). Each runs in its own process, on generated pairs with lengths like WMT14's. Times are
wall-clock and CPU seconds; on a busy machine only CPU seconds are meaningful. Memory is anonymous
memory, without pages of files, which the system can reclaim.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contest import write
from t2t.config.fields import DataConfig, TokenizerConfig
from t2t.data.batch import EOS_ID
from t2t.data.batch_plan import BatchPlan
from t2t.data.corpus import TextCorpus
from t2t.data.loader import Loader
from t2t.data.packing import make_plan
from t2t.data.token_cache import Side, TokenizedCorpus, tokenize_corpus
from t2t.data.tokenizer import Vocabulary, train_vocabulary
from t2t.planning.batch_shapes import draw_lengths
from t2t.training.provenance import find_revision, find_versions, now

DATA = DataConfig(num_shapes=16)  # 25,000 positions per batch, as for the paper's base model
VOCAB_SIZE = 32_000
MEAN_LENGTH = 27
STEPS = 400  # batches that are timed
WORDS_A_LINE = 6  # few, to keep a text of ten million lines small
PACKAGES = ("numpy", "sentencepiece")


class Clock:
    """Measures wall-clock and CPU seconds, and the peak of memory, from its creation to `stop`."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self._before = self._peak = read_memory()
        self._stopped = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()

    def stop(self) -> dict[str, float]:
        """Stops the clock and returns the figures."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        self._stopped.set()
        self._watch.join()
        return {"seconds": wall, "cpu_seconds": cpu, "peak_memory": self._peak - self._before}

    def _look(self) -> None:
        while not self._stopped.wait(0.02):
            self._peak = max(self._peak, read_memory())


def read_memory() -> int:
    """Bytes of anonymous memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith("RssAnon")]
    return 1024 * int(kilobytes)


def measure_cache(pairs: int, folder: Path) -> dict[str, float]:
    """Measures tokenisation of two files into the cache, and SentencePiece alone on a sample."""
    for seed, side in enumerate(("src", "tgt")):
        with (folder / side).open("w") as file:
            file.writelines(write_lines(pairs, seed=seed))
    corpus = TextCorpus(folder / "src", folder / "tgt")
    sample = folder / "sample.src"
    with (folder / "src").open() as lines, sample.open("w") as part:
        part.writelines(line for _, line in zip(range(50_000), lines, strict=False))
    vocabulary = train_vocabulary(
        [TextCorpus(sample, sample)], TokenizerConfig(vocab_size=8000), folder / "vocab"
    )
    alone = time_sentencepiece(vocabulary, sample)
    clock = Clock()
    tokenized = tokenize_corpus(corpus, vocabulary, folder / "cache")
    figures = clock.stop()
    megabytes = sum((folder / side).stat().st_size for side in ("src", "tgt")) / 1e6
    return figures | {
        "text_megabytes": megabytes,
        "tokens": sum(int(side.sum()) for side in tokenized.lengths),
        "megabytes_per_second": megabytes / figures["seconds"],
        "megabytes_per_cpu_second": megabytes / figures["cpu_seconds"],
        "sentencepiece_megabytes_per_cpu_second": alone,
    }


def write_lines(count: int, seed: int, words_per_line: int = WORDS_A_LINE) -> Iterator[str]:
    """Generates lines of words made of random syllables; word frequencies follow a Zipf law."""
    random = np.random.default_rng(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "ei", "ä")]
    words = np.array(["".join(random.choice(syllables, 1 + n % 4)) for n in range(20_000)])
    for start in range(0, count, 10_000):
        ranks = (random.zipf(1.3, (min(10_000, count - start), words_per_line)) - 1) % len(words)
        yield from (" ".join(line) + "\n" for line in words[ranks].tolist())


def time_sentencepiece(vocabulary: Vocabulary, path: Path) -> float:
    """Megabytes per CPU second of SentencePiece."""
    lines = path.read_text().splitlines()
    started = time.process_time()
    vocabulary.src.encode(lines)
    return path.stat().st_size / 1e6 / (time.process_time() - started)


def measure_plan(pairs: int, folder: Path) -> dict[str, float]:
    """Measures the plan of the first epoch from sentence lengths, and of the second epoch."""
    return time_plan(pairs, folder, DATA)


def measure_packed_plan(pairs: int, folder: Path) -> dict[str, float]:
    """The same, with rows of 256 positions that hold several pairs."""
    return time_plan(pairs, folder, dataclasses.replace(DATA, packed_length=256))


def time_plan(pairs: int, folder: Path, data: DataConfig) -> dict[str, float]:
    """Measures a plan; its memory includes the lengths, read from files as in training."""
    files = [folder / "src.npy", folder / "tgt.npy"]
    for file, lengths in zip(files, draw_lengths(data, MEAN_LENGTH, pairs=pairs), strict=True):
        np.save(file, lengths.astype(np.int32))
    del lengths
    clock = Clock()
    src, tgt = (np.concatenate([np.load(file, mmap_mode="r")]) for file in files)
    plan = make_plan([(src, tgt)], data, 0)
    figures = clock.stop()
    second = Clock()
    plan.batch(plan.steps_per_epoch)
    after = second.stop()
    return figures | {
        "next_epoch_cpu_seconds": after["cpu_seconds"],
        "bytes_per_pair": figures["peak_memory"] / pairs,
        "steps": plan.steps_per_epoch,
    }


def measure_batches(pairs: int, folder: Path) -> dict[str, float]:
    """Measures host batches from memory-mapped ids, on one core, with training's loader thread."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    corpus = write_ids(pairs, folder)
    plan = BatchPlan([corpus.lengths], DATA, seed=0)
    loader = Loader(plan, [corpus], parts=8)
    for _ in loader.iterate(0, 20):  # warms up
        pass
    steps = range(20, min(20 + STEPS, plan.steps_per_epoch))
    clock = Clock()
    tokens = sum(int(batch.weights.sum()) for batch in loader.iterate(steps.start, steps.stop))
    figures = clock.stop()
    return figures | {
        "tokens": tokens,
        "tokens_per_second": tokens / figures["seconds"],
        "tokens_per_cpu_second": tokens / figures["cpu_seconds"],
    }


def write_ids(pairs: int, folder: Path) -> TokenizedCorpus:
    """Writes the arrays of a cache, with arbitrary ids instead of tokenised text."""
    sides = []
    lengths = draw_lengths(DATA, MEAN_LENGTH, pairs=pairs)
    for name, own in zip(("src", "tgt"), lengths, strict=True):
        ends = np.cumsum(own)
        ids = np.memmap(folder / name, "<u2", "w+", shape=(int(ends[-1]),))
        for part in np.array_split(ids, len(ids) // 10_000_000 + 1):
            part[:] = np.arange(len(part)) % (VOCAB_SIZE - 4) + 4
        ids[ends - 1] = EOS_ID
        sides.append(Side(ids, ends))
    return TokenizedCorpus([(sides[0], sides[1])])


PARTS = {
    "cache": measure_cache,
    "plan": measure_plan,
    "packed_plan": measure_packed_plan,
    "batches": measure_batches,
}


def measure_apart(part: str, pairs: int) -> dict[str, Any]:
    """Runs one measurement in a new process."""
    command = [sys.executable, "-m", "benchmarks.input_pipeline", f"--part={part}"]
    done = subprocess.run(
        [*command, f"--pairs={pairs}"], stdout=subprocess.PIPE, text=True, check=True
    )
    figures: dict[str, Any] = {"pairs": pairs} | json.loads(done.stdout)
    print(part, json.dumps({name: float(f"{value:.4g}") for name, value in figures.items()}))
    return figures


def main() -> None:
    """Measures all parts and writes the file, or measures one part and prints it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1_000_000, help="pairs of cache and batches")
    parser.add_argument("--plan_pairs", type=int, default=100_000_000, help="pairs of the plans")
    parser.add_argument("--part", choices=PARTS, help="measure only this part and print JSON")
    default = Path("benchmarks/results/data/input-pipeline.json")
    parser.add_argument("--output", type=Path, default=default, help="output file")
    flags = parser.parse_args()
    if flags.part:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(PARTS[flags.part](flags.pairs, Path(folder))))
        return
    result: dict[str, Any] = {
        **find_revision(),
        "date": now(),
        "data": dataclasses.asdict(DATA),
        "mean_length": MEAN_LENGTH,
        "vocab_size": VOCAB_SIZE,
        "versions": find_versions(PACKAGES),
    }
    for part in PARTS:
        most = flags.plan_pairs if "plan" in part else flags.pairs
        result[part] = [measure_apart(part, pairs) for pairs in (most // 10, most)]
    write(flags.output, result)
    print(flags.output)


if __name__ == "__main__":
    main()
