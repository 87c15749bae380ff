"""Measures how cost grows with each dimension: `python -m benchmarks.growth`.

One dimension varies at a time; the others are those of `MODEL`. The time of a training step, on
rows without padding, is compared with the closed form of its FLOPs. The time of a beam search is
compared with beam size, length and number of sentences; every hypothesis is as long as its limit.
Times are CPU seconds of the process, on a GPU or TPU wall-clock seconds. Memory is what a training
step needs beside its arguments, by XLA's account. Long rows, deep stacks and large
vocabularies are tried with the narrower `NARROW`.
"""

import argparse
import dataclasses
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from benchmarks.workload import FIRST_WORD, Size
from t2t.config.fields import Config, MeshConfig, ModelConfig, TokenizerConfig
from t2t.data.batch import Batch
from t2t.data.loader import put_batch
from t2t.decoding.translation import SourcePiece
from t2t.ops.flops import train_flops
from t2t.runtime.mesh import make_mesh
from t2t.training.optimizer import make_optimizer
from t2t.training.provenance import find_versions
from t2t.training.state import init_state
from t2t.training.step import make_train_step

VOCAB_SIZE = 4_000
MODEL = ModelConfig(d_model=256, d_ff=1024, num_heads=4, num_layers=3)
NARROW = dataclasses.replace(MODEL, d_model=64, d_ff=256, num_layers=1)
POSITIONS, LENGTH = 2_048, 64  # positions of a batch per side, and of a row

STEPS: dict[str, list[int]] = {
    "positions of a batch": [512, 1024, 2048, 4096],
    "length of a row": [16, 32, 64, 128, 256],
    "d_model": [64, 128, 256, 512],
    "layers of each stack": [1, 2, 4, 8],
    "length of a long row": [512, 1024, 2048, 4096, 8192],  # as many positions in each batch
    "layers in a scan": [6, 12, 24, 48],
    "vocabulary": [4_000, 32_000, 256_000],
}
SEARCHES: dict[str, list[int]] = {
    "beam": [1, 2, 4, 8],
    "length": [8, 16, 32, 64, 128],
    "sentences": [32, 64, 128, 256, 512],
    "long output": [512, 1024, 2048, 4096, 8192],  # of two sentences
    "layers in a scan": [6, 12, 24, 48],
    "vocabulary": [4_000, 32_000, 256_000],
}


