"""From a compiled step and a chip's figures to time: the roofline, and the compiler's estimate."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from t2t.planning.chips import Chip
from t2t.planning.compile_step import CompiledStep, DeviceMemory
from t2t.planning.hlo_collectives import Collective
from t2t.planning.hlo_traffic import Cost, measure_cost
from t2t.planning.interconnect import find_bandwidth

# An assumption, since no plan was held against a TPU: libtpu 0.0.42 and 0.0.48 differ by 3% in the
# cycles of base's step, and kernels reach 0.35 to 0.49 of the peak by the compiler's own schedule
# (benchmarks/tpu_attention.py) where `Chip.fill` says 0.5.
CYCLES_ERROR = 0.1


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A compiled step; all figures are of one device and one step."""

    memory: DeviceMemory
    flops: float  # of the products of all positions, by the closed form
    compiled_flops: float | None  # XLA's count: elementwise too, the body of a loop once
    hbm_bytes: int  # between memory and chip
    estimated_cycles: int | None  # by the compiler, without collectives; None: it makes none
    collectives: dict[str, dict[str, float]]
    seconds: dict[str, float]  # of compute, memory and network, by the roofline
    step_seconds_lower_bound: float
    step_seconds_estimate: float
    step_seconds_range: tuple[float, float]
    top_operations: list[dict[str, Any]]
    remarks: list[str]  # what is not counted, or not exactly


def estimate(
    program: CompiledStep, chip: Chip, flops: float, head_widths: Sequence[int]
) -> Estimate:
    """What the program costs; `flops` of its products, `head_widths` of the kernel's.

    Lower bound: the longest of FLOPs / peak, HBM bytes / bandwidth and the network's time, as if
    all three overlapped. Estimate: the compiler's cycles / clock, then the network's time as if
    nothing of it overlapped; without cycles the sum of the three; at least the lower bound. The
    range hides asynchronous collectives at its lower end, and adds the error of the cycles.
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
    """Kind -> how many are executed, bytes that take part, bytes sent, and the time that takes."""
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
    """By cycles, or by bytes where the compiler does not count cycles."""
    key = "hbm_bytes" if cost.cycles is None else "cycles"
    heaviest = sorted(cost.operations.values(), key=lambda own: getattr(own, key), reverse=True)
    return [dataclasses.asdict(operation) for operation in heaviest[:count]]


def _remark(cost: Cost, fill: float, flops: float, compiled_flops: float | None) -> list[str]:
    remarks = sorted(cost.remarks)
    if cost.cycles is None:
        remarks.append("the compiler estimates no cycles here: the estimate is the roofline's sum")
    elif cost.kernel_cycles:
        share = cost.kernel_cycles / cost.cycles
        remarks.append(
            f"kernels, {share:.1%} of the cycles, have no estimate by the compiler: they count "
            f"with {fill:.0%} of the chip's peak, as much of a matrix unit as the heads fill"
        )
    if cost.cycles and cost.unestimated:
        names = sorted(cost.unestimated, key=lambda name: -cost.unestimated[name])
        share = sum(cost.unestimated.values()) / cost.cycles
        remarks.append(
            f"{len(names)} operations without an estimate by the compiler count with their HBM "
            f"traffic, {share:.1%} of the cycles: {', '.join(names[:4])}"
        )
    if compiled_flops and not 0.9 < compiled_flops / flops < 1.1:
        remarks.append(
            f"the compiler counts {compiled_flops / flops:.2f} times the closed form's FLOPs: "
            "more where something is computed twice, less where a loop runs more than once"
        )
    return remarks
