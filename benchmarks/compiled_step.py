"""Compares compiled train steps of t2t and of the Flax WMT example, and runs neither.

    python -m benchmarks.compiled_step --checkout=PATH --topology=v5e:2x2 --output=FILE

Both are compiled for the same devices, which need not be here (extras tpu and
cuda), and counted by the same reader (`t2t/planning/hlo_traffic.py`): data
parallel, 32 packed rows of 256 source and 256 target positions per device, V = 32,000, products in
bfloat16. All figures are per device and step. Both steps have the same number of positions; how
many of them hold tokens does not enter.

--checkout is a checkout of github.com/google/flax; without it only t2t is measured.
--dropout lists comparisons: `none` (neither has dropout), `recipe` (both drop what our recipe
drops: outputs of sub-layers, and embeddings), `own` (each as it is: the example also drops
attention weights and the feed-forward's hidden layer, and computes accuracy and a second loss).
`none` and `recipe` are equal work: they leave out those metrics.
--accumulation_steps=1,2,4 also measures gradient accumulation in t2t, which needs less memory.
"""

import argparse
import dataclasses
import importlib
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks.contest import write
from benchmarks.flax_wmt import Example
from t2t.config.fields import Config
from t2t.planning.batch_shapes import plan_shapes
from t2t.planning.chips import Gpu, Tpu
from t2t.planning.compile_step import compile_step
from t2t.planning.hlo_traffic import measure_cost
from t2t.planning.topology import Topology, open_topology
from t2t.runtime.mesh import make_mesh
from t2t.runtime.text_tables import format_table
from t2t.training.provenance import find_revision, find_versions, now

ROWS, LENGTH = 32, 256  # per device
VOCABULARY = 32_000
# Comparison -> dropout of t2t, dropout of the example.
COMPARISONS = {
    "none": ("none", "none"),
    "recipe": ("recipe", "recipe"),
    "own": ("recipe", "example"),
}
# Figure -> unit in the table, size of the unit.
COMPARED = {
    "cycles": ("million cycles", 1e6),
    "hbm_bytes": ("GB between HBM and chip", 1e9),
    "temporary_bytes": ("GB of temporary memory", 1e9),
    "kernels": ("kernels", 1),
}
PACKAGES = ("jax", "jaxlib", "flax", "optax", "libtpu", "jax-cuda12-plugin")
Figures = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Program:
    """A train step to compile."""

    program: str  # t2t or flax_wmt
    model: str  # a recipe: base or big
    dropout: str  # none, recipe or example
    accumulation_steps: int = 1

    def config(self, devices: int) -> Config:
        """Returns the recipe with the shape that is measured."""
        config: Config = importlib.import_module(f"configs.{self.model}").get_config()
        config.training.accumulation_steps = self.accumulation_steps
        config.tokenizer.vocab_size = VOCABULARY
        config.data.batch_tokens = ROWS * LENGTH * devices
        if self.dropout == "none":
            config.model.dropout = 0.0
        return config

    def measure(self, topology: Topology, example: Example | None) -> Figures:
        """Compiles the step and counts its cost."""
        config, devices = self.config(len(topology.devices)), topology.devices
        started = time.perf_counter()
        if self.program == "t2t":
            mesh = make_mesh(config.mesh, devices)
            own = compile_step(config, mesh, ROWS * len(devices), LENGTH, LENGTH)
            text, temporary, flops = own.text, own.memory.activations, own.flops
        else:
            assert example
            theirs = example.compile(config.model, VOCABULARY, devices, ROWS, LENGTH, self.dropout)
            memory = theirs.memory_analysis()
            assert memory
            text, temporary = str(theirs.as_text()), memory.temp_size_in_bytes
            flops = (theirs.cost_analysis() or {}).get("flops")
        seconds = round(time.perf_counter() - started)
        counted = count(text, config, topology) | {"temporary_bytes": temporary}
        about = {"compiled_flops": flops, "compile_seconds": seconds}
        return dataclasses.asdict(self) | counted | about


def count(text: str, config: Config, topology: Topology) -> Figures:
    """Counts the cost of a step; `text` is its optimised HLO.

    The TPU compiler states no cycles of the attention kernel. They are taken as if heads of width
    64, which fill half of a matrix unit, reached half of the peak.
    """
    cost, chip = measure_cost(text), topology.chip
    found: Figures = {"hbm_bytes": cost.hbm_bytes, "remarks": sorted(cost.remarks)}
    if cost.cycles is not None and isinstance(chip, Tpu):
        fill = min(1.0, config.model.key_width / 128)
        found["kernel_cycles"] = round(cost.uncounted_flops / (fill * chip.flops_per_cycle))
        found["cycles"] = cost.cycles + found["kernel_cycles"]
    if isinstance(chip, Gpu):
        found["kinds"] = cost.list_kernels()
        found["kernels"] = sum(kind["count"] for kind in found["kinds"].values())
    return found


