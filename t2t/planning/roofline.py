"""Estimates the time of a compiled step on a chip: roofline and the compiler's cycles."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from t2t.planning.chips import Chip, Gpu, Tpu
from t2t.planning.compile_step import CompiledStep, DeviceMemory
from t2t.planning.hlo_collectives import Collective
from t2t.planning.hlo_traffic import Cost, Rules, measure_cost
from t2t.planning.interconnect import SLICES, find_link

# What no plan for a GPU can know.
GPU_REMARKS = (
    "no time of a step: NVIDIA's compiler states none",
    "XLA chooses between its kernels, cuBLAS and cuDNN by trying them on the GPU; without one it "
    "takes its own default, and other kernels move other bytes",
    "what a kernel finds in the L2 cache counts as HBM traffic: where arrays fit into the cache, "
    "the memory time is no bound",
)

# Relative error of the cycles: an assumption, since no plan was compared with a run on a TPU.
# libtpu 0.0.42 and 0.0.48 differ by 3% in the cycles of a step of configs/base.py, and by the
# compiler's schedule kernels reach 0.35 to 0.49 of the peak (benchmarks/tpu_attention.py) where
# `Chip.fill` says 0.5.
CYCLES_ERROR = 0.1


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The cost of a compiled step; all figures are per device and step."""

    memory: DeviceMemory
    flops: float  # of all products, by the closed form, padding counted as tokens
    compiled_flops: float | None  # XLA's count: all operations, loop bodies once
    hbm_bytes: int  # traffic between HBM and chip
    # Kernels that a GPU starts, by kind: count and hbm_bytes; None: not a GPU.
    kernels: dict[str, dict[str, int]] | None
    estimated_cycles: int | None  # by the compiler, without collectives; None: no estimate
    collectives: dict[str, dict[str, float]]  # as `sum_collectives`
    seconds: dict[str, float]  # roofline times: compute, memory, each link that is taken
    step_seconds_lower_bound: float
    step_seconds_estimate: float | None  # None: the compiler says too little for an estimate
    step_seconds_range: tuple[float, float] | None
    top_operations: list[dict[str, Any]]
    remarks: list[str]  # what is not counted exactly


class StepTime(NamedTuple):
    """Seconds of a step: the estimate and its range."""

    estimate: float
    range: tuple[float, float]


def estimate(
    program: CompiledStep, chip: Chip, flops: float, head_widths: Sequence[int]
) -> Estimate:
    """Estimates the time of a compiled step.

    Lower bound: the maximum of FLOPs / peak, HBM bytes / bandwidth and the time of each kind of
    link, as if all of them overlapped.

    Args:
        program: The compiled step.
        chip: The kind of device.
        flops: FLOPs of the step's products per device.
        head_widths: (d_k, d_v), which limit the share of the peak that attention kernels reach.
    """
    cost = measure_cost(program.text, find_rules(chip, head_widths))
    collectives, links = sum_collectives(cost.collectives, program, chip)
    seconds = {
        "compute": flops / chip.flops,
        "memory": cost.hbm_bytes / chip.memory_bandwidth,
        **links,
    }
    hidden = sum(kind["overlapped_seconds"] for kind in collectives.values())
    bound = max(seconds.values())
    time = _estimate_time(cost, chip, seconds, hidden)
    return Estimate(
        memory=program.memory,
        flops=flops,
        compiled_flops=program.flops,
        hbm_bytes=cost.hbm_bytes,
        kernels=list_kernels(cost) if isinstance(chip, Gpu) else None,
        estimated_cycles=cost.cycles,
        collectives=collectives,
        seconds=seconds,
        step_seconds_lower_bound=bound,
        step_seconds_estimate=time and time.estimate,
        step_seconds_range=time and time.range,
        top_operations=_find_heaviest(cost),
        remarks=_remark(cost, chip, head_widths, flops, program.flops),
    )


def list_kernels(cost: Cost) -> dict[str, dict[str, int]]:
    """Returns kind of kernel -> its count and HBM bytes; the kind with most bytes comes first."""
    kinds = sorted(cost.kernels.items(), key=lambda item: -item[1].hbm_bytes)
    return {name: dataclasses.asdict(kernels) for name, kernels in kinds if kernels.count}


def find_rules(chip: Chip, head_widths: Sequence[int]) -> Rules:
    """Returns how programs for this chip are counted; `head_widths` as in `estimate`."""
    match chip:
        case Tpu():
            speed = chip.fill(head_widths) * chip.flops_per_cycle
            return Rules(speed, chip.memory_bandwidth / chip.clock)
        case Gpu():
            return Rules(through_bitcasts=True)
        case _:
            return Rules()


