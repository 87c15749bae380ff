"""The work of a compiled step and the least time that a device needs for it: the roofline.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t2t.planning.chips import Chip, Gpu, Tpu
from t2t.planning.compile_step import CompiledStep, DeviceMemory
from t2t.planning.hlo_parser import Groups
from t2t.planning.hlo_traffic import Collective, Cost, measure_cost

# What no plan for a GPU can know.
GPU_REMARKS = (
    "NVIDIA's compiler states no time of a kernel",
    "XLA chooses between its kernels, cuBLAS and cuDNN by trying them on the GPU; without one it "
    "takes its own default, and other kernels move other bytes and need other memory: 8% to 22% "
    "more on an H100 (docs/gpu.md)",
    "what a kernel finds in the L2 cache counts as HBM traffic: where arrays fit into the cache, "
    "the memory time is no bound",
)


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The work and the lower bound of a compiled step; all figures are per device and step."""

    memory: DeviceMemory
    flops: float  # of all products, by the closed form, padding counted as tokens
    compiled_flops: float | None  # XLA's count: all operations, loop bodies once
    hbm_bytes: int  # traffic between HBM and chip
    # Kernels that a GPU starts, by kind: count and hbm_bytes; None: not a GPU.
    kernels: dict[str, dict[str, int]] | None
    estimated_cycles: int | None  # as the TPU compiler states them; None: no such compiler
    collectives: dict[str, dict[str, Any]]  # as `sum_collectives`
    seconds: dict[str, float]  # compute, memory, and each link
    step_seconds_lower_bound: float  # the largest of them, as if all overlapped
    bound_by: str  # its name
    top_operations: list[dict[str, Any]]
    remarks: list[str]  # what is not counted exactly


def compute_roofline(program: CompiledStep, chip: Chip, flops: float) -> Roofline:
    """Computes the roofline of a step whose products have so many FLOPs per device."""
    cost = measure_cost(program.text)
    sums = sum_collectives(cost.collectives, program, chip)
    seconds = {"compute": flops / chip.flops, "memory": cost.hbm_bytes / chip.memory_bandwidth}
    seconds |= {"NVLink": 0.0, "network": 0.0} if isinstance(chip, Gpu) else {"network": 0.0}
    for own in sums.values():
        seconds[own["link"]] = seconds.get(own["link"], 0.0) + own["seconds"]
    bound_by = max(seconds, key=seconds.__getitem__)
    return Roofline(
        memory=program.memory,
        flops=flops,
        compiled_flops=program.flops,
        hbm_bytes=cost.hbm_bytes,
        kernels=cost.list_kernels() if isinstance(chip, Gpu) else None,
        estimated_cycles=cost.cycles,
        collectives=sums,
        seconds=seconds,
        step_seconds_lower_bound=seconds[bound_by],
        bound_by=bound_by,
        top_operations=_find_heaviest(cost),
        remarks=_remark(cost, chip, flops, program.flops),
    )


def sum_collectives(
    collectives: Sequence[Collective], program: CompiledStep, chip: Chip
) -> dict[str, dict[str, Any]]:
    """Sums collectives by kind, axes of the mesh and link; the most bytes sent come first.

    Returns "kind (axes, link)" -> link, count (executions), bytes (of the arrays), sent_bytes and
    seconds.
    """
    sums: dict[str, dict[str, Any]] = {}
    for one in collectives:
        axes = "data" if one.between_slices else find_axes(one.groups, program.axes)
        link, bandwidth = find_link(one, program.hosts, chip)
        own = sums.setdefault(
            f"{one.kind} ({axes}, {link})",
            {"link": link, "count": 0, "bytes": 0, "sent_bytes": 0, "seconds": 0.0},
        )
        own["count"] += one.times
        own["bytes"] += one.times * one.num_bytes
        own["sent_bytes"] += one.times * one.sent_bytes
        own["seconds"] += one.times * one.sent_bytes / bandwidth
    return dict(sorted(sums.items(), key=lambda item: -item[1]["sent_bytes"]))


def find_axes(groups: Groups, sizes: Mapping[str, int]) -> str:
    """Names the mesh axes along which the members of a group differ, such as "data+fsdp"."""
    places = np.stack(np.unravel_index(np.array(groups), tuple(sizes.values())))
    differ = (places != places[..., :1]).any(axis=(1, 2))
    return "+".join(name for name, own in zip(sizes, differ, strict=True) if own)


def find_link(one: Collective, hosts: Sequence[int], chip: Chip) -> tuple[str, float]:
    """Returns the slowest link that a collective takes, and the bytes per second of each member.

    A TPU's network is taken as if each collective had all links of the chip. A GPU has all of
    NVLink inside its host. A group with k members on each host forms k rings through all of them,
    and each ring leaves a host by another network card, as far as NVLink can feed them.
    """
    match chip:
        case Tpu() if one.between_slices:
            assert chip.slice_bandwidth  # open_topology refuses several slices without it
            return "slices", chip.slice_bandwidth
        case Gpu():
            counts = [collections.Counter(hosts[i] for i in group) for group in one.groups]
            cards = [min(count.values()) for count in counts if len(count) > 1]
            if not cards:
                return "NVLink", chip.network_bandwidth
            return "network", min(chip.network_bandwidth, min(cards) * chip.host_bandwidth)
        case _:
            return "network", chip.network_bandwidth


def _find_heaviest(cost: Cost) -> list[dict[str, Any]]:
    """Returns the 12 operations with most cycles, or most bytes if there are no cycles."""
    key = "hbm_bytes" if cost.cycles is None else "cycles"
    heaviest = sorted(cost.operations.items(), key=lambda item: -getattr(item[1], key))
    return [
        {"name": name, "executions": own.count, "hbm_bytes": own.hbm_bytes}
        | ({} if cost.cycles is None else {"cycles": own.cycles})
        for name, own in heaviest[:12]
    ]


def _remark(cost: Cost, chip: Chip, flops: float, compiled_flops: float | None) -> list[str]:
    remarks = sorted(cost.remarks)
    if isinstance(chip, Gpu):
        remarks += GPU_REMARKS
    if cost.cycles is not None:
        remarks.append(
            "the compiler states no cycles of collectives, asynchronous copies and some others"
        )
        if cost.uncounted_flops:
            remarks.append(
                f"nor of custom kernels such as attention's: {cost.uncounted_flops:.3g} FLOPs"
            )
    if compiled_flops and not 0.9 < compiled_flops / flops < 1.1:
        remarks.append(
            f"the compiler counts {compiled_flops / flops:.2f} times the closed form's FLOPs: "
            "more if something is computed twice, less if a loop runs more than once"
        )
    return remarks
