"""Compares the TPU attention kernel with XLA's code: `python -m benchmarks.tpu_attention`.

Compiles the forward and backward pass of one attention for v5e:2x2: 8,192 positions per device,
heads of width 64, bfloat16, a mask as for packed rows. The TPU compiler runs on a CPU
(extra tpu). Cycles are its estimates; it estimates a kernel only when it writes a
profile of its schedules. For the products of a feed-forward the two kinds of estimate agree within
2%.
"""

import argparse
import importlib.metadata
import math
import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from benchmarks.contest import write
from t2t.config.fields import MeshConfig
from t2t.model.kv_cache import KeyValue
from t2t.ops import recomputed_attention, tpu_attention
from t2t.ops.tpu_attention import LANES, MAX_WEIGHTS_PER_HEAD
from t2t.planning.chips import Tpu
from t2t.planning.hlo_traffic import measure_cost
from t2t.planning.topology import open_topology
from t2t.runtime.mesh import make_mesh, spec
from t2t.runtime.text_tables import format_table

POSITIONS, WIDTH = 8192, 64


def compile_attention(mesh: Mesh, length: int, heads: int, *, fused: bool) -> jax.stages.Compiled:
    """Compiles the results and gradients of one attention."""
    rows = POSITIONS // length * mesh.devices.size
    twin = tpu_attention.tpu_attention if fused else recomputed_attention.recomputed_attention

    def describe(shape: tuple[int, ...], dtype: Any, *names: str | None) -> jax.ShapeDtypeStruct:
        partition = spec("batch", *names)
        assert partition is not None
        return jax.ShapeDtypeStruct((rows, *shape), dtype, sharding=NamedSharding(mesh, partition))

    def run(mask: jax.Array, gradient: jax.Array, *arrays: jax.Array) -> Any:
        def attend(query: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
            results: jax.Array = twin(query, KeyValue(keys, values), mask)
            return results

        results, pull_back = jax.vjp(attend, *arrays)
        return results, pull_back(gradient)

    with jax.set_mesh(mesh):
        mask = describe((1, length, length), bool)
        projected = describe((length, heads, WIDTH), jnp.bfloat16, None, "heads")
        return jax.jit(run).lower(mask, *[projected] * 4).compile()


def measure(length: int, heads: int, *, fused: bool) -> dict[str, Any]:
    """Returns cycles and bytes per device, including operations around the kernel."""
    topology = open_topology("v5e:2x2")
    assert isinstance(topology.chip, Tpu)
    mesh = make_mesh(MeshConfig(), topology.devices)
    cost = measure_cost(str(compile_attention(mesh, length, heads, fused=fused).as_text()))
    kernel = sum(
        own.cycles for name, own in cost.operations.items() if name.endswith("pallas_call")
    )
    products = 2 + 5  # forward + backward; each length x length x width
    flops = 2 * products * POSITIONS * length * heads * WIDTH
    found: dict[str, Any] = {
        "cycles": cost.cycles,
        "hbm_bytes": cost.hbm_bytes,
        "kernel_cycles": kernel,
    }
    if fused:
        found["kernel_share_of_peak"] = flops / kernel / topology.chip.flops_per_cycle
    return found


def start_process(flags: str) -> ProcessPoolExecutor:
    """Starts a process with these compiler flags, since the compiler reads them only once."""
    return ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), initializer=set_flags, initargs=(flags,)
    )


def set_flags(flags: str) -> None:
    """Sets the compiler flags; runs before the compiler is loaded."""
    os.environ["LIBTPU_INIT_ARGS"] = flags


def main() -> None:
    """Prints the tables and writes all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default="128,256,512")
    parser.add_argument("--heads", default="8,16")
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/compiled/tpu-attention.json")
    )
    arguments = parser.parse_args()
    lengths = [int(length) for length in arguments.lengths.split(",")]
    for length in lengths:
        if length % LANES or length**2 > MAX_WEIGHTS_PER_HEAD:
            longest = math.isqrt(MAX_WEIGHTS_PER_HEAD)
            parser.error(f"--lengths={length}: use multiples of {LANES} up to {longest}")
    os.environ["JAX_PLATFORMS"] = "cpu"
    result: dict[str, Any] = {
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "libtpu")}
    }
    header = ["length", "heads", "kernel, cycles", "share of peak", "XLA, cycles", "kernel / XLA"]
    with (
        tempfile.TemporaryDirectory() as profiles,
        start_process(f"--xla_jf_dump_static_llo_profile_to={profiles}") as with_profiles,
        start_process("") as without,  # profiles of XLA's code take minutes
    ):
        for length in lengths:
            rows = []
            for heads in map(int, arguments.heads.split(",")):
                kernel, xla = (
                    process.submit(measure, length, heads, fused=process is with_profiles).result()
                    for process in (with_profiles, without)
                )
                ratio = kernel["cycles"] / xla["cycles"]
                result[f"length={length},heads={heads}"] = {"kernel": kernel, "xla": xla}
                share = f"{kernel['kernel_share_of_peak']:.2f}"
                figures = f"{kernel['cycles']:,}", share, f"{xla['cycles']:,}", f"{ratio:.2f}"
                rows.append([length, heads, *figures])
            print(format_table(rows, header, align="r" * len(header)), flush=True)
    write(arguments.output, result)


if __name__ == "__main__":
    main()
