"""Estimates the time of a compiled step on a chip: roofline and the compiler's cycles."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from t2t.planning.chips import Chip
from t2t.planning.compile_step import CompiledStep, DeviceMemory
from t2t.planning.hlo_collectives import Collective
from t2t.planning.hlo_traffic import Cost, measure_cost
from t2t.planning.interconnect import find_bandwidth

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
    estimated_cycles: int | None  # by the compiler, without collectives; None: no estimate
    collectives: dict[str, dict[str, float]]  # as `sum_collectives`
    seconds: dict[str, float]  # roofline times: compute, memory, network
    step_seconds_lower_bound: float
    step_seconds_estimate: float
    step_seconds_range: tuple[float, float]
    top_operations: list[dict[str, Any]]
    remarks: list[str]  # what is not counted exactly


def estimate(
    program: CompiledStep, chip: Chip, flops: float, head_widths: Sequence[int]
) -> Estimate:
    """Estimates the time of a compiled step.

    Lower bound: the maximum of FLOPs / peak, HBM bytes / bandwidth and network time, as if all
    three overlapped. Estimate: the compiler's cycles / clock plus network time, as if no
    communication overlapped; without cycles the sum of the three times; at least the lower bound.
    Range: at the lower end asynchronous collectives overlap fully; both ends include the error of
    the cycles.

    Args:
        program: The compiled step.
        chip: The kind of device.
        flops: FLOPs of the step's products per device.
        head_widths: (d_k, d_v), which limit the share of the peak that attention kernels reach.
    """
    kernels = chip.fill(head_widths) * chip.flops_per_cycle
    cost = measure_cost(program.text, kernels, chip.memory_bandwidth / chip.clock)
    collectives = sum_collectives(cost.collectives, program, chip)
    seconds = {
        "compute": flops / chip.flops,
        "memory": cost.hbm_bytes / chip.memory_bandwidth,
        "network": sum(kind["seconds"] for kind in collectives.values()),
    }
    hidden = sum(kind["overlapped_seconds"] for kind in collectives.values())
    bound = max(seconds.values())
    serial = sum(seconds.values())
    if cost.cycles is not None:
        serial = cost.cycles / chip.clock + seconds["network"]
    return Estimate(
        memory=program.memory,
        flops=flops,
        compiled_flops=program.flops,
        hbm_bytes=cost.hbm_bytes,
        estimated_cycles=cost.cycles,
        collectives=collectives,
        seconds=seconds,
        step_seconds_lower_bound=bound,
        step_seconds_estimate=max(bound, serial),
        step_seconds_range=(
            max(bound, (1 - CYCLES_ERROR) * (serial - hidden)),
            max(bound, (1 + CYCLES_ERROR) * serial),
        ),
        top_operations=_find_heaviest(cost),
        remarks=_remark(cost, chip.fill(head_widths), flops, program.flops),
    )


def sum_collectives(
    collectives: Sequence[Collective], program: CompiledStep, chip: Chip
) -> dict[str, dict[str, float]]:
    """Sums collectives by kind: executions, bytes of the arrays, bytes sent, and seconds."""
    sums: dict[str, dict[str, float]] = {}
    for one in collectives:
        if len(one.members) == 1:
            continue
        sent = one.times * one.sent_bytes
        seconds = sent / find_bandwidth(one.members, program.coordinates, chip)
        own = {
            "count": one.times,
            "bytes": one.times * one.num_bytes,
            "sent_bytes": sent,
            "seconds": seconds,
            "overlapped_seconds": one.overlaps * seconds,
        }
        before = sums.get(one.kind, dict.fromkeys(own, 0))
        sums[one.kind] = {name: before[name] + value for name, value in own.items()}
    return dict(sorted(sums.items(), key=lambda item: -item[1]["sent_bytes"]))


def _find_heaviest(cost: Cost, count: int = 12) -> list[dict[str, Any]]:
    """Returns the `count` operations with most cycles, or most bytes if there are no cycles."""
    key = "hbm_bytes" if cost.cycles is None else "cycles"
    heaviest = sorted(cost.operations.values(), key=lambda own: getattr(own, key), reverse=True)
    return [dataclasses.asdict(operation) for operation in heaviest[:count]]


def _remark(cost: Cost, fill: float, flops: float, compiled_flops: float | None) -> list[str]:
    remarks = sorted(cost.remarks)
    if cost.cycles is None:
        remarks.append(
            "no cycles from the compiler: the estimate is the sum of the roofline's times"
        )
    elif cost.kernel_cycles:
        share = cost.kernel_cycles / cost.cycles
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
