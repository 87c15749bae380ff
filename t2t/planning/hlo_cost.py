"""What one execution of a compiled program costs a device, read from its optimised HLO.

Counted here, since XLA's own analysis enters a loop's body once however often it runs, counts what
stays in on-chip memory as traffic, and counts a prefetch twice:

- FLOPs of products and convolutions, also inside fusions; nothing elementwise.
- Bytes between the device's large memory (HBM) and the chip: operands and results of each
  instruction outside of fusions, as far as they live there. What a fusion only slices, gathers or
  updates in place counts with the slice. An asynchronous copy counts once.
- Cycles: the TPU compiler's estimate in each fusion and copy. Collectives carry none.
- Collectives, by kind, with what a device sends in a ring.

Bodies of loops count as often as they run. Custom calls are opaque: their bytes are those of their
operands and results, and their FLOPs what they state themselves, as a Pallas kernel can; their
cycles follow from that, and the names of those that state nothing are listed.
"""

import collections
import dataclasses
import math
import re

from t2t.planning.hlo import Instruction, Module, Scope, parse_module
from t2t.planning.hlo_collectives import KINDS, Collective, read_collective
from t2t.planning.hlo_flops import count_flops

# What moves no data: names for parts of other arrays, and ends of what is counted at its start.
_FREE = set(
    "parameter constant get-tuple-element tuple bitcast after-all add-dependency opt-barrier "
    "partition-id replica-id iota copy-done slice-done async-done async-update".split()
) | {f"{kind}-done" for kind in KINDS}
# Calls that only the compiler sees: they name memory, or promise something about indices.
_HARMLESS_CALLS = {"AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound", "Sharding"}
_CALLS = {"call", "conditional", "async-start"}
_CALLED_ROLES = (
    "calls", "to_apply", "branch_computations", "true_computation", "false_computation"
)  # fmt: skip
_SLICES = {"slice", "dynamic-slice", "gather"}
_HBM = 0


@dataclasses.dataclass
class Operation:
    """All instructions that come from one operation of the traced program."""

    name: str
    executions: int = 0
    cycles: int = 0
    hbm_bytes: int = 0
    flops: int = 0

    def add(self, times: int, cycles: int, hbm_bytes: int, flops: int) -> None:
        """One more instruction, executed `times` times."""
        self.executions += times
        self.cycles += times * cycles
        self.hbm_bytes += times * hbm_bytes
        self.flops += times * flops


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one device and one execution."""

    operations: tuple[Operation, ...]
    collectives: tuple[Collective, ...]
    unknown_loops: int  # whose number of rounds the text does not tell: counted once
    kernels: tuple[str, ...]  # targets of custom calls that state their FLOPs
    custom_calls: tuple[str, ...]  # and of those that do not: FLOPs and cycles are not seen

    @property
    def flops(self) -> int:
        """Of products and convolutions."""
        return sum(operation.flops for operation in self.operations)

    @property
    def hbm_bytes(self) -> int:
        """Read and written."""
        return sum(operation.hbm_bytes for operation in self.operations)

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate, and kernels; collectives are not in it. None: it makes none."""
        return sum(operation.cycles for operation in self.operations) or None

    @property
    def sent_bytes(self) -> int:
        """To other devices."""
        return sum(c.times * c.sent_bytes for c in self.collectives)


def measure_cost(text: str, kernel_flops_per_cycle: float = math.inf) -> Cost:
    """The cost of the program in `text`, the optimised HLO; kernels at this speed."""
    walk = _Walk(parse_module(text), kernel_flops_per_cycle)
    walk.visit(walk.module.entry, 1)
    return Cost(
        tuple(walk.operations.values()),
        tuple(walk.collectives),
        walk.unknown_loops,
        tuple(sorted(walk.kernels)),
        tuple(sorted(walk.custom_calls)),
    )


