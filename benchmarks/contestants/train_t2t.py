"""Measures the training throughput of t2t on the workload; prints one line of JSON."""

import argparse
import json
import resource
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from benchmarks.workload import (
    SIZES,
    Pair,
    Size,
    draw_pairs,
    pack_rows,
    print_speed,
    repeat_for,
)
from t2t.config.fields import Config, DataConfig, MeshConfig, ModelConfig, TokenizerConfig
from t2t.data.loader import Loader, make_batch, put_batch
from t2t.data.packing import make_plan
from t2t.data.token_cache import Side, TokenizedCorpus
from t2t.ops.flops import count_parameters, train_flops
from t2t.runtime.host_memory import keep_freed_memory
from t2t.runtime.mesh import make_mesh
from t2t.training.optimizer import make_optimizer
from t2t.training.state import init_state
from t2t.training.step import make_train_step


def make_config(size: Size, dtype: str, positions: int) -> Config:
    """Returns the config for a size and batches of so many positions a side."""
    return Config(
        model=ModelConfig(
            num_layers=size.num_layers,
            d_model=size.d_model,
            d_ff=size.d_ff,
            num_heads=size.num_heads,
            dtype=dtype,
        ),
        data=DataConfig(
            batch_tokens=positions,
            packed_length={"multi30k": 64, "wmt": 128}[size.lengths],
            rows_multiple=1,
        ),
        tokenizer=TokenizerConfig(vocab_size=size.vocab_size),
    )


def join_side(sentences: Sequence[np.ndarray]) -> Side:
    """Joins the sentences of one language as in the token cache."""
    ends = np.cumsum([len(ids) for ids in sentences])
    return Side(np.concatenate(sentences).astype(np.uint16), ends)


def make_corpus(pairs: Sequence[Pair]) -> TokenizedCorpus:
    """Makes a corpus of these pairs."""
    src, tgt = map(join_side, zip(*pairs, strict=True))
    return TokenizedCorpus([(src, tgt)])


def train_rows(size: Size, rows: int, length: int, seconds: float, dtype: str) -> None:
    """Measures steps on a batch of packed rows; prints target tokens per second."""
    config = make_config(size, dtype, rows * length)
    mesh = make_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        batch = put_batch(make_batch(*pack_rows(size, rows, length)), mesh)
        optimizer = make_optimizer(config)
        structure, state = init_state(config, optimizer, size.vocab_size, size.vocab_size)
        step = make_train_step(structure, config, optimizer)

        def train(_: int) -> int:
            nonlocal state
            state, metrics = step(state, batch)
            return int(metrics.tokens)  # waits for the step

        print_speed(train, seconds, f"jax {jax.__version__}")


def main() -> None:
    """Compiles the step, then trains for `--seconds`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--positions", type=int, default=2048, help="positions of a batch per side")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--packed_rows", type=int, default=0, help="length of the rows of a batch")
    arguments = parser.parse_args()
    keep_freed_memory()  # as t2t.train does
    size = SIZES[arguments.size]
    if length := arguments.packed_rows:
        rows = arguments.positions // length
        train_rows(size, rows, length, arguments.seconds, arguments.dtype)
        return
    config = make_config(size, arguments.dtype, arguments.positions)
    corpus = make_corpus(draw_pairs(size, 20_000))
    lengths = corpus.lengths
    plan = make_plan([lengths], config.data, config.seed)
    loader = Loader(plan, [corpus])
    mesh = make_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        optimizer = make_optimizer(config)
        structure, state = init_state(config, optimizer, size.vocab_size, size.vocab_size)
        step = make_train_step(structure, config, optimizer)

        def train(number: int) -> int:
            nonlocal state
            state, metrics = step(state, put_batch(loader.batch(number), mesh))
            return int(metrics.tokens)

        started = time.perf_counter()
        train(0)
        compile_seconds = time.perf_counter() - started
        steps: Iterator[int] = iter(range(1, 10**9))
        result = repeat_for(arguments.seconds, steps, train)
    flops = train_flops(config.model, size.vocab_size, *lengths) / lengths[1].sum()
    print(
        json.dumps(
            result
            | {
                "flops_per_second": flops * result["tokens_per_second"],
                "padding_share": plan.padding_shares()[1],
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
