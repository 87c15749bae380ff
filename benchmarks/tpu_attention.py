"""Attention alone, compiled for a TPU, the kernel beside XLA: `python -m benchmarks.tpu_attention`.

Forward and backward, 8,192 positions on each device of v5e:2x2, heads 64 wide, in bfloat16, of a
packed batch's mask. Compiled by the TPU's own compiler on a CPU (requirements-tpu.txt), whose
estimates these cycles are: XLA's stand in the optimised program, the kernel's in the profile that
the compiler makes of its schedule. For matrix products the two kinds agree within 2%.
"""

import argparse
import importlib.metadata
import os
import re
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.contest import write
from t2t.config import MeshConfig
from t2t.model import attention
from t2t.model.attention import KeyValue, dot_product_attention
from t2t.model.fused_attention import suits_kernel
from t2t.planning.hlo_cost import measure_cost
from t2t.planning.topology import open_topology
from t2t.sharding import RULES, make_mesh

POSITIONS, WIDTH = 8192, 64


def compile_attention(mesh: Mesh, length: int, heads: int, *, fused: bool) -> jax.stages.Compiled:
    """Results and gradients of one attention."""
    rows = POSITIONS // length * mesh.devices.size

    def describe(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        cut = NamedSharding(mesh, PartitionSpec(RULES["batch"]))
        return jax.ShapeDtypeStruct((rows, *shape), dtype, sharding=cut)

    def run(mask: jax.Array, gradient: jax.Array, *arrays: jax.Array) -> Any:
        def attend(query: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
            return dot_product_attention(query, KeyValue(keys, values), mask)

        results, pull_back = jax.vjp(attend, *arrays)
        return results, pull_back(gradient)

    chosen = suits_kernel if fused else lambda *_: False
    with jax.set_mesh(mesh), mock.patch.object(attention, "suits_kernel", chosen):
        projected = describe(jnp.bfloat16, length, heads, WIDTH)
        return jax.jit(run).lower(describe(bool, 1, length, length), *[projected] * 4).compile()


def measure(mesh: Mesh, length: int, heads: int, profiles: Path) -> dict[str, Any]:
    """Cycles of each device, and what they come to of its peak."""
    kernel, plain = (
        str(compile_attention(mesh, length, heads, fused=fused).as_text())
        for fused in (True, False)
    )
    calls = re.findall(r'%(\S+) = .*custom_call_target="tpu_custom_call"', kernel)
    found = [(profiles / f"{call}_static_llo_profile.textproto").read_text() for call in calls]
    cycles = sum(int(re.findall(r"estimated_cycles: (\d+)", text)[0]) for text in found)
    around, whole = measure_cost(kernel), measure_cost(plain)
    assert around.cycles
    assert whole.cycles
    return {
        "kernel_cycles": cycles,
        "kernel_flops_per_cycle": around.flops / cycles,
        "cycles_around_the_kernel": around.cycles,
        "xla_cycles": whole.cycles,
        "xla_flops_per_cycle": whole.flops / whole.cycles,
        "kernel_over_xla": (cycles + around.cycles) / whole.cycles,
        "kernel_hbm_bytes": around.hbm_bytes,
        "xla_hbm_bytes": whole.hbm_bytes,
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
                own = measure(mesh, length, heads, Path(profiles))
                result[f"length={length},heads={heads}"] = own
                share = own["kernel_flops_per_cycle"] / topology.chip.flops_per_cycle
                line = f"{length:6} {heads:5} {own['kernel_cycles']:16,} {share:15.2f}"
                print(f"{line} {own['xla_cycles']:16,} {own['kernel_over_xla']:14.2f}", flush=True)
    write(arguments.output, result)


if __name__ == "__main__":
    main()
