"""Predicts the batch shapes that a recipe trains on, and their frequencies, without its data.

Sentence lengths are drawn from a distribution like WMT14's and grouped as training groups them. Of
several tasks each has as many texts as its weight says, as if all corpora were equally large and
their texts equally long; the objective of a task then makes its sources and targets.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from t2t.config.fields import Config, ConfigError, DataConfig
from t2t.data.batch_plan import (
    BatchShape,
    CorpusLengths,
    assign_shapes,
    choose_shapes,
    count_lengths,
    find_dropped,
)
from t2t.data.directions import list_tasks
from t2t.data.objectives import choose_objective
from t2t.data.packing import make_plan
from t2t.data.stages import assume_stages, share_tasks
from t2t.ops.flops import train_flops

_PAIRS = 100_000
_FEWEST = 100  # pairs of a task with a small weight
_SPREAD = 0.6  # standard deviation of the logarithm of a source length
_RATIO_SPREAD = 0.18  # standard deviation of the logarithm of target length / source length
_LONGEST_MEANS = 4.75  # lengths are clipped to this many means: 128 if the mean is 27
_SHORTEST = 4  # lengths are at least this


@dataclasses.dataclass(frozen=True)
class PlannedShape:
    """A batch shape and the average content of its batches, summed over all devices."""

    rows: int  # including empty rows
    src_length: int
    tgt_length: int
    share: float  # of the training steps
    filled_rows: int  # rows that contain pairs
    tgt_tokens: float  # per batch, without padding
    model_flops: float  # per step by the closed form, without padding
    padded_flops: float  # per step by the closed form, padding counted as tokens


def draw_lengths(
    data: DataConfig, mean: float, seed: int = 0, pairs: int = _PAIRS
) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
    """Draws (source, target) lengths of sentence pairs, in sub-words with EOS.

    Source lengths are log-normal with mean `mean`; target lengths are log-normal multiples of them.
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
    """Returns the shapes that training would choose, the one with the most FLOPs first.

    The mesh splits the rows of a batch into `row_shards` parts. `mean_length` is that of a source,
    or of a text alone, in sub-words.

    Raises:
        ConfigError: The limits of length would drop every pair of a task.
    """
    shares = share_examples(config)
    tasks = [task for task in list_tasks(config.data) if shares[task.task]]
    corpora = [
        _draw_examples(config, task, mean_length, shares[task.task] / max(shares.values()))
        for task in tasks
    ]
    if config.data.packed_length:
        return _plan_packed(config, row_shards, corpora, tasks)
    src, tgt = (np.concatenate(side) for side in zip(*corpora, strict=True))
    counts = count_lengths(src, tgt, config.data.length_multiple)
    shapes = choose_shapes(counts, config.data)
    members = assign_shapes(src, tgt, shapes)
    steps = [np.count_nonzero(members == number) / s.rows for number, s in enumerate(shapes)]
    planned = [
        _plan_shape(config, shape, row_shards, count / sum(steps), src[own], tgt[own])
        for number, (shape, count) in enumerate(zip(shapes, steps, strict=True))
        if (own := members == number).any()
    ]
    return sorted(planned, key=lambda shape: shape.padded_flops, reverse=True)


def share_examples(config: Config) -> dict[str, float]:
    """Returns the share of each task of all examples, if all corpora are equally large.

    With `data.stages` it is the mean over all steps.
    """
    steps = config.training.steps
    stages = share_tasks(assume_stages(config.data), steps, "pairs")
    return {name: sum(n * own[name] for n, own in stages) / steps for name in stages[0][1]}


def _draw_examples(
    config: Config, data: DataConfig, mean_length: float, share: float
) -> CorpusLengths:
    """Draws (source, target) lengths of this share of `_PAIRS` examples of a task.

    Raises:
        ConfigError: as `plan_shapes`.
    """
    src, tgt = draw_lengths(data, mean_length, pairs=max(round(share * _PAIRS), _FEWEST))
    if data.is_text_alone:
        objective = choose_objective(data, range(config.tokenizer.sentinels))
        src, tgt = objective.find_lengths((np.ones_like(src), src))
    kept = np.ones(len(src), bool)
    for dropped in find_dropped(src, tgt, data).values():
        kept[dropped] = False
    if not kept.any():
        whose = f" of {data.task}" if data.task else ""
        raise ConfigError(
            f"data.max_length={data.max_length} and data.max_length_ratio="
            f"{data.max_length_ratio} would drop every pair{whose}; raise them"
        )
    return src[kept], tgt[kept]


def _plan_packed(
    config: Config, row_shards: int, corpora: Sequence[CorpusLengths], tasks: Sequence[DataConfig]
) -> list[PlannedShape]:
    plan = make_plan(corpora, config.data, config.seed, tasks=tasks)
    batches = [plan.batch(step) for step in range(plan.steps_per_epoch)]
    planned = []
    for shape in reversed(plan.shapes):  # the longer rows first
        if not (own := [batch for batch in batches if batch.shape == shape]):
            continue  # its rows fill up batches of the other one
        pairs = np.concatenate([batch.indices for batch in own])
        num_rows = sum(int(batch.rows[-1]) + 1 for batch in own)
        share = len(own) / len(batches)
        lengths = plan.src_lengths[pairs], plan.tgt_lengths[pairs], len(pairs) / num_rows
        planned.append(_plan_shape(config, shape, row_shards, share, *lengths))
    return planned


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
    passes = config.training.num_passes
    model_flops = passes * train_flops(config.model, vocab_size, src, tgt) / len(src) * pairs
    full = (np.full(rows, length) for length in (shape.src_length, shape.tgt_length))
    return PlannedShape(
        rows=rows,
        src_length=shape.src_length,
        tgt_length=shape.tgt_length,
        share=share,
        filled_rows=shape.rows,
        tgt_tokens=float(tgt.mean()) * pairs,
        model_flops=model_flops,
        padded_flops=round(passes * train_flops(config.model, vocab_size, *full)),
    )
