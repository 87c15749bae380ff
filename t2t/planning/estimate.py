"""From a compiled step and a chip's figures to time: the roofline, and the compiler's estimate."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from t2t.planning.chips import Chip
from t2t.planning.compiled import Memory, Program
from t2t.planning.hlo_collectives import Collective
from t2t.planning.hlo_cost import Cost, measure_cost

# A head of 64 numbers fills half of a multiplier that is 128 wide; by the compiler's schedule the
# kernel of t2t/model/fused_attention.py comes to 0.35 to 0.49 (benchmarks/tpu_attention.py).
KERNEL_SHARE_OF_PEAK = 0.5


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A compiled step; all figures are of one device and one step."""

    memory: Memory
    flops: int  # of the products in the compiled program
    hbm_bytes: int  # between memory and chip
    estimated_cycles: int | None  # by the compiler, without collectives; None: it makes none
    collectives: dict[str, dict[str, int]]
    seconds: dict[str, float]  # of compute, memory and network, by the roofline
    step_seconds_lower_bound: float
    step_seconds_estimate: float
    top_operations: list[dict[str, Any]]
    remarks: list[str]


def estimate(program: Program, chip: Chip) -> Estimate:
    """What the program costs.

    Lower bound: the longest of FLOPs / peak, HBM bytes / bandwidth and bytes sent / bandwidth, as
    if all three overlapped. Estimate: the compiler's cycles / clock, then the network's time as if
    nothing of it overlapped; without cycles the sum of the three; at least the lower bound.
    """
    cost = measure_cost(program.text, KERNEL_SHARE_OF_PEAK * chip.flops_per_cycle)
    seconds = {
        "compute": cost.flops / chip.flops,
        "memory": cost.hbm_bytes / chip.memory_bandwidth,
        "network": cost.sent_bytes / chip.network_bandwidth,
    }
    bound = max(seconds.values())
    if cost.cycles is None:
        serial = sum(seconds.values())
    else:
        serial = cost.cycles / chip.clock + seconds["network"]
    return Estimate(
        memory=program.memory,
        flops=cost.flops,
        hbm_bytes=cost.hbm_bytes,
        estimated_cycles=cost.cycles,
        collectives=sum_collectives(cost.collectives),
        seconds=seconds,
        step_seconds_lower_bound=bound,
        step_seconds_estimate=max(bound, serial),
        top_operations=_find_heaviest(cost),
        remarks=_remark(cost),
    )


def sum_collectives(collectives: Sequence[Collective]) -> dict[str, dict[str, int]]:
    """Kind -> how many are executed, bytes that take part, bytes sent, sent while computing."""
    sums: dict[str, dict[str, int]] = {}
    for one in collectives:
        if one.group_size == 1:
            continue
        own = sums.setdefault(
            one.kind, {"count": 0, "bytes": 0, "sent_bytes": 0, "overlapped_sent_bytes": 0}
        )
        own["count"] += one.times
        own["bytes"] += one.times * one.num_bytes
        own["sent_bytes"] += one.times * one.sent_bytes
        own["overlapped_sent_bytes"] += one.overlaps * one.times * one.sent_bytes
    return dict(sorted(sums.items(), key=lambda item: -item[1]["sent_bytes"]))


def _find_heaviest(cost: Cost, count: int = 12) -> list[dict[str, Any]]:
    """By cycles, or by bytes where the compiler does not count cycles."""
    key = "hbm_bytes" if cost.cycles is None else "cycles"
    heaviest = sorted(cost.operations, key=lambda own: getattr(own, key), reverse=True)
    return [dataclasses.asdict(operation) for operation in heaviest[:count]]


def _remark(cost: Cost) -> list[str]:
    remarks = []
    if cost.unknown_loops:
        remarks.append(f"{cost.unknown_loops} loops of unknown length are counted as one round")
    if cost.kernels and cost.cycles:
        share = f"{KERNEL_SHARE_OF_PEAK:.0%} of the chip's peak"
        remarks.append(f"the compiler estimates no cycles of kernels: they count with {share}")
    if cost.custom_calls:
        remarks.append(f"cycles and FLOPs of custom calls not seen: {', '.join(cost.custom_calls)}")
    if cost.cycles is None:
        remarks.append("the compiler estimates no cycles here: the estimate is the roofline's sum")
    return remarks
