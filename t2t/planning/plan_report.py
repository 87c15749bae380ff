"""Formats plans as text and as JSON."""

import dataclasses
import importlib.metadata
from collections.abc import Sequence
from typing import Any

from t2t.planning.chips import Gpu, Tpu
from t2t.planning.planner import MeshPlan, ShapePlan, describe_mesh
from t2t.planning.roofline import Roofline
from t2t.planning.topology import Topology
from t2t.runtime.text_tables import format_table, show_bytes

_NOTES = {
    "optimizer": "moments, moving average, counters, random key",
    "activations": "and gradients, and other temporaries of a step",
    "other": "metrics, padding to whole tiles",
    "compute": "FLOPs / peak",
    "memory": "HBM traffic / bandwidth",
    "NVLink": "bytes sent inside hosts / bandwidth of NVLink",
    "network": "bytes sent / bandwidth of the links, on GPUs between hosts",
    "slices": "bytes sent between slices / a chip's share of its host's network",
}


def to_json(plan: MeshPlan, topology: Topology) -> dict[str, Any]:
    """All figures of a plan; figures of a step are per device, for the heaviest batch shape."""
    chip = topology.chip
    return {
        "topology": topology.name,
        "devices": len(topology.devices),
        "mesh": plan.mesh,
        "tasks": plan.tasks,
        **_flatten(plan.heaviest),
        "fits": plan.fits,
        "recipe": plan.recipe and dataclasses.asdict(plan.recipe),
        "shapes": [dataclasses.asdict(shape) for shape in plan.shapes],
        "compiled_shapes": [_flatten(one) for one in plan.compiled],
        "chip": dataclasses.asdict(chip) | ({"clock": chip.clock} if isinstance(chip, Tpu) else {}),
        "versions": _list_versions(),
    }


def _flatten(one: ShapePlan) -> dict[str, Any]:
    """Merges the fields of the roofline into the plan's; None if there is no roofline."""
    figures = dataclasses.asdict(one)
    names = [field.name for field in dataclasses.fields(Roofline)]
    return figures | (figures.pop("roofline") or dict.fromkeys(names))


def describe(plan: MeshPlan, topology: Topology) -> str:
    """Formats everything about the plan of one mesh."""
    one, shape, own = plan.heaviest, plan.heaviest.shape, plan.heaviest.roofline
    versions = ", ".join(f"{name} {version}" for name, version in _list_versions().items())
    lines = [
        f"{topology.name}: {len(topology.devices)} devices, mesh {describe_mesh(plan.mesh)}; "
        + versions,
        f"heaviest of {len(plan.shapes)} batch shapes, {shape.share:.1%} of the steps: "
        f"{shape.rows} rows of {shape.src_length} source and {shape.tgt_length} target positions",
    ]
    if len(plan.tasks) > 1:
        shares = ", ".join(f"{task} {share:.1%}" for task, share in plan.tasks.items())
        lines.append(
            f"  examples of tasks: {shares}, as if all corpora were equally large and all texts "
            "equally long"
        )
    if empty := shape.rows - shape.filled_rows:
        lines.append(
            f"  {empty} of the rows are empty, so that all devices have equally many; raise "
            "data.batch_tokens, or lower mesh.data or mesh.fsdp, to fill them"
        )
    chip = topology.chip
    whose = " that JAX takes of the GPU when it starts" if isinstance(chip, Gpu) else ""
    verdict = f"of {show_bytes(chip.memory_bytes)}{whose}: " + _judge(one)
    rows = [("memory", show_bytes(one.memory_bytes), verdict)]
    if own:
        parts = dataclasses.asdict(own.memory).items()
        rows += [(f"  {name}", show_bytes(size), _NOTES.get(name, "")) for name, size in parts]
        rows += _describe_work(one, own)
    lines += ["", "per device and step", format_table(rows, align="lr")]
    if own:
        times = [(f"  {name}", show_time(took), _NOTES[name]) for name, took in own.seconds.items()]
        bound = show_time(own.step_seconds_lower_bound)
        times.append(("lower bound", bound, f"{own.bound_by} time, as if all overlapped"))
        if own.estimated_cycles is not None and isinstance(chip, Tpu):
            took = show_time(own.estimated_cycles / chip.clock)
            note = f"{own.estimated_cycles:,} at {chip.clock / 1e9:.2f} GHz, one after the other"
            times.append(("compiler's cycles", took, note))
        lines += ["", "time of a step", format_table(times, align="lr")]
        lines += ["", *_describe_operations(own)]
        if own.remarks:
            lines += ["", "NOT COUNTED, or not exactly", *(f"  {text}" for text in own.remarks)]
    return "\n".join([*lines, "", *_describe_recipe(plan)])