class _Walk:
    """Goes through the computations in the order of execution, with the number of executions."""

    def __init__(self, module: Module, kernel_flops_per_cycle: float):
        self.module = module
        self.kernel_flops_per_cycle = kernel_flops_per_cycle
        self.operations: dict[str, Operation] = {}
        self.collectives: list[Collective] = []
        self.unknown_loops = 0
        self.kernels: set[str] = set()
        self.custom_calls: set[str] = set()
        self._channels: set[str] = set()

    def visit(self, computation: str, times: int) -> None:
        scope = self.module.computations[computation]
        for instruction in scope.values():
            if instruction.opcode == "while":
                rounds = self._count_rounds(instruction)
                for body in instruction.called("body"):
                    self.visit(body, times * rounds)
            elif instruction.opcode in _CALLS:
                for called in instruction.called(*_CALLED_ROLES):
                    self.visit(called, times)
            elif instruction.opcode not in _FREE:
                self._count(instruction, scope, times)

    def _count(self, own: Instruction, scope: Scope, times: int) -> None:
        stated = _state_flops(own)
        if (target := _call_target(own)) and target not in _HARMLESS_CALLS:
            (self.kernels if stated else self.custom_calls).add(target)
        started = self._add_collectives(own, scope, times)
        name = own.origin or own.opcode
        self.operations.setdefault(name, Operation(name)).add(
            times,
            cycles=int(own.attribute(r'"estimated_cycles":"?(\d+)') or 0)
            + round(stated / self.kernel_flops_per_cycle),
            hbm_bytes=self._count_bytes(own, scope, started),
            flops=self._count_flops(own, scope) + stated,
        )

    def _count_flops(self, own: Instruction, scope: Scope) -> int:
        if own.opcode != "fusion":
            return count_flops(own, scope)
        fused = [self.module.computations[called] for called in own.called("calls")]
        return sum(self._count_flops(one, inner) for inner in fused for one in inner.values())

    def _add_collectives(self, own: Instruction, scope: Scope, times: int) -> bool | None:
        """Whether a collective starts here, or goes on that has started before; None: neither."""
        scopes = [(own, scope)]
        if own.opcode == "fusion":
            fused = [self.module.computations[called] for called in own.called("calls")]
            scopes = [(one, inner) for inner in fused for one in inner.values()]
        found = None
        for one, inner in scopes:
            if one.opcode.removesuffix("-start") in KINDS:
                channel = one.attribute(r"channel_id=(\d+)")
                found = channel is None or channel not in self._channels
                if found:
                    self._channels.add(channel or "")
                    devices = self.module.num_devices
                    self.collectives.append(read_collective(one, inner, devices, times))
        return found

    def _count_rounds(self, loop: Instruction) -> int:
        """As the compiler says, or the constant that a condition `counter < constant` has."""
        if known := loop.attribute(r'known_trip_count":\{"n":"(\d+)"'):
            return int(known)
        (condition,) = loop.called("condition")
        scope = self.module.computations[condition]
        root = self.module.root(condition)
        if root.opcode == "compare" and "direction=LT" in root.attributes:
            limit = scope[root.operands[1]]
            if limit.opcode == "constant" and limit.arguments.isdigit():
                return int(limit.arguments)
        self.unknown_loops += 1
        return 1

    def _count_bytes(self, own: Instruction, scope: Scope, started: bool | None) -> int:
        if own.opcode in ("copy-start", "slice-start"):
            # The result's type lists destination and source; what is moved is the smaller.
            ends = own.arrays[:2]
            moved = min(array.num_bytes for array in ends)
            return moved * sum(array.memory_space == _HBM for array in ends)
        if _call_target(own) in _HARMLESS_CALLS:
            return 0
        sources = [scope[name] for name in own.operands]
        read = [sum(_hbm_bytes(source)) for source in sources]
        written = _hbm_bytes(own)
        if own.opcode == "fusion":
            if started is not None:  # buffers of a collective on its way are passed on untouched
                for result, operand in _find_aliases(own):
                    written[result] = 0
                    read[operand] *= started
            (called,) = own.called("calls")
            parts, update = self._find_parts(called)
            read = [min(size, parts.get(number, size)) for number, size in enumerate(read)]
            written = written if update is None else [min(sum(written), update)]
        elif own.opcode in _SLICES:
            read[0] = min(read[0], sum(array.num_bytes for array in own.arrays))
        elif own.opcode == "dynamic-update-slice":
            read[0], written = 0, [sum(array.num_bytes for array in sources[1].arrays)]
        return sum(read) + sum(written)

    def _find_parts(self, fusion: str) -> tuple[dict[int, int], int | None]:
        """(operand -> bytes of it that are used, bytes of the result that are written).

        Only for operands that are nothing but sliced or updated in place, and for a result that
        is such an update.
        """
        scope = self.module.computations[fusion]
        users = collections.defaultdict(list)
        for instruction in scope.values():
            for operand in instruction.operands:
                users[operand].append(instruction)
        parts = {}
        for instruction in scope.values():
            if instruction.opcode == "parameter" and users[instruction.name]:
                used = [_used_bytes(instruction, user) for user in users[instruction.name]]
                if None not in used:
                    parts[int(instruction.arguments)] = sum(size or 0 for size in used)
        root = self.module.root(fusion)
        while root.opcode == "bitcast":
            root = scope[root.operands[0]]
        if root.opcode != "dynamic-update-slice":
            return parts, None
        return parts, sum(array.num_bytes for array in scope[root.operands[1]].arrays)


def _find_aliases(fusion: Instruction) -> list[tuple[int, int]]:
    """(number of the result, number of the operand) that are one and the same memory."""
    text = fusion.attribute(r"output_to_operand_aliasing=\{(.*?\))\}") or ""
    pairs = re.findall(r"\{(\d*)\}: \((\d+),", text)
    return [(int(result or 0), int(operand)) for result, operand in pairs]


def _call_target(own: Instruction) -> str | None:
    return own.attribute(r'custom_call_target="([^"]*)"')


def _state_flops(own: Instruction) -> int:
    """What a kernel's author wrote beside it."""
    return int(own.attribute(r'"cost_estimate":\{"flops":"(\d+)"') or 0)


def _used_bytes(own: Instruction, user: Instruction) -> int | None:
    """Of `own`, by one instruction that takes a part of it; None: all."""
    if user.operands[0] != own.name or own.name in user.operands[1:]:
        return None
    if user.opcode in _SLICES:
        return sum(array.num_bytes for array in user.arrays)
    return 0 if user.opcode == "dynamic-update-slice" else None


def _hbm_bytes(instruction: Instruction) -> list[int]:
    """Of each array of the result, as far as it is there."""
    return [array.num_bytes if array.memory_space == _HBM else 0 for array in instruction.arrays]