def _estimate_time(
    cost: Cost, chip: Chip, seconds: Mapping[str, float], hidden: float
) -> StepTime | None:
    """Estimates the time of a step, at least the lower bound.

    TPU: the compiler's cycles / clock plus network time, as if no communication overlapped. Without
    cycles: the sum of the roofline's times. GPU: None, since its compiler states no time. Range: at
    the lower end asynchronous collectives, which take `hidden` seconds, overlap fully; both ends
    include the error of the cycles.
    """
    match chip:
        case Gpu():
            return None
        case Tpu() if cost.cycles is not None:
            serial = cost.cycles / chip.clock + seconds["network"] + seconds.get(SLICES, 0.0)
        case _:
            serial = sum(seconds.values())
    bound = max(seconds.values())
    low, high = (1 - CYCLES_ERROR) * (serial - hidden), (1 + CYCLES_ERROR) * serial
    return StepTime(max(bound, serial), (max(bound, low), max(bound, high)))


def sum_collectives(
    collectives: Sequence[Collective], program: CompiledStep, chip: Chip
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Sums collectives: executions, bytes of the arrays, bytes sent, and seconds.

    Returns the sums by kind, or by kind and link where there are several kinds of links, and the
    seconds of each link.
    """
    sums: dict[tuple[str, str], dict[str, float]] = {}
    for one in collectives:
        if len(one.members) == 1:
            continue
        sent = one.times * one.sent_bytes
        link = find_link(one, program.coordinates, chip)
        seconds = sent / link.bandwidth
        own = {
            "count": one.times,
            "bytes": one.times * one.num_bytes,
            "sent_bytes": sent,
            "seconds": seconds,
            "overlapped_seconds": one.overlaps * seconds,
        }
        name = one.kind, link.name
        before = sums.get(name, dict.fromkeys(own, 0))
        sums[name] = {key: before[key] + value for key, value in own.items()}
    largest = sorted(sums.items(), key=lambda item: -item[1]["sent_bytes"])
    links = {
        link: sum(own["seconds"] for (_, taken), own in largest if taken == link)
        for link in (*chip.links, *sorted({taken for _, taken in sums} - set(chip.links)))
    }
    only = len(links) == 1
    return {kind if only else f"{kind} ({link})": own for (kind, link), own in largest}, links


def _find_heaviest(cost: Cost, count: int = 12) -> list[dict[str, Any]]:
    """Returns the `count` operations with most cycles, or most bytes if there are no cycles."""
    key, unknown = ("hbm_bytes", {"cycles"}) if cost.cycles is None else ("cycles", set())
    heaviest = sorted(cost.operations.values(), key=lambda own: getattr(own, key), reverse=True)
    return [
        {name: value for name, value in dataclasses.asdict(own).items() if name not in unknown}
        for own in heaviest[:count]
    ]


def _remark(
    cost: Cost, chip: Chip, head_widths: Sequence[int], flops: float, compiled_flops: float | None
) -> list[str]:
    remarks = sorted(cost.remarks)
    if isinstance(chip, Gpu):
        remarks += GPU_REMARKS
    elif cost.cycles is None:
        remarks.append(
            "no cycles from the compiler: the estimate is the sum of the roofline's times"
        )
    elif cost.kernel_cycles and isinstance(chip, Tpu):
        share, fill = cost.kernel_cycles / cost.cycles, chip.fill(head_widths)
        remarks.append(
            f"kernels, {share:.1%} of the cycles, have no estimate by the compiler: they are "
            f"assumed to reach {fill:.0%} of the chip's peak, the share of a matrix unit that the "
            "heads fill"
        )
    if cost.cycles and cost.unestimated:
        names = sorted(cost.unestimated, key=lambda name: -cost.unestimated[name])
        share = sum(cost.unestimated.values()) / cost.cycles
        remarks.append(
            f"{len(names)} operations without an estimate by the compiler are assumed to take the "
            f"time of their HBM traffic, {share:.1%} of the cycles: {', '.join(names[:4])}"
        )
    if compiled_flops and not 0.9 < compiled_flops / flops < 1.1:
        remarks.append(
            f"the compiler counts {compiled_flops / flops:.2f} times the closed form's FLOPs: "
            "more if something is computed twice, less if a loop runs more than once"
        )
    return remarks