def time_once(run: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest of several runs, after one that compiles."""
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    run()
    seconds = []
    for _ in range(repeats):
        started = clock()
        run()
        seconds.append(clock() - started)
    return min(seconds)


def measure_step(dimension: str, value: int, repeats: int) -> dict[str, float]:
    """Measures one training step."""
    model, positions, length, vocabulary = MODEL, POSITIONS, LENGTH, VOCAB_SIZE
    match dimension:
        case "positions of a batch":
            positions = value
        case "length of a row":
            length = value
        case "d_model":
            model = dataclasses.replace(model, d_model=value, d_ff=4 * value)
        case "layers of each stack":
            model = dataclasses.replace(model, num_layers=value)
        case "length of a long row":
            model, positions, length = NARROW, STEPS[dimension][-1], value
        case "layers in a scan":
            model = dataclasses.replace(NARROW, num_layers=value, scan_layers=True)
        case "vocabulary":
            model, vocabulary = NARROW, value
    config = Config(model=model, tokenizer=TokenizerConfig(vocab_size=vocabulary))
    shape = positions // length, length
    ids = np.random.default_rng(0).integers(FIRST_WORD, vocabulary, shape).astype(np.int32)
    mesh = make_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        optimizer = make_optimizer(config)
        structure, state = init_state(config, optimizer, vocabulary, vocabulary)
        batch = put_batch(Batch(ids, ids, ids, np.ones(shape, np.float32)), mesh)
        began = time.perf_counter()
        jitted = jax.jit(make_train_step(structure, config, optimizer), donate_argnums=0)
        step = jitted.lower(state, batch).compile()
        compile_seconds = time.perf_counter() - began

        def train() -> None:
            nonlocal state
            state, metrics = step(state, batch)
            jax.block_until_ready(metrics)

        seconds = time_once(train, repeats)
    lengths, memory = np.full(shape[0], length), step.memory_analysis()
    assert memory  # CPUs, GPUs and TPUs have it
    return {
        "seconds": seconds,
        "flops": train_flops(model, vocabulary, lengths, lengths),
        "compile_seconds": compile_seconds,
        "bytes": memory.temp_size_in_bytes,
    }


def measure_search(dimension: str, value: int, repeats: int) -> dict[str, float]:
    """Measures one beam search."""
    usual = {"beam": 4, "length": 16, "sentences": 64, "vocabulary": VOCAB_SIZE}
    beam, length, sentences, vocabulary = (
        value if dimension == name else number for name, number in usual.items()
    )
    model = MODEL if dimension in ("beam", "length", "sentences") else NARROW
    rows = np.random.default_rng(0).integers(FIRST_WORD, vocabulary, (sentences, length))
    match dimension:
        case "long output":
            length, rows = value, rows[:2]
        case "layers in a scan":
            model = dataclasses.replace(NARROW, num_layers=value, scan_layers=True)
    size = Size(
        model.d_model, model.d_ff, model.num_heads, model.num_layers, vocabulary, "multi30k"
    )
    config = make_config(size, beam)
    config.model.scan_layers, config.decoding.max_extra_length = model.scan_layers, length
    translator = ForcedTranslator(config, make_vocabulary(size))
    params = draw_params(size)
    pieces = [SourcePiece(ForcedSource(ids, length)) for ids in rows]

    def search() -> None:
        translator.search(params, pieces, 1, (PENALTY,))

    seconds = time_once(search, repeats)
    return {
        "seconds": seconds,
        "tokens": len(rows) * length,
        "compile_seconds": translator.compile_seconds,
    }


def draw(result: dict[str, Any], path: Path) -> None:
    """Plots a panel per dimension, both axes logarithmic; a dashed line is proportional growth."""
    panels = [
        (kind, dimension, points)
        for kind, name in (("step", "training"), ("search", "decoding"))
        for dimension, points in result[name].items()
    ]
    figure = Figure(figsize=(14, 3 * -(-len(panels) // 4)), layout="constrained")
    grid = figure.subplots(-(-len(panels) // 4), 4, squeeze=False).flat
    for axes, (kind, dimension, points) in zip(grid, panels, strict=False):
        values = [point["value"] for point in points]
        seconds = [point["seconds"] for point in points]
        axes.loglog(values, seconds, "o-", label="measured")
        work = [point.get("flops", point["value"]) for point in points]
        ideal = [seconds[-1] * amount / work[-1] for amount in work]
        label = "proportional to FLOPs" if "flops" in points[0] else "proportional"
        axes.loglog(values, ideal, "--", label=label)
        axes.set(xlabel=dimension, ylabel=f"seconds per {kind}")
        axes.set_xticks(values, [str(value) for value in values])
        axes.minorticks_off()
        axes.legend(fontsize="small")
    for axes in figure.axes[len(panels) :]:
        axes.set_visible(False)
    figure.savefig(path)


def main() -> None:
    """Measures, prints the figures, writes the file and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/growth.json"))
    parser.add_argument("--only", default="", help="only dimensions that match this expression")
    flags = parser.parse_args()
    result: dict[str, Any] = {
        "device": jax.devices()[0].device_kind,
        "versions": find_versions(("jax", "jaxlib", "flax")),
    }
    for name, measure, dimensions in (
        ("training", measure_step, STEPS),
        ("decoding", measure_search, SEARCHES),
    ):
        result[name] = {}
        for dimension, values in dimensions.items():
            if not re.search(flags.only, dimension):
                continue
            result[name][dimension] = []
            for value in values:
                point = {"value": value, **measure(dimension, value, flags.repeats)}
                result[name][dimension].append(point)
                rate = (
                    f"{point['flops'] / point['seconds'] / 1e9:6.1f} GFLOP/s"
                    if "flops" in point
                    else f"{point['tokens'] / point['seconds']:6.0f} tokens/s"
                )
                if "bytes" in point:
                    rate += f", {point['bytes'] / 1e6:7.1f} MB"
                print(f"{dimension:20} {value:6} {point['seconds']:8.3f} s {rate}", flush=True)
    write(flags.output, result)
    draw(result, flags.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
