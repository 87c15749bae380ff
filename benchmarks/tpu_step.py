"""Compares the cost of a step on a TPU with the Flax WMT example: `python -m benchmarks.tpu_step`.

The TPU compiler runs on a CPU (requirements-tpu.txt), for v5e:2x2 with data parallelism: 8,192
source and 8,192 target positions per device, as 32 packed rows of 256; dropout of the recipe;
V = 32,000. Cycles are the compiler's estimate, bytes the traffic between HBM and chip, both from
the optimised program (`t2t/planning/hlo_traffic.py`), without collectives. They are divided by the
target tokens without padding, whose share follows from WMT-like lengths.
--accumulation_steps=1,2,4 also measures gradient accumulation, which needs less memory.
"""

import argparse
import importlib
import importlib.metadata
import time
from pathlib import Path
from typing import Any

import jax

from benchmarks.contest import write
from t2t.config.fields import Config
from t2t.planning.batch_shapes import plan_shapes
from t2t.planning.chips import Tpu
from t2t.planning.compile_step import compile_step
from t2t.planning.roofline import estimate
from t2t.planning.topology import open_topology
from t2t.runtime.mesh import make_mesh
from t2t.runtime.text_tables import format_table

ROWS, LENGTH = 32, 256  # per device

# The example of flax 0.12 (examples/wmt, linen) with dropout 0.1 everywhere, for the same shape and
# by the same compiler (jax 0.10.2, libtpu 0.0.42.1). It packs; its rows are assumed to be full.
FLAX = {
    "base": {"cycles": 14_890, "hbm_bytes": 1.44e6, "temporary_bytes": 2_534e6},
    "big": {"cycles": 33_750, "hbm_bytes": 4.21e6, "temporary_bytes": 4_446e6},
}


def measure(config: Config, parts: int) -> dict[str, Any]:
    """Measures one recipe with `parts` accumulation steps."""
    config.training.accumulation_steps = parts
    topology = open_topology("v5e:2x2")
    assert isinstance(topology.chip, Tpu)
    devices = len(topology.devices)
    config.tokenizer.vocab_size = 32_000
    config.data.batch_tokens = ROWS * LENGTH * devices
    (shape,) = plan_shapes(config, devices, mean_length=27.0)
    started = time.perf_counter()
    program = compile_step(
        config, make_mesh(config.mesh, topology.devices), ROWS * devices, LENGTH, LENGTH
    )
    widths = config.model.key_width, config.model.value_width
    found = estimate(program, topology.chip, shape.padded_flops / devices, widths)
    assert found.estimated_cycles
    tokens = shape.tgt_tokens / devices
    return {
        "tokens": tokens,
        "fill": tokens / (ROWS * LENGTH),
        "cycles": found.estimated_cycles / tokens,
        "hbm_bytes": found.hbm_bytes / tokens,
        "temporary_bytes": found.memory.activations,
        "flops": found.flops,
        "compiled_flops": found.compiled_flops,
        "share_of_peak": found.flops / (found.estimated_cycles * topology.chip.flops_per_cycle),
        "compile_seconds": time.perf_counter() - started,
        "top_operations": found.top_operations,
    }


def main() -> None:
    """Prints the tables and writes all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="base,big")
    parser.add_argument("--accumulation_steps", default="1")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/tpu-step.json"))
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    result: dict[str, Any] = {
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "libtpu")}
    }
    for model in arguments.models.split(","):
        result[model], rows = {"flax": FLAX[model]}, []
        for parts in map(int, arguments.accumulation_steps.split(",")):
            own = measure(importlib.import_module(f"configs.{model}").get_config(), parts)
            result[model][f"accumulation_steps={parts}"] = own
            for name, theirs in FLAX[model].items():
                figures = f"{own[name]:,.0f}", f"{theirs:,.0f}", f"{own[name] / theirs:.2f}"
                rows.append([model, name, parts, *figures])
        header = ["", "per target token", "accumulation steps", "t2t", "Flax", "t2t / Flax"]
        print(format_table(rows, header, align="llrrrr"), flush=True)
    write(arguments.output, result)


if __name__ == "__main__":
    main()
