"""Measures the train step of recipes: time, throughput, share of the peak, memory.

All programs are traced and compiled side by side; then each is measured alone, in a process of its
own, so that the device's peak memory is its own. One process compiles, in threads, since XLA times
kernels while it compiles and lets only one thread of a process do so. It leaves the programs in
JAX's compilation cache, from which the processes that measure read them.

The time of a step is that from the end of the step before to its own end. As in the training loop,
a step is dispatched before the host waits for the one before.

The peak is the measured rate of one large bfloat16 product. FLOPs are those of the closed form in
`t2t/ops/flops.py` for the sentences of the batch, without padding.
"""

import dataclasses
import importlib
import json
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.contestants.train_t2t import make_corpus
from benchmarks.gpu_steps.results import NOT_FINITE, Child, Results, end_with_parent, make_parser
from benchmarks.workload import SIZES, draw_pairs
from t2t.config.fields import Config, ModelConfig
from t2t.data.batch import EOS_ID, DeviceBatch
from t2t.data.loader import Loader, put_batch
from t2t.data.packing import make_plan
from t2t.ops.flops import train_flops
from t2t.planning.compile_step import divide_memory, lower_step
from t2t.runtime.mesh import make_mesh
from t2t.training.optimizer import make_optimizer
from t2t.training.state import init_state
from t2t.training.step import Metrics

STEPS = 20  # measured; after four without measurement
PATIENCE = 0.6  # share of the time limit after which compiling side by side ends


@dataclasses.dataclass(frozen=True)
class Program:
    """A train step to measure."""

    recipe: str
    positions: int = 32_768  # source positions of a batch, and as many target positions
    kernels: str = "auto"
    dropout: bool = True  # the recipe's; False: none

    @property
    def name(self) -> str:
        """The name of its row."""
        parts = [self.recipe]
        parts += [] if self.kernels == "auto" else [f"kernels={self.kernels}"]
        parts += [] if self.dropout else ["no dropout"]
        return ", ".join([*parts, f"{self.positions:,} positions"])

    def config(self, dry_run: bool) -> Config:
        """Returns the recipe with these changes; for a dry run in toy size."""
        config: Config = importlib.import_module(f"configs.{self.recipe}").get_config()
        config.data.batch_tokens = self.positions
        config.model.kernels = self.kernels
        if not self.dropout:
            config.model.dropout = 0.0
        if dry_run:
            width = config.model.d_model // 16
            rate, kernels = config.model.dropout, config.model.kernels
            config.model = ModelConfig(
                num_layers=1, d_model=width, d_ff=width, num_heads=2, dropout=rate, kernels=kernels
            )
            config.tokenizer.vocab_size = 100
            config.data.packed_length = config.data.max_length = 32
            config.data.batch_tokens = self.positions // 32
        return config


BASE = Program("base")
PROGRAMS = {
    program.name: program
    for program in (
        BASE,
        Program("big"),
        Program("base", kernels="textbook"),
        Program("base", dropout=False),
        Program("big", dropout=False),
        Program("base", 8_192),
        Program("big", 8_192),
    )
}


class Step:
    """A train step with its first state and one batch, on the device."""

    def __init__(self, config: Config):
        """Traces the step."""
        self.config = config
        self.mesh = make_mesh(config.mesh)
        self.length = config.data.packed_length
        self.rows = config.data.batch_tokens // self.length
        sizes = self.rows, self.length, self.length
        lowered = lower_step(config, self.mesh, *sizes)
        self.lowered, self._state_shapes, self._batch_shapes = lowered

    def compile(self) -> float:
        """Compiles the step, or reads it from the cache; returns the seconds that it took."""
        started = time.perf_counter()
        with jax.set_mesh(self.mesh):
            self._compiled = self.lowered.compile()
        return time.perf_counter() - started

    def start(self) -> None:
        """Creates state and batch: packed sentence pairs with lengths like WMT's."""
        vocab_size = self.config.tokenizer.vocab_size
        size = dataclasses.replace(SIZES["base"], vocab_size=vocab_size)
        corpus = make_corpus(draw_pairs(size, 6000))
        plan = make_plan([corpus.lengths], self.config.data, seed=0)
        with jax.set_mesh(self.mesh):
            optimizer = make_optimizer(self.config)
            _, self.state = init_state(self.config, optimizer, vocab_size, vocab_size)
            self.batch = put_batch(Loader(plan, [corpus]).batch(0), self.mesh)
        assert self.batch.src.shape == (self.rows, self.length)

    def run(self, count: int) -> tuple[list[Metrics], list[float]]:
        """Makes steps as the training loop does: dispatches one, then waits for the one before.

        Returns the metrics of the steps, and the seconds from the end of each to that of the next.
        """
        found: list[Metrics] = []
        ends, metrics = [], None
        with jax.set_mesh(self.mesh):
            for number in range(count + 1):
                before: Metrics | None = metrics
                if number < count:
                    self.state, metrics = self._compiled(self.state, self.batch)
                if before is not None:
                    found.append(jax.device_get(before))
                    ends.append(time.perf_counter())
        return found, np.diff(ends).tolist()

    def planned_bytes(self) -> int:
        """Returns the memory that `t2t.plan` states."""
        return divide_memory(self._compiled, self._state_shapes, self._batch_shapes).total


