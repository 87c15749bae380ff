"""Counts where the bytes of base's train step on one H100 go, and draws them by group of kernels.

    python -m benchmarks.step_bytes

compiles the step of this checkout, which needs the extra cuda and no GPU. It replaces `after` in
the raw file (--output), and draws the figure (--figure) again; the earlier step in that file stays.
With --before=CHECKOUT it also compiles the step of that checkout.

Bytes are operands and results of kernels, as `t2t/planning/hlo_traffic.py` counts them. The group
of a kernel follows from its kind and from the largest arrays that it reads or writes: XLA names a
kernel after only one of its operations.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.contest import ROOT, write
from configs import base
from t2t.evaluation.plots import write_figure
from t2t.planning.hlo_traffic import Work, measure_cost
from t2t.runtime.text_tables import format_table
from t2t.training.provenance import now

POSITIONS = 32_768  # of the source, and as many of the target
OUTPUT = ROOT / "benchmarks" / "results" / "compiled" / "step-bytes.json"
FIGURE = ROOT / "docs" / "pictures" / "step-bytes.svg"
PRODUCTS, ATTENTION, LOSS = "products", "attention by cuDNN", "maximum and exp of the logits"
FEED_FORWARD = "biases and ReLU of feed-forwards"
NORMS = "norms, residuals, dropout, embeddings"
OPTIMIZER, OTHER = "Adam, norm of the gradient", "others"
GROUPS = PRODUCTS, ATTENTION, LOSS, FEED_FORWARD, NORMS, OPTIMIZER, OTHER
# Runs in a checkout; its last line is JSON.
COMPILE = """
import json, sys
import jax
jax.config.update("jax_platforms", "cpu")
# The cache cannot load programs that were compiled for devices this machine does not have.
jax.config.update("jax_enable_compilation_cache", False)
from configs import base
from t2t.planning.compile_step import compile_step
from t2t.planning.topology import open_topology
from t2t.runtime.mesh import make_mesh
from t2t.training.provenance import find_revision, find_versions
config, positions = base.get_config(), int(sys.argv[1])
config.data.batch_tokens, length = positions, config.data.packed_length
mesh = make_mesh(config.mesh, open_topology("h100:1").devices)
step = compile_step(config, mesh, positions // length, length, length)
versions = find_versions(("jax", "jaxlib", "jax-cuda12-plugin"))
facts = {**find_revision(), "versions": versions, "memory_bytes": step.memory.total}
print(json.dumps({"facts": facts, "text": step.text}))
"""


def compile_in(checkout: Path) -> dict[str, Any]:
    """Returns the figures of a checkout's step.

    Raises:
        SystemExit: it does not compile.
    """
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(POSITIONS)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout.resolve())},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"the step of {checkout} does not compile; its last lines are above")
    found = json.loads(done.stdout.splitlines()[-1])
    return {**found["facts"], "date": now(), **count(found["text"])}


def count(text: str) -> dict[str, Any]:
    """Counts kernels and bytes of a step, all and by group; `text` is its optimised HLO."""
    cost = measure_cost(text)
    groups = {name: {"kernels": 0, "hbm_bytes": 0} for name in GROUPS}
    for work in cost.each:
        group = groups[find_group(work)]
        group["kernels"] += work.count
        group["hbm_bytes"] += work.hbm_bytes
    kernels = sum(group["kernels"] for group in groups.values())
    return {"hbm_bytes": cost.hbm_bytes, "kernels": kernels, "groups": groups}


def find_group(work: Work) -> str:
    """Returns the group of a kernel."""
    by_kind = {"matrix products": PRODUCTS, "cuDNN": ATTENTION, "scatters": OTHER}
    if work.kind in by_kind:
        return by_kind[work.kind]
    config = base.get_config()
    arrays = [array for one in (work.instruction, *work.operands) for array in one.arrays]
    sizes = {array.num_elements for array in arrays}
    widths = {
        config.tokenizer.vocab_size: LOSS,
        config.model.d_ff: FEED_FORWARD,
        config.model.d_model: NORMS,
    }
    for width, group in widths.items():
        if POSITIONS * width in sizes:
            return group
    # JAX names what it differentiates jvp(...).
    name = work.instruction.attribute(r'op_name="([^"]*)"') or "jvp"
    return OTHER if "jvp" in name else OPTIMIZER


def describe(found: dict[str, Any]) -> str:
    """Returns a table of the groups, before and after."""
    steps = found["before"], found["after"]
    lines = []
    for name in GROUPS:
        groups = [step["groups"][name] for step in steps]
        gigabytes = [f"{group['hbm_bytes'] / 1e9:.1f}" for group in groups]
        lines.append([name, *gigabytes, *(f"{group['kernels']:,}" for group in groups)])
    totals = [f"{step['hbm_bytes'] / 1e9:.1f}" for step in steps]
    lines.append(["all", *totals, *(f"{step['kernels']:,}" for step in steps)])
    header = ["", "GB before", "GB after", "kernels before", "kernels after"]
    return format_table(lines, header, align="lrrrr")


def draw(found: dict[str, Any], path: Path) -> None:
    """Draws the bytes of each group, before and after."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for place, (name, colour) in enumerate({"before": "silver", "after": "tab:blue"}.items()):
        step = found[name]
        values = [step["groups"][group]["hbm_bytes"] / 1e9 for group in GROUPS]
        rows = [row + 0.36 * place - 0.18 for row in range(len(GROUPS))]
        label = f"{name} ({step['revision'][:7]}): {step['hbm_bytes'] / 1e9:.1f} GB"
        bars = axes.barh(rows, values, height=0.36, color=colour, label=label)
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=7)
    axes.set_yticks(range(len(GROUPS)), GROUPS, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("GB that kernels move in a step of base, by the compiler; not run", fontsize=8)
    axes.legend(fontsize=8)
    write_figure(figure, path)


def main() -> None:
    """Reads the flags, compiles and draws."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="checkout of an earlier revision")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="raw file")
    parser.add_argument("--figure", type=Path, default=FIGURE, help="figure: .svg, .png or .pdf")
    flags = parser.parse_args()
    if flags.before:
        before = compile_in(flags.before)
    elif flags.output.exists():
        before = json.loads(flags.output.read_text("utf-8"))["before"]
    else:
        parser.error(f"{flags.output} does not exist; give --before=CHECKOUT")
    about = "A step of base on one H100, 32,768 positions a side, compiled without a GPU; not run."
    found = {"about": about, "before": before, "after": compile_in(ROOT)}
    write(flags.output, found)
    draw(found, flags.figure)
    print(describe(found))


if __name__ == "__main__":
    main()
