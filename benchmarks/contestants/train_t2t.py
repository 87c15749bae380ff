"""Training throughput of t2t on the workload: one JSON line."""

import argparse
import json
import resource
import time
from collections.abc import Iterator

import jax
import numpy as np

from benchmarks.workload import SIZES, Size, draw_pairs, repeat_for
from t2t.config import Config, DataConfig, MeshConfig, ModelConfig, TokenizerConfig
from t2t.data.pipeline import pad_batch
from t2t.data.plan import Plan
from t2t.model.flops import count_parameters, train_flops
from t2t.sharding import make_mesh, put_batch
from t2t.training.state import init_state, make_optimizer
from t2t.training.step import make_train_step


def make_config(size: Size, positions: int, num_shapes: int, dtype: str) -> Config:
    """The size as a recipe, with so many positions a side and batch."""
    return Config(
        model=ModelConfig(
            num_layers=size.num_layers,
            d_model=size.d_model,
            d_ff=size.d_ff,
            num_heads=size.num_heads,
            dtype=dtype,
        ),
        data=DataConfig(batch_tokens=positions, num_shapes=num_shapes, rows_multiple=1),
        tokenizer=TokenizerConfig(vocab_size=size.vocab_size),
    )


def main() -> None:
    """Compiles all shapes, then trains for the time asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--positions", type=int, default=2048, help="of a batch, each side")
    parser.add_argument("--num_shapes", type=int, default=12)
    parser.add_argument("--dtype", default="auto")
    arguments = parser.parse_args()
    size = SIZES[arguments.size]
    config = make_config(size, arguments.positions, arguments.num_shapes, arguments.dtype)
    pairs = draw_pairs(size, 20_000)
    lengths = np.array([len(src) for src, _ in pairs]), np.array([len(tgt) for _, tgt in pairs])
    plan = Plan([lengths], config.data, config.seed)
    mesh = make_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        optimizer = make_optimizer(config)
        structure, state = init_state(config, optimizer, size.vocab_size, size.vocab_size)
        step = make_train_step(structure, optimizer, config)

        def train(number: int) -> int:
            nonlocal state
            planned = plan.batch(number)
            own = [pairs[index] for index in planned.indices]
            batch = put_batch(pad_batch(own, planned.shape, planned.shape.rows), mesh)
            state, metrics = step(state, batch)
            metrics.loss.block_until_ready()
            return int(lengths[1][planned.indices].sum())

        def train_on_each_shape() -> None:
            shapes = {plan.batch(number).shape: number for number in range(plan.steps_per_epoch)}
            for number in shapes.values():
                train(number)

        started = time.perf_counter()
        train_on_each_shape()
        compile_seconds = time.perf_counter() - started
        steps: Iterator[int] = iter(range(10**9))
        result = repeat_for(arguments.seconds, steps, train)
    flops = train_flops(config.model, size.vocab_size, *lengths) / lengths[1].sum()
    print(
        json.dumps(
            result
            | {
                "flops_per_second": flops * result["tokens_per_second"],
                "padding_share": plan.padding_share(),
                "compile_seconds": compile_seconds,
                "shapes": len(plan.shapes),
                "parameters": count_parameters(config.model, *[size.vocab_size] * 2),
                "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "version": f"jax {jax.__version__}",
            }
        )
    )


if __name__ == "__main__":
    main()