def describe(topology: Topology, example: Example | None, models: Sequence[str]) -> Figures:
    """Returns what the figures depend on, and our closed forms."""
    facts: Figures = {**find_revision(), "date": now(), "versions": find_versions(PACKAGES)}
    facts["topology"] = topology.name
    facts["per_device"] = {"rows": ROWS, "positions": ROWS * LENGTH, "vocabulary": VOCABULARY}
    facts["flax_wmt"] = example.sha256 if example else None
    devices = len(topology.devices)
    for model in models:
        config = Program("t2t", model, "recipe").config(devices)
        (shape,) = plan_shapes(config, devices, mean_length=27.0)
        facts[model] = {
            "flops": shape.padded_flops / devices,  # of all products, by the closed form
            # Share of the target positions that hold tokens, with WMT-like lengths; used nowhere.
            "fill": shape.tgt_tokens / devices / (ROWS * LENGTH),
        }
    return facts


def compare(own: Mapping[str, Any], theirs: Mapping[str, Any] | None) -> Figures:
    """Returns our figures divided by the example's; without the example it returns nothing."""
    return {name: own[name] / theirs[name] for name in COMPARED if theirs and name in own}


def describe_comparison(
    own: Mapping[str, Any], theirs: Mapping[str, Any] | None, ratios: Mapping[str, float]
) -> list[list[str]]:
    """Returns lines of the table: name, ours, the example's, ratio."""
    lines = []
    for name, (unit, size) in COMPARED.items():
        if name in own:
            their = [f"{theirs[name] / size:,.5g}", f"{ratios[name]:.3f}"] if theirs else []
            lines.append([unit, f"{own[name] / size:,.5g}", *their])
    return lines


def measure_all(
    flags: argparse.Namespace, topology: Topology, example: Example | None, facts: Figures
) -> None:
    """Measures the programs of all comparisons, each once; prints and writes after each table."""
    found: dict[Program, Figures] = {}
    ratios: list[Figures] = []
    parts = map(int, flags.accumulation_steps.split(","))
    header = ["per device and step", "t2t", "Flax example", "t2t / Flax example"]
    for kind, model, steps in itertools.product(
        flags.dropout.split(","), flags.models.split(","), parts
    ):
        ours, theirs = COMPARISONS[kind]
        pair = [Program("t2t", model, ours, steps)]
        pair += [Program("flax_wmt", model, theirs)] * (example is not None)
        for program in pair:
            if program not in found:
                found[program] = program.measure(topology, example)
        own, other = found[pair[0]], found[pair[1]] if example else None
        about = {"model": model, "dropout": kind, "accumulation_steps": steps}
        ratios.append(about | compare(own, other))
        print(
            f"\n{topology.name}, " + ", ".join(f"{name}: {value}" for name, value in about.items())
        )
        lines = describe_comparison(own, other, ratios[-1])
        print(format_table(lines, header, align="lrrr"), flush=True)
        write(flags.output, facts | {"t2t_over_flax": ratios, "programs": [*found.values()]})


def main() -> None:
    """Reads the flags and measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkout", type=Path, help="checkout of github.com/google/flax")
    parser.add_argument("--topology", default="v5e:2x2", help="the devices to compile for")
    parser.add_argument("--models", default="base,big")
    parser.add_argument("--dropout", default="none,own", help=f"of {', '.join(COMPARISONS)}")
    parser.add_argument("--accumulation_steps", default="1")
    parser.add_argument("--output", type=Path, required=True, help="output file")
    flags = parser.parse_args()
    if unknown := set(flags.dropout.split(",")) - COMPARISONS.keys():
        parser.error(f"--dropout={','.join(unknown)} is unknown; use {', '.join(COMPARISONS)}")
    jax.config.update("jax_platforms", "cpu")  # leave this machine's accelerators alone
    # The cache cannot load programs that were compiled for devices this machine does not have.
    jax.config.update("jax_enable_compilation_cache", False)
    example = Example(flags.checkout) if flags.checkout else None
    topology = open_topology(flags.topology)
    facts = describe(topology, example, flags.models.split(","))
    measure_all(flags, topology, example, facts)


if __name__ == "__main__":
    main()
