"""Which batch shapes a recipe will train on, and how often, without its data at hand.

Lengths are drawn from a distribution like WMT14's, and grouped as training groups them.
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float, Int

from t2t.config.fields import Config, DataConfig
from t2t.data.batching import BatchShape, assign_shapes, choose_shapes, count_rows, find_dropped
from t2t.data.packing import pack_rows
from t2t.model.flops import train_flops

_PAIRS = 100_000
_SPREAD = 0.6  # standard deviation of the logarithm of a source length
_RATIO_SPREAD = 0.18  # and of the logarithm of target length / source length
_LONGEST_MEANS = 4.75  # lengths beyond so many means are cut: 128 where the mean is 27
_SHORTEST = 4


@dataclasses.dataclass(frozen=True)
class PlannedShape:
    """A batch shape on a mesh, with what its batches hold on average; over all devices."""

    rows: int  # empty ones included
    src_length: int
    tgt_length: int
    share: float  # of the steps
    filled_rows: int
    tgt_tokens: float  # real ones in a batch
    model_flops: float  # of real tokens, by the closed form
    padded_flops: float  # of all positions, were each a token


def draw_lengths(
    data: DataConfig, mean: float, seed: int = 0, pairs: int = _PAIRS
) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
    """(source, target) lengths of sentence pairs, in sub-words with EOS.

    The source is log-normal about `mean`, the target's length a log-normal multiple of it.
    """
    random = np.random.default_rng(seed)
    longest = min(data.max_length, round(_LONGEST_MEANS * mean))
    src = random.lognormal(math.log(mean) - _SPREAD**2 / 2, _SPREAD, pairs)
    tgt = src * random.lognormal(0, _RATIO_SPREAD, pairs)

    def cut(lengths: Float[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
        whole: np.ndarray = np.clip(np.rint(lengths), min(_SHORTEST, longest), longest)
        return whole.astype(np.int64)

    return cut(src), cut(tgt)


def plan_shapes(config: Config, row_shards: int, mean_length: float) -> list[PlannedShape]:
    """The shapes that training would choose, the one with most work first."""
    src, tgt = draw_lengths(config.data, mean_length)
    kept = np.ones(len(src), bool)
    for dropped in find_dropped(src, tgt, config.data).values():
        kept[dropped] = False
    src, tgt = src[kept], tgt[kept]
    if length := config.data.packed_length:
        shape = BatchShape(length, length, count_rows(length, config.data))
        num_rows = int(pack_rows(src, tgt, length, config.seed).max()) + 1
        return [_plan_shape(config, shape, row_shards, 1.0, src, tgt, len(src) / num_rows)]
    shapes = choose_shapes(src, tgt, config.data)
    members = assign_shapes(src, tgt, shapes)
    steps = [np.count_nonzero(members == number) / s.rows for number, s in enumerate(shapes)]
    planned = [
        _plan_shape(config, shape, row_shards, count / sum(steps), src[own], tgt[own])
        for number, (shape, count) in enumerate(zip(shapes, steps, strict=True))
        if (own := members == number).any()
    ]
    return sorted(planned, key=lambda shape: shape.padded_flops, reverse=True)


def _plan_shape(
    config: Config,
    shape: BatchShape,
    row_shards: int,
    share: float,
    src: Int[np.ndarray, "n"],
    tgt: Int[np.ndarray, "n"],
    pairs_per_row: float = 1.0,
) -> PlannedShape:
    multiple = row_shards * config.training.accumulation_steps
    rows = math.ceil(shape.rows / multiple) * multiple
    vocab_size = config.tokenizer.vocab_size
    pairs = pairs_per_row * shape.rows
    model_flops = train_flops(config.model, vocab_size, src, tgt) / len(src) * pairs
    full = (np.full(rows, length) for length in (shape.src_length, shape.tgt_length))
    return PlannedShape(
        rows=rows,
        src_length=shape.src_length,
        tgt_length=shape.tgt_length,
        share=share,
        filled_rows=shape.rows,
        tgt_tokens=float(tgt.mean()) * pairs,
        model_flops=model_flops,
        padded_flops=train_flops(config.model, vocab_size, *full),
    )