def measure(program: Program, dry_run: bool) -> dict[str, Any]:
    """Measures a program, after a line on the standard input."""
    step = Step(program.config(dry_run))
    sys.stdin.readline()
    load_seconds = step.compile()
    rate = measure_product(256 if dry_run else 8192)
    step.start()
    step.run(3)
    metrics, seconds = step.run(STEPS + 1)
    stats = jax.local_devices()[0].memory_stats() or {}
    median = statistics.median(seconds)
    lengths = find_lengths(step.batch)
    model, vocab_size = step.config.model, step.config.tokenizer.vocab_size
    padded = [np.full(step.rows, step.length)] * 2
    found = {
        "ms": 1000 * median,
        "ms_least": 1000 * min(seconds),
        "ms_most": 1000 * max(seconds),
        "losses": [float(metrics[0].loss), float(metrics[-1].loss)],
        "skipped": int(metrics[-1].skipped),  # of all steps
        "target_tokens": int(lengths[1].sum()),
        "tokens_per_second": int(lengths[1].sum()) / median,
        "product_flops_per_second": rate,
        "peak_bytes": stats.get("peak_bytes_in_use"),
        "planned_bytes": step.planned_bytes(),
        "load_seconds": load_seconds,
    }
    for name, sizes in (("model", lengths), ("padded", padded)):
        flops = train_flops(model, vocab_size, *sizes)
        found |= {f"{name}_flops": flops, f"{name}_utilization": flops / median / rate}
    return found


def find_lengths(batch: DeviceBatch) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lengths of all sentences of a batch, source and target, with EOS."""

    def measure_side(ids: Any) -> np.ndarray:
        flat = np.asarray(ids)
        rows, ends = np.nonzero(flat == EOS_ID)
        first = np.diff(rows, prepend=-1) != 0
        lengths: np.ndarray = np.where(first, ends + 1, np.diff(ends, prepend=0))
        return lengths

    return measure_side(batch.src), measure_side(batch.tgt_out)


def measure_product(size: int) -> float:
    """Returns the FLOPs per second of a bfloat16 product of two square matrices.

    The values are random: products of constants take less power, so the clock is higher.
    """
    matrix = jax.random.normal(jax.random.key(0), (size, size), jnp.bfloat16)
    multiply = jax.jit(jnp.matmul)
    multiply(matrix, matrix).block_until_ready()
    seconds = []
    for _ in range(10):
        started = time.perf_counter()
        jax.block_until_ready([multiply(matrix, matrix) for _ in range(5)])
        seconds.append((time.perf_counter() - started) / 5)
    return 2 * size**3 / statistics.median(seconds)


def describe(found: dict[str, Any]) -> str:
    """Formats the figures of a program."""
    peak = found["peak_bytes"]
    memory = f"{peak / 1e9:.2f} GB" if peak else "unknown"
    planned, rate = found["planned_bytes"] / 1e9, found["product_flops_per_second"] / 1e12
    seconds = found["compile_seconds"] or found["load_seconds"]
    first, last = found["losses"]
    losses = NOT_FINITE if found["skipped"] else f"loss {first:.2f}, then {last:.2f}"
    return (
        f"{found['ms']:.1f} ms, {found['tokens_per_second']:,.0f} target tokens/s, "
        f"{found['model_utilization']:.1%} of a product's {rate:.3g} TFLOP/s; "
        f"memory {memory}, planned {planned:.2f} GB; compiled in {seconds:.0f} s; {losses}"
    )


def compile_all(names: list[str], dry_run: bool) -> None:
    """Compiles programs in threads; prints a line of JSON when one is in the cache."""

    def compile_one(name: str) -> tuple[str, float]:
        return name, Step(PROGRAMS[name].config(dry_run)).compile()

    with ThreadPoolExecutor(len(names)) as pool:
        for done in as_completed([pool.submit(compile_one, name) for name in names]):
            print(json.dumps(done.result()), flush=True)


def main() -> None:
    """Measures all programs, in the order of their value."""
    parser = make_parser(__doc__)
    parser.add_argument("--compile", default="", help="compile these programs, names joined by |")
    parser.add_argument("--measure", default="", help="measure this program")
    flags = parser.parse_args()
    if flags.compile:
        compile_all(flags.compile.split("|"), flags.dry_run)
        return
    if flags.measure:
        print(json.dumps(measure(PROGRAMS[flags.measure], flags.dry_run)))
        return
    end_with_parent()
    measure_all(flags.output, flags.seconds, flags.dry_run)


def measure_all(output: Path, seconds: float, dry_run: bool) -> None:
    """Starts the processes and collects what they find."""
    results = Results(output, list(PROGRAMS)[: 5 if dry_run else None])  # others differ in size
    names = results.list_missing()
    if not names:
        return

    def start(log: str, flag: str) -> Child:
        given = [f"--output={output}", *["--dry_run"] * dry_run]
        path = output.with_name(f"training, {log}.log")
        return Child(path, "benchmarks.gpu_steps.training", flag, *given)

    compiler = start("compiling", f"--compile={'|'.join(names)}")
    children = {name: start(name, f"--measure={name}") for name in names}
    timer = threading.Timer(PATIENCE * seconds, compiler.process.kill)
    timer.daemon = True
    timer.start()
    compile_seconds = {}
    for line in compiler.process.stdout or ():
        name, taken = json.loads(line)
        compile_seconds[name] = taken
        print(f"  compiled {name} in {taken:.0f} s", flush=True)
    compiler.process.wait()
    timer.cancel()
    for name, child in children.items():
        with results.measuring(name):
            found = child.finish("\n") | {"compile_seconds": compile_seconds.get(name)}
            results.add(name, describe(found), **found)


if __name__ == "__main__":
    main()
