"""The workload of all contestants: synthetic sentence pairs and three sizes of the Transformer.

Needs only NumPy, so that a contestant can be another program in another environment. Lengths are
in sub-words with EOS. Throughput counts these target tokens, never padding.
"""

import dataclasses
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
FIRST_WORD = 4
GENERATED = 32  # sub-words with which a prompt is continued

Ids = np.ndarray  # int n
Pair = tuple[Ids, Ids]
Outputs = tuple[int, list[Ids]]  # (output length, sources): a batch for decoding


@dataclasses.dataclass(frozen=True)
class Size:
    """A post-norm Transformer with one table for source, target and logits; dropout 0.1."""

    d_model: int
    d_ff: int
    num_heads: int
    num_layers: int  # of the encoder, and of the decoder
    vocab_size: int
    lengths: str  # distribution of sentence lengths: multi30k | wmt

    @property
    def output_multiple(self) -> int:
        """Output lengths are rounded to a multiple of this, so that batches are large enough."""
        return 4 if self.lengths == "multi30k" else 8


SIZES = {
    "tiny": Size(128, 256, 4, 4, 10_000, "multi30k"),
    "small": Size(256, 1024, 4, 3, 10_000, "multi30k"),
    "base": Size(512, 2048, 8, 6, 32_000, "wmt"),
}


def draw_lengths(kind: str, count: int, random: np.random.Generator) -> tuple[Ids, Ids]:
    """Draws (source, target) lengths.

    multi30k: normal, mean 14, deviation 4.5, correlation 0.75, from 4 to 40. wmt: log-normal, mean
    27, deviation of the logarithm 0.6, the target a log-normal multiple (0.18), from 4 to 128.
    """
    one, other = random.normal(size=(2, count))
    if kind == "multi30k":
        src, longest = 14 + 4.5 * one, 40
        tgt = 14 + 4.5 * (0.75 * one + math.sqrt(1 - 0.75**2) * other)
    else:
        src, longest = np.exp(math.log(27) - 0.6**2 / 2 + 0.6 * one), 128
        tgt = src * np.exp(0.18 * other)
    return tuple(np.clip(np.rint(x), 4, longest).astype(int) for x in (src, tgt))


def draw_pairs(size: Size, count: int, seed: int = 0) -> list[Pair]:
    """Draws sentence pairs of independent words, whose frequencies follow Zipf's law."""
    random = np.random.default_rng(seed)
    frequencies = 1 / np.arange(1, size.vocab_size - FIRST_WORD + 1)
    ranks = np.cumsum(frequencies / frequencies.sum())

    def draw(length: int) -> Ids:
        words = np.searchsorted(ranks, random.random(length - 1)).clip(max=len(ranks) - 1)
        return np.append(FIRST_WORD + words, EOS_ID)

    lengths = zip(*draw_lengths(size.lengths, count, random), strict=True)
    return [(draw(src), draw(tgt)) for src, tgt in lengths]


def draw_prompts(size: Size, count: int) -> list[Ids]:
    """Draws prompts of 16 words."""
    random = np.random.default_rng(0)
    return [random.integers(FIRST_WORD, size.vocab_size, 16) for _ in range(count)]


def cut_batches(pairs: Sequence[Pair], max_tokens: int, seed: int = 0) -> list[list[Pair]]:
    """Forms batches of at most `max_tokens` positions, source plus target, including padding.

    Pairs are sorted by length, so there is little padding, and every batch has its own shape, which
    suits programs that do not compile for shapes.
    """
    batches: list[list[Pair]] = [[]]
    longest = (0, 0)
    for pair in sorted(pairs, key=lambda pair: (max(map(len, pair)), len(pair[1]), len(pair[0]))):
        grown = max(longest[0], len(pair[0])), max(longest[1], len(pair[1]))
        if batches[-1] and (len(batches[-1]) + 1) * sum(grown) > max_tokens:
            batches.append([])
            grown = len(pair[0]), len(pair[1])
        batches[-1].append(pair)
        longest = grown
    return [batches[index] for index in np.random.default_rng(seed).permutation(len(batches))]