def describe_meshes(plans: Sequence[MeshPlan]) -> str:
    """Formats a table of meshes in the order of `search_meshes`."""
    header = ["data", "fsdp", "tensor", "memory", "sent", "lower bound", "bound by", "hours"]
    rows = []
    for plan in plans:
        one, own = plan.heaviest, plan.heaviest.roofline
        figures = [_judge(one)]
        if plan.recipe and own:
            sent = sum(sums["sent_bytes"] for sums in own.collectives.values())
            bound = show_time(own.step_seconds_lower_bound)
            hours = show_hours(plan.recipe.hours_lower_bound)
            figures = [show_bytes(sent), bound, own.bound_by, hours]
        rows.append([*plan.mesh.values(), show_bytes(one.memory_bytes), *figures])
    return format_table(rows, header, align="r" * len(header)) + (
        "\nSorted by the lower bound, then by the sum of the times of compute, memory and network. "
        "A step\ntakes longer than its bound, and how much longer differs between meshes."
    )


def show_time(seconds: float) -> str:
    """Formats a time in milliseconds."""
    return f"{1000 * seconds:.4g} ms"


def show_hours(hours: float) -> str:
    """Formats hours with three digits, or all before the point."""
    return f"{hours:.3g}" if hours < 1000 else f"{hours:,.0f}"


def _judge(one: ShapePlan) -> str:
    return "fits" if one.fits else "DOES NOT FIT"


def _describe_work(one: ShapePlan, own: Roofline) -> list[tuple[str, str, str]]:
    waste = 1 - one.model_flops / own.flops
    rows = [
        ("FLOPs", f"{own.flops:.4g}", "all positions, by the closed form, without the optimiser"),
        ("  model", f"{one.model_flops:.4g}", f"without padding, which is {waste:.1%}"),
    ]
    if own.compiled_flops:
        note = f"{own.compiled_flops / own.flops:.3f} times that, all operations counted"
        rows.append(("  compiler", f"{own.compiled_flops:.4g}", note))
    rows.append(("HBM traffic", show_bytes(own.hbm_bytes), ""))
    if own.kernels is not None:
        count = sum(kernels["count"] for kernels in own.kernels.values())
        rows.append(("kernels", f"{count:,}", "that start, copies and collectives too"))
        for kind, kernels in own.kernels.items():
            note = f"move {show_bytes(kernels['hbm_bytes'])}"
            rows.append((f"  {kind}", f"{kernels['count']:,}", note))
    for kind, sums in own.collectives.items():
        note = f"sent by {sums['count']:,} operations on {show_bytes(sums['bytes'])}"
        rows.append((kind, show_bytes(sums["sent_bytes"]), note))
    return rows


def _describe_operations(own: Roofline) -> list[str]:
    measure, total = "cycles", own.estimated_cycles
    if total is None:
        measure, total = "hbm_bytes", own.hbm_bytes
    rows = [
        [
            f"{operation[measure] / max(total, 1):.1%}",
            f"{operation['executions']:,} x",
            operation["name"].removeprefix("jit(train_step)/"),
        ]
        for operation in own.top_operations
    ]
    return [
        f"heaviest operations by {measure.replace('_', ' ')}",
        format_table(rows, align="rr"),
    ]


def _describe_recipe(plan: MeshPlan) -> list[str]:
    recipe = plan.recipe
    if recipe is None:
        return [
            "The recipe does not fit: raise mesh.fsdp to split the parameters, or "
            "training.accumulation_steps to split the activations; --search tries other meshes."
        ]
    lines = [
        f"the recipe: at least {show_hours(recipe.hours_lower_bound)} hours for {recipe.steps:,} "
        f"steps of {recipe.tokens_per_step:,.0f} target tokens on average, bound by "
        f"{recipe.bound_by}",
        f"  at least {show_hours(recipe.accelerator_hours_lower_bound)} accelerator-hours, at most "
        f"{recipe.tokens_per_second_upper_bound:,.0f} target tokens per second",
        "  training steps alone; real steps take longer",
    ]
    if others := len(plan.shapes) - len(plan.compiled):
        lines.append(
            f"  ({others} lighter shapes count with their FLOPs alone; --all_shapes compiles them)"
        )
    return lines


def _list_versions() -> dict[str, str]:
    """Returns the versions of the packages that determine the figures."""
    packages = ("jax", "jaxlib", "libtpu", "jax-cuda12-pjrt")
    installed = {one.name for one in importlib.metadata.distributions()}
    return {name: importlib.metadata.version(name) for name in packages if name in installed}
