"""Formats plans as text and as JSON."""

import dataclasses
import importlib.metadata
from typing import Any

from t2t.planning.chips import Chip, Gpu, Tpu
from t2t.planning.planner import (
    MeshPlan,
    ShapePlan,
    TrainingEstimate,
    TrainingTime,
    describe_mesh,
)
from t2t.planning.roofline import Estimate
from t2t.planning.topology import Topology
from t2t.runtime.text_tables import format_table
from t2t.runtime.units import show_bytes

_Figures = tuple[str, str, str]  # name, value, note

_NOTES = {
    "optimizer": "moments, moving average, counters, random key",
    "activations": "and gradients, and other temporaries of a step",
    "other": "metrics, padding to whole tiles",
    "compute": "FLOPs / peak",
    "memory": "HBM traffic / bandwidth",
    "network": "bytes sent / bandwidth of the mesh axis' links",
    "slices": "bytes sent between slices / a chip's share of its host's network",
}
_GPU_NOTES = _NOTES | {
    "NVLink": "bytes sent inside hosts / bandwidth of NVLink",
    "network": "bytes sent in rings that cross hosts / bandwidth of their network cards",
}


def to_json(plan: MeshPlan, topology: Topology) -> dict[str, Any]:
    """All figures of a plan; those of a step are per device, for the heaviest batch shape."""
    return {
        "topology": topology.name,
        "devices": len(topology.devices),
        "mesh": plan.mesh,
        **flatten_shape(plan.heaviest),
        "fits": plan.fits,
        "recipe": flatten_training(plan.training),
        "shapes": [dataclasses.asdict(shape) for shape in plan.shapes],
        "compiled_shapes": [flatten_shape(one) for one in plan.compiled],
        "chip": _flatten_chip(topology.chip),
        "versions": _list_versions(),
    }


def flatten_shape(one: ShapePlan) -> dict[str, Any]:
    """Merges the fields of the estimate into those of the plan; None if there is no estimate."""
    figures = dataclasses.asdict(one)
    names = [field.name for field in dataclasses.fields(Estimate)]
    return figures | (figures.pop("estimate") or dict.fromkeys(names))


def flatten_training(training: TrainingEstimate | None) -> dict[str, Any] | None:
    """Merges the fields of the time into the others; they are None if there is no estimate."""
    if training is None:
        return None
    figures = dataclasses.asdict(training)
    names = [field.name for field in dataclasses.fields(TrainingTime)]
    return figures | (figures.pop("time") or dict.fromkeys(names))


def _flatten_chip(chip: Chip) -> dict[str, Any]:
    return dataclasses.asdict(chip) | ({"clock": chip.clock} if isinstance(chip, Tpu) else {})


def describe(plan: MeshPlan, topology: Topology) -> str:
    """Formats everything about the plan of one mesh."""
    one, shape = plan.heaviest, plan.heaviest.shape
    versions = ", ".join(f"{name} {version}" for name, version in _list_versions().items())
    lines = [
        f"{topology.name}: {len(topology.devices)} devices, mesh {describe_mesh(plan.mesh)}; "
        + versions,
        f"heaviest of {len(plan.shapes)} batch shapes, {shape.share:.1%} of the steps: "
        f"{shape.rows} rows of {shape.src_length} source and {shape.tgt_length} target positions",
    ]
    if empty := shape.rows - shape.filled_rows:
        lines.append(
            f"  {empty} of the rows are empty, so that all devices have equally many; raise "
            "data.batch_tokens, or lower mesh.data or mesh.fsdp, to fill them"
        )
    rows: list[_Figures] = [("memory", show_bytes(one.memory_bytes), _judge(one, topology.chip))]
    own = one.estimate
    if own:
        rows += [
            (f"  {name}", show_bytes(size), _NOTES.get(name, ""))
            for name, size in dataclasses.asdict(own.memory).items()
        ]
        rows += _describe_work(one, own)
    lines += ["", "per device and step", format_table(rows, align="lr")]
    if own:
        times = _describe_time(one, own, topology.chip)
        lines += ["", "time of a step", format_table(times, align="lr")]
        lines += ["", *_describe_operations(own)]
        if own.remarks:
            lines += ["", "NOT COUNTED, or not exactly", *(f"  {text}" for text in own.remarks)]
    return "\n".join([*lines, "", *_describe_recipe(plan)])