def pack_rows(size: Size, rows: int, length: int, seed: int = 0) -> Pair:
    """Draws a batch of packed rows: source and target, int [rows, length].

    A row holds pairs one after the other, as many as fit both sides, and padding at its end. Its
    pairs are the next ones of the workload that are not longer than a row.
    """
    # An average sentence has more than eight sub-words, so these fill all rows.
    pairs = iter(draw_pairs(size, rows * (length // 8 + 1), seed))
    packed = np.full((2, rows, length), PAD_ID, np.int32)
    row, used = 0, [0, 0]
    for pair in (pair for pair in pairs if max(map(len, pair)) <= length):
        if any(start + len(ids) > length for start, ids in zip(used, pair, strict=True)):
            row, used = row + 1, [0, 0]
            if row == rows:
                break
        for side, ids in enumerate(pair):
            packed[side, row, used[side] : used[side] + len(ids)] = ids
            used[side] += len(ids)
    src, tgt = packed
    return src, tgt


def number_sentences(ids: Ids) -> tuple[Ids, Ids]:
    """Returns of packed rows the number of each position's sentence, from 1, and its place there.

    Padding has the number 0.
    """
    begins = np.pad(ids == EOS_ID, ((0, 0), (1, 0)))[:, :-1]
    columns = np.arange(ids.shape[1])
    starts = np.maximum.accumulate(np.where(begins, columns, 0), 1)
    is_word = ids != PAD_ID
    return (1 + begins.cumsum(1)) * is_word, (columns - starts) * is_word


def shift_rows(tgt: Ids) -> Ids:
    """Returns the decoder's input for packed rows: shifted right, each sentence begins with BOS."""
    shifted = np.pad(tgt, ((0, 0), (1, 0)), constant_values=EOS_ID)[:, :-1]
    return np.where(tgt == PAD_ID, PAD_ID, np.where(shifted == EOS_ID, BOS_ID, shifted))


def group_outputs(size: Size, count: int, rows: int = 64) -> list[Outputs]:
    """Forms batches for decoding.

    Outputs have the lengths of the references, rounded. All outputs of a batch have the same
    length, since some programs have one limit for a whole batch. Longer sources come first.
    """
    groups: dict[int, list[Ids]] = {}
    multiple, pairs = size.output_multiple, draw_pairs(size, count, seed=1)
    for src, tgt in sorted(pairs, key=lambda pair: -len(pair[0])):
        length = max(1, round(len(tgt) / multiple)) * multiple
        groups.setdefault(length, []).append(src)
    return [
        (length, group[start : start + rows])
        for length, group in sorted(groups.items())
        for start in range(0, len(group), rows)
    ]


def time_translation(
    batches: Sequence[Outputs], translate: Callable[[Sequence[Outputs]], None]
) -> dict[str, Any]:
    """Times the translation of all batches."""
    tokens = sum(length * len(sources) for length, sources in batches)
    sentences = sum(len(sources) for _, sources in batches)
    started, cpu_started = time.perf_counter(), time.process_time()
    translate(batches)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    return {
        "tokens": tokens,
        "sentences": sentences,
        "tokens_per_second": tokens / seconds,
        "sentences_per_second": sentences / seconds,
        "tokens_per_cpu_second": tokens / cpu_seconds,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
    }


def print_speed(train: Callable[[int], int], seconds: float, version: str) -> None:
    """Times steps of a batch that is always the same, after four; prints one line of JSON."""
    started = time.perf_counter()
    for _ in range(4):
        train(0)
    warm_up = time.perf_counter() - started
    result = repeat_for(seconds, itertools.repeat(0), train)
    print(json.dumps({**result, "compile_seconds": warm_up, "version": version}))


def repeat_for(seconds: float, steps: Iterator[int], run: Callable[[int], int]) -> dict[str, Any]:
    """Runs steps for `seconds`, at least three; `run(step)` returns the tokens of the step."""
    tokens = count = 0
    started, cpu_started = time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - started) < seconds or count < 3:
        tokens += run(next(steps))
        count += 1
    return {
        "tokens": tokens,
        "tokens_per_second": tokens / elapsed,
        "steps": count,
        "seconds": elapsed,
        "cpu_seconds": time.process_time() - cpu_started,
    }
