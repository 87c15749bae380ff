"""Formats plans as text and as JSON."""

import dataclasses
import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from t2t.planning.chips import Chip
from t2t.planning.planner import MeshPlan, ShapePlan, describe_mesh, rank_plans
from t2t.planning.roofline import CYCLES_ERROR, Estimate
from t2t.planning.topology import Topology
from t2t.runtime.text_tables import format_table

_Figures = tuple[str, str, str]  # name, value, note

_NOTES = {
    "optimizer": "moments, counters, random key",
    "activations": "and gradients, and other temporaries of a step",
    "other": "metrics, padding to whole tiles",
    "compute": "FLOPs / peak",
    "memory": "HBM traffic / bandwidth",
    "network": "bytes sent / bandwidth of the mesh axis' links",
}


def to_json(plan: MeshPlan, topology: Topology) -> dict[str, Any]:
    """All figures of a plan; those of a step are per device, for the heaviest batch shape."""
    return {
        "topology": topology.name,
        "devices": len(topology.devices),
        "mesh": plan.mesh,
        **_flatten(plan.heaviest),
        "fits": plan.fits,
        "recipe": None if plan.training is None else dataclasses.asdict(plan.training),
        "shapes": [dataclasses.asdict(shape) for shape in plan.shapes],
        "compiled_shapes": [_flatten(one) for one in plan.compiled],
        "chip": {**dataclasses.asdict(topology.chip), "clock": topology.chip.clock},
        "versions": _list_versions(),
    }


def to_search_json(
    plans: Sequence[MeshPlan], refused: Mapping[str, str], topology: Topology
) -> dict[str, Any]:
    """The figures of the first plan, then of all plans in order, and the refused meshes."""
    entries = [
        {
            "mesh": plan.mesh,
            "rank": rank,
            **_flatten(plan.heaviest),
            "recipe": to_json(plan, topology)["recipe"],
        }
        for plan, rank in zip(plans, rank_plans(plans), strict=True)
    ]
    return {**to_json(plans[0], topology), "search": entries, "refused": dict(refused)}


def _flatten(one: ShapePlan) -> dict[str, Any]:
    """Merges the fields of the estimate into those of the plan; None if there is no estimate."""
    figures = dataclasses.asdict(one)
    names = [field.name for field in dataclasses.fields(Estimate)]
    return figures | (figures.pop("estimate") or dict.fromkeys(names))


def describe_search(plans: Sequence[MeshPlan]) -> str:
    """Formats a table of meshes, the fastest first; ranks are equal within the error."""
    header = "rank data fsdp tensor memory sent estimate range tokens/s".split()
    rows = [
        [rank or "-", *(plan.mesh[axis] for axis in header[1:4]), *_list_figures(plan)]
        for plan, rank in zip(plans, rank_plans(plans), strict=True)
    ]
    return "\n".join(
        [
            format_table(rows, header, align="r" * len(header)),
            "Meshes of equal rank cannot be told apart: their ranges overlap. A range covers "
            "asynchronous",
            f"collectives hidden or not, and an error of {CYCLES_ERROR:.0%} in the cycles, which "
            "no run on a TPU has tested.",
        ]
    )


def _list_figures(plan: MeshPlan) -> list[str]:
    one, own = plan.heaviest, plan.heaviest.estimate
    memory = _bytes(one.memory_bytes)
    if plan.training is None or own is None:
        return [memory, "does not fit"]
    sent = sum(kind["sent_bytes"] for kind in own.collectives.values())
    rate = f"{plan.training.tokens_per_second:,.0f}"
    return [memory, _bytes(sent), _time(own.step_seconds_estimate), _range(own), rate]


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
    verdict = "fits" if one.fits else "DOES NOT FIT"
    memory = f"of {_bytes(topology.chip.memory_bytes)}: {verdict}"
    rows: list[_Figures] = [("memory", _bytes(one.memory_bytes), memory)]
    own = one.estimate
    if own:
        rows += [
            (f"  {name}", _bytes(size), _NOTES.get(name, ""))
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


def _describe_work(one: ShapePlan, own: Estimate) -> list[_Figures]:
    waste = 1 - one.model_flops / own.flops
    rows = [
        ("FLOPs", f"{own.flops:.4g}", "all positions, by the closed form"),
        ("  model", f"{one.model_flops:.4g}", f"without padding, which is {waste:.1%}"),
    ]
    if own.compiled_flops:
        note = f"{own.compiled_flops / own.flops:.3f} times that, all operations counted"
        rows.append(("  compiler", f"{own.compiled_flops:.4g}", note))
    rows.append(("HBM traffic", _bytes(own.hbm_bytes), ""))
    for kind, sums in own.collectives.items():
        note = f"sent by {sums['count']:,} operations on {_bytes(sums['bytes'])}"
        if hidden := sums["overlapped_seconds"]:
            note += f"; {hidden / sums['seconds']:.0%} of the time overlaps computation"
        rows.append((kind, _bytes(sums["sent_bytes"]), note))
    return rows


def _describe_time(one: ShapePlan, own: Estimate, chip: Chip) -> list[_Figures]:
    limit = max(own.seconds, key=own.seconds.__getitem__)
    how = "compute, memory and network one after the other"
    if own.estimated_cycles is not None:
        how = f"{own.estimated_cycles:,} cycles at {chip.clock / 1e9:.2f} GHz, then the network"
    share = one.model_flops / own.step_seconds_estimate / chip.flops
    return [
        *((f"  {name}", _time(took), _NOTES[name]) for name, took in own.seconds.items()),
        ("lower bound", _time(own.step_seconds_lower_bound), f"{limit} time, if all three overlap"),
        ("estimate", _time(own.step_seconds_estimate), how),
        ("  range", _range(own), "by the assumed error"),
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
            "training.accumulation_steps to split the activations; --search tries all meshes."
        ]
    rows = [
        [
            "tokens per second",
            f"{training.tokens_per_second:,.0f}",
            "target tokens, without padding",
        ],
        ["hours", f"{training.hours:,.2f}"],
        ["accelerator-hours", f"{training.accelerator_hours:,.1f}"],
    ]
    lines = [
        f"the recipe: {training.steps:,} steps of {training.tokens_per_step:,.0f} target tokens on "
        "average",
        format_table(rows, align="lr"),
    ]
    if others := len(plan.shapes) - len(plan.compiled):
        lines.append(
            f"  (time of {others} lighter shapes scaled by FLOPs; --all_shapes compiles them)"
        )
    return lines


def _bytes(count: float | None) -> str:
    if count is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"


def _range(own: Estimate) -> str:
    low, high = own.step_seconds_range
    return f"{1000 * low:.3g}-{1000 * high:.3g} ms"


def _list_versions() -> dict[str, str]:
    """Returns the versions of the packages that determine the figures."""
    packages = [name for name in ("jax", "jaxlib", "libtpu") if importlib.util.find_spec(name)]
    return {name: importlib.metadata.version(name) for name in packages}