def _judge(one: ShapePlan, chip: Chip) -> str:
    """Says whether the memory suffices."""
    verdict = "fits" if one.fits else "DOES NOT FIT"
    whose = " that JAX takes of the GPU when it starts" if isinstance(chip, Gpu) else ""
    return f"of {show_bytes(chip.memory_bytes)}{whose}: {verdict}"


def _describe_work(one: ShapePlan, own: Estimate) -> list[_Figures]:
    waste = 1 - one.model_flops / own.flops
    rows = [
        ("FLOPs", f"{own.flops:.4g}", "all positions, by the closed form"),
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
        if hidden := sums["overlapped_seconds"]:
            note += f"; {hidden / sums['seconds']:.0%} of the time overlaps computation"
        rows.append((kind, show_bytes(sums["sent_bytes"]), note))
    return rows


def _describe_time(one: ShapePlan, own: Estimate, chip: Chip) -> list[_Figures]:
    limit = max(own.seconds, key=own.seconds.__getitem__)
    notes = _GPU_NOTES if isinstance(chip, Gpu) else _NOTES
    count = {3: "three", 4: "four"}[len(own.seconds)]
    bound = own.step_seconds_lower_bound
    return [
        *((f"  {name}", show_time(took), notes[name]) for name, took in own.seconds.items()),
        ("lower bound", show_time(bound), f"{limit} time, if all {count} overlap"),
        *_describe_estimate(one, own, chip),
    ]


def _describe_estimate(one: ShapePlan, own: Estimate, chip: Chip) -> list[_Figures]:
    if own.step_seconds_estimate is None or own.step_seconds_range is None:
        return [("estimate", "none", "the compiler states no times")]
    how = "compute, memory and network one after the other"
    if own.estimated_cycles is not None and isinstance(chip, Tpu):
        how = f"{own.estimated_cycles:,} cycles at {chip.clock / 1e9:.2f} GHz, then the network"
    share = one.model_flops / own.step_seconds_estimate / chip.flops
    return [
        ("estimate", show_time(own.step_seconds_estimate), how),
        ("  range", show_range(own.step_seconds_range), "by the assumed error"),
        ("  of the peak", f"{share:.1%}", "FLOPs without padding / estimate"),
    ]


def _describe_operations(own: Estimate) -> list[str]:
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
    training = plan.training
    if training is None:
        return [
            "The recipe does not fit: raise mesh.fsdp to split the parameters, or "
            "training.accumulation_steps to split the activations; --search tries other meshes."
        ]
    lines = [
        f"the recipe: {training.steps:,} steps of {training.tokens_per_step:,.0f} target tokens on "
        "average",
    ]
    if training.time is None:
        return lines
    lines.append(format_table(_describe_training_time(training.time), align="lr"))
    if others := len(plan.shapes) - len(plan.compiled):
        lines.append(
            f"  (time of {others} lighter shapes scaled by FLOPs; --all_shapes compiles them)"
        )
    return lines


def _describe_training_time(time: TrainingTime) -> list[list[str]]:
    rate = f"{time.tokens_per_second:,.0f}"
    return [
        ["tokens per second", rate, "target tokens, without padding"],
        ["hours", f"{time.hours:,.2f}"],
        ["accelerator-hours", f"{time.accelerator_hours:,.1f}"],
    ]


def show_time(seconds: float) -> str:
    """Formats a time in milliseconds."""
    return f"{1000 * seconds:.4g} ms"


def show_range(seconds: tuple[float, float]) -> str:
    """Formats a range of times in milliseconds."""
    low, high = seconds
    return f"{1000 * low:.3g}-{1000 * high:.3g} ms"


def _list_versions() -> dict[str, str]:
    """Returns the versions of the packages that determine the figures."""
    packages = ("jax", "jaxlib", "libtpu", "jax-cuda12-pjrt")
    installed = {one.name for one in importlib.metadata.distributions()}
    return {name: importlib.metadata.version(name) for name in packages if name in installed}
