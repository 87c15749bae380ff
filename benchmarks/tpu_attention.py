"""Attention alone, compiled for a TPU, the kernel beside XLA: `python -m benchmarks.tpu_attention`.

Forward and backward, 8,192 positions on each device of v5e:2x2, heads 64 wide, in bfloat16, with a
mask as of packed rows. Compiled by the TPU's own compiler on a CPU (requirements-tpu.txt), whose
estimates these cycles are: of the kernel it makes one where it is asked for a profile of its
schedules. For the products of a feed-forward both kinds of estimate agree within 2%.
"""

import argparse
import importlib.metadata
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from benchmarks.contest import write
from t2t.config import MeshConfig
from t2t.model import attention
from t2t.model.attention import KeyValue, dot_product_attention
from t2t.model.fused_attention import suits_kernel
from t2t.planning.hlo_cost import measure_cost
from t2t.planning.topology import open_topology
from t2t.sharding import make_mesh, spec

POSITIONS, WIDTH = 8192, 64


def compile_attention(mesh: Mesh, length: int, heads: int, *, fused: bool) -> jax.stages.Compiled:
    """Results and gradients of one attention."""
    rows = POSITIONS // length * mesh.devices.size

    def describe(shape: tuple[int, ...], dtype: Any, *names: str | None) -> jax.ShapeDtypeStruct:
        partition = spec("batch", *names)
        assert partition is not None
        return jax.ShapeDtypeStruct((rows, *shape), dtype, sharding=NamedSharding(mesh, partition))

    def run(mask: jax.Array, gradient: jax.Array, *arrays: jax.Array) -> Any:
        def attend(query: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
            return dot_product_attention(query, KeyValue(keys, values), mask)

        results, pull_back = jax.vjp(attend, *arrays)
        return results, pull_back(gradient)

    chosen = suits_kernel if fused else lambda *_: False
    with jax.set_mesh(mesh), mock.patch.object(attention, "suits_kernel", chosen):
        mask = describe((1, length, length), bool)
        projected = describe((length, heads, WIDTH), jnp.bfloat16, None, "heads")
        return jax.jit(run).lower(mask, *[projected] * 4).compile()


def measure(mesh: Mesh, length: int, heads: int) -> dict[str, Any]:
    """Cycles and bytes of each device, all around the kernel included."""
    fused, plain = (
        measure_cost(str(compile_attention(mesh, length, heads, fused=fused).as_text()))
        for fused in (True, False)
    )
    assert fused.cycles
    assert plain.cycles
    kernels = [one for one in fused.operations if one.name.endswith("pallas_call")]
    kernel_cycles = sum(one.cycles for one in kernels)
    products = 2 + 5  # forward, backward; all of length x length x width
    return {
        "kernel_cycles": kernel_cycles,
        "kernel_flops_per_cycle": 2 * products * POSITIONS * length * heads * WIDTH / kernel_cycles,
        "cycles": {"kernel": fused.cycles, "xla": plain.cycles},
        "kernel_over_xla": fused.cycles / plain.cycles,
        "hbm_bytes": {"kernel": fused.hbm_bytes, "xla": plain.hbm_bytes},
    }


def main() -> None:
    """Prints the table, and writes all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default="128,256,512,1024")
    parser.add_argument("--heads", default="8,16")
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/tpu-attention.json")
    )
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    result: dict[str, Any] = {
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "libtpu")}
    }
    print("length heads   kernel, cycles   share of peak      XLA, cycles   kernel / XLA")
    with tempfile.TemporaryDirectory() as profiles:
        os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_static_llo_profile_to={profiles}"
        topology = open_topology("v5e:2x2")
        mesh = make_mesh(MeshConfig(), topology.devices)
        for length in map(int, arguments.lengths.split(",")):
            for heads in map(int, arguments.heads.split(",")):
                own = measure(mesh, length, heads)
                result[f"length={length},heads={heads}"] = own
                share = own["kernel_flops_per_cycle"] / topology.chip.flops_per_cycle
                line = f"{length:6} {heads:5} {own['cycles']['kernel']:16,} {share:15.2f}"
                line += f" {own['cycles']['xla']:16,} {own['kernel_over_xla']:14.2f}"
                print(line, flush=True)
    write(arguments.output, result)


if __name__ == "__main__":
    main()
