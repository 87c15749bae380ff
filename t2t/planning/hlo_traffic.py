"""Computes memory traffic, cycles and collectives of a compiled program from its optimised HLO.

XLA's own analysis counts the body of a loop once, and counts on-chip memory as traffic. This module
counts

- bytes between the device's main memory (HBM) and the chip: the operands and results in HBM of each
  instruction outside of fusions. Of an array that a fusion only slices, or updates in place, only
  the slice counts. An asynchronous operation counts where it ends (`-done`). The scratch space of
  cuBLAS and cuDNN does not count.
- kernels: the instructions that do work, each of which is a kernel on a GPU, or a copy or a
  collective. An asynchronous operation counts where it starts. They are of a few kinds: a fusion
  that contains a matrix product is one, another that contains a sum is a reduction.
- cycles: the TPU compiler's estimate of each instruction. Without one, a kernel counts with the
  FLOPs that its author stated, and any other instruction with its traffic. Collectives and
  asynchronous copies have no cycles.
- collectives: kind, members and size.

The body of a loop counts once per iteration, and a conditional counts as its costliest branch.
`Cost.remarks` lists what is unknown or not counted.
"""

import dataclasses
import math
import re

from t2t.planning.hlo_collectives import (
    KINDS,
    Collective,
    read_collective,
    read_slice_transfer,
)
from t2t.planning.hlo_parser import HloModule, Instruction, Scope, count_bits, parse_module

# Instructions that move no data: they only name other arrays or parts of them.
_FREE = set(
    "parameter constant get-tuple-element tuple bitcast after-all add-dependency opt-barrier "
    "partition-id replica-id iota async-done async-update".split()
)
# Custom calls without run-time cost: they name memory, assert something about indices, read a
# number or clear padding in place.
_HARMLESS_CALLS = set(
    "AllocateBuffer ConcatBitcast AssumeGatherIndicesInBound Sharding SliceId ZeroCrop".split()
)
# Libraries whose kernels move their operands and results, and have scratch space as last result.
_LIBRARIES = ("__cublas$", "__cudnn$")
_TRANSFERS = ("-start", "send", "recv")  # ends of opcodes that begin what a -done ends
_SLICES = {"slice", "dynamic-slice", "gather", "slice-done"}
# Kind of kernel -> the opcodes that make it one, in the order in which they decide.
_KERNEL_KINDS = {
    "matrix products": {"dot", "convolution"},
    "scatters": {"scatter"},
    "reductions": {"reduce", "reduce-window"},
}
_SMALL = 1024  # bytes; smaller results take negligible time


@dataclasses.dataclass
class Operation:
    """The cost of all instructions that come from one operation of the traced program."""

    name: str
    executions: int = 0
    cycles: int = 0
    hbm_bytes: int = 0


@dataclasses.dataclass
class Kernels:
    """The kernels of one kind."""

    count: int = 0
    hbm_bytes: int = 0


@dataclasses.dataclass
class Cost:
    """The cost of one execution of a program, per device."""

    has_cycles: bool  # whether the compiler estimates cycles
    operations: dict[str, Operation] = dataclasses.field(default_factory=dict)
    collectives: list[Collective] = dataclasses.field(default_factory=list)
    kernel_cycles: int = 0  # of kernels, from the FLOPs that they state
    # Operations without an estimate by the compiler: name -> cycles, from their traffic.
    unestimated: dict[str, int] = dataclasses.field(default_factory=dict)
    kernels: dict[str, Kernels] = dataclasses.field(default_factory=dict)  # by kind
    remarks: set[str] = dataclasses.field(default_factory=set)  # what is not counted exactly

    @property
    def hbm_bytes(self) -> int:
        """Bytes read from and written to HBM."""
        return sum(operation.hbm_bytes for operation in self.operations.values())

    @property
    def num_kernels(self) -> int:
        """Instructions that do work, each a kernel on a GPU."""
        return sum(kernels.count for kernels in self.kernels.values())

    @property
    def cycles(self) -> int | None:
        """Cycles without collectives; None: the compiler makes no estimates."""
        total = sum(operation.cycles for operation in self.operations.values())
        return total if self.has_cycles else None


@dataclasses.dataclass(frozen=True)
class Rules:
    """Speeds and rules of counting, which depend on the kind of device."""

    # Speeds where the compiler has no estimate: of kernels, and of other instructions by traffic.
    kernel_flops_per_cycle: float = math.inf
    bytes_per_cycle: float = math.inf
    # A slice of a bitcast of an operand counts like a slice of the operand. NVIDIA's compiler
    # writes most slices so; other plans do without, and stay comparable with earlier ones.
    through_bitcasts: bool = False


def measure_cost(text: str, rules: Rules = Rules()) -> Cost:
    """Computes the cost of the program in `text`, which is optimised HLO."""
    walk = _Walk(parse_module(text), rules)
    walk.cost.has_cycles = '"estimated_cycles"' in text
    walk.visit(walk.module.entry, 1)
    return walk.cost


class _Walk:
    """Visits the computations in execution order and counts how often each is executed."""

    def __init__(self, module: HloModule, rules: Rules):
        self.module = module
        self.rules = rules
        self.cost = Cost(has_cycles=False)

    def visit(self, computation: str, times: int, *, overlaps: bool = False) -> None:
        scope = self.module.computations[computation]
        chains: set[str] = set()  # asynchronous collectives that have started
        for own in scope.values():
            if own.opcode == "while":
                for body in own.called("body"):
                    self.visit(body, times * self._count_iterations(own))
            elif own.opcode == "conditional":
                self.visit(self._choose_branch(own), times)
            elif own.opcode in ("call", "async-start"):
                for called in own.called("calls", "to_apply"):
                    self.visit(called, times, overlaps=overlaps or own.opcode == "async-start")
            elif own.opcode not in _FREE:
                self._count(own, scope, times, self._collect(own, scope, times, chains, overlaps))

    def _count(self, own: Instruction, scope: Scope, times: int, started: bool | None) -> None:
        name = own.origin or own.opcode
        for array in own.arrays:
            if count_bits(array.dtype) is None:
                self.cost.remarks.add(
                    f"arrays of dtype {array.dtype}, whose size is unknown, are not counted"
                )
        hbm_bytes = times * self._count_bytes(own, scope, started)
        kind = "collectives" if started is not None else self._find_kind(own)
        kernels = self.cost.kernels.setdefault(kind, Kernels())
        kernels.hbm_bytes += hbm_bytes
        if not own.opcode.endswith("-done") and _call_target(own) not in _HARMLESS_CALLS:
            kernels.count += times
        operation = self.cost.operations.setdefault(name, Operation(name))
        operation.executions += times
        operation.hbm_bytes += hbm_bytes
        operation.cycles += self._count_cycles(own, name, times, hbm_bytes, started)

    def _count_cycles(
        self, own: Instruction, name: str, times: int, hbm_bytes: int, started: bool | None
    ) -> int:
        if estimated := own.attribute(r'"estimated_cycles":"?(\d+)'):
            return times * int(estimated)
        if stated := own.attribute(r'"cost_estimate":\{"flops":"(\d+)"'):
            cycles = times * round(int(stated) / self.rules.kernel_flops_per_cycle)
            self.cost.kernel_cycles += cycles
            return cycles
        target = _call_target(own)
        if (
            started is not None  # a collective: network time is not in cycles
            or own.opcode.endswith(
                (*_TRANSFERS, "-done")
            )  # an asynchronous copy overlaps other work
            or target in _HARMLESS_CALLS
        ):
            return 0
        if target and not target.startswith(_LIBRARIES):
            self.cost.remarks.add(
                f"calls of {target} count only with their HBM traffic: it states no FLOPs"
            )
        cycles = round(hbm_bytes / self.rules.bytes_per_cycle)
        if self.cost.has_cycles and own.num_bytes >= _SMALL:
            self.cost.unestimated[name] = self.cost.unestimated.get(name, 0) + cycles
        return cycles

    def _collect(
        self, own: Instruction, scope: Scope, times: int, chains: set[str], overlaps: bool
    ) -> bool | None:
        """Records a collective that starts in this instruction.

        Returns True if one starts, False if the instruction continues one that started before, and
        None if it contains no collective.
        """
        if transfer := read_slice_transfer(own, scope, times):
            self.cost.collectives.append(transfer)
            return True
        scopes = [(own, scope)]
        if own.opcode == "fusion":
            fused = [self.module.computations[called] for called in own.called("calls")]
            scopes = [(one, inner) for inner in fused for one in inner.values()]
        found = None
        for one, inner in scopes:
            if one.opcode.removesuffix("-start") in KINDS:
                chain = one.attribute(r'chain_id="(\d+)"')
                found = chain is None or chain not in chains
                if found:
                    chains.add(chain or "")
                    devices = self.module.num_devices
                    self.cost.collectives.append(
                        read_collective(one, inner, devices, times, overlaps=overlaps)
                    )
        return found

    def _find_kind(self, own: Instruction) -> str:
        if own.opcode == "custom-call":
            library = (_call_target(own) or "").partition("$")[0]
            return {"__cublas": "matrix products", "__cudnn": "cuDNN"}.get(library, "custom calls")
        opcodes, fusions = set(), [own]
        while fusions:
            one = fusions.pop()
            opcodes.add(one.opcode)
            if one.opcode == "fusion":
                for called in one.called("calls"):
                    fusions += self.module.computations[called].values()
        kinds = (kind for kind, deciding in _KERNEL_KINDS.items() if deciding & opcodes)
        return next(kinds, "elementwise")

    def _choose_branch(self, own: Instruction) -> str:
        """Returns the branch with most cycles, or most bytes if there are no cycles."""

        def measure(branch: str) -> tuple[int, int]:
            walk = _Walk(self.module, self.rules)
            walk.cost.has_cycles = self.cost.has_cycles
            walk.visit(branch, 1)
            sent = sum(c.times * c.sent_bytes for c in walk.cost.collectives)
            return walk.cost.cycles or 0, walk.cost.hbm_bytes + sent

        self.cost.remarks.add("a conditional counts as if its costliest branch were always taken")
        roles = ("branch_computations", "true_computation", "false_computation")
        return max(own.called(*roles), key=measure)

    def _count_iterations(self, loop: Instruction) -> int:
        """Returns the iterations of a loop.

        They are known to the compiler, or the limit in a condition `counter < constant`.
        """
        if known := loop.attribute(r'known_trip_count":\{"n":"(\d+)"'):
            return int(known)
        (condition,) = loop.called("condition")
        scope = self.module.computations[condition]
        root = self.module.root(condition)
        if root.opcode == "compare" and "direction=LT" in root.attributes:
            limit = scope[root.operands[1]]
            if limit.opcode == "constant" and limit.arguments.isdigit():
                return int(limit.arguments)
        self.cost.remarks.add("loops of unknown length count as one iteration")
        return 1

    def _count_bytes(self, own: Instruction, scope: Scope, started: bool | None) -> int:
        if own.opcode.endswith(_TRANSFERS) or _call_target(own) in _HARMLESS_CALLS:
            return 0  # counted at its -done
        sources = [scope[name] for name in own.operands]
        if own.opcode.endswith("-done"):
            sources = [scope[name] for name in sources[0].operands]
        read = [sum(source.hbm_bytes) for source in sources]
        written = own.hbm_bytes
        if own.opcode == "fusion":
            if started is not None:  # a collective's buffers pass through unchanged
                for result, operand in _find_aliases(own):
                    written[result] = 0
                    read[operand] *= started
            (called,) = own.called("calls")
            used, update = _find_parts(
                self.module.computations[called], self.rules.through_bitcasts
            )
            read = [min(size, used.get(number, size)) for number, size in enumerate(read)]
            written = written if update is None else [min(sum(written), update)]
        elif own.opcode in _SLICES and read:
            read[0] = min(read[0], own.num_bytes)
        elif own.opcode == "dynamic-update-slice":
            read[0], written = 0, [sources[1].num_bytes]
        elif own.opcode == "custom-call" and _has_scratch(own):
            written = written[:-1]
        return sum(read) + sum(written)


def _find_parts(fusion: Scope, through_bitcasts: bool) -> tuple[dict[int, int], int | None]:
    """Finds operands that a fusion only slices, and an update in place of its result.

    Returns (number of a sliced operand -> bytes read, bytes written or None if not in place).
    """
    read: dict[int, int] = {}
    for own in (i for i in fusion.values() if i.opcode == "parameter"):
        names = _find_names(fusion, own.name) if through_bitcasts else {own.name}
        users = [u for u in fusion.values() if names & {*u.operands} and u.name not in names]
        places = {place for user in users for place in user.operands[1:]}
        updates = [user for user in users if user.opcode == "dynamic-update-slice"]
        slices = [user for user in users if user.opcode in _SLICES]
        if users and len(slices) + len(updates) == len(users) and not names & places:
            read[int(own.arguments)] = sum(user.num_bytes for user in slices)
    root = next(i for i in fusion.values() if i.is_root)
    while root.opcode == "bitcast":
        root = fusion[root.operands[0]]
    update = root.opcode == "dynamic-update-slice"
    return read, fusion[root.operands[1]].num_bytes if update else None


def _find_names(fusion: Scope, name: str) -> set[str]:
    """Names of an array inside a fusion: its own and those of its bitcasts."""
    names = {name}
    for own in fusion.values():
        if own.opcode == "bitcast" and own.operands[0] in names:
            names.add(own.name)
    return names


def _find_aliases(fusion: Instruction) -> list[tuple[int, int]]:
    """Returns (number of the result, number of the operand) of each pair that shares memory."""
    text = fusion.attribute(r"output_to_operand_aliasing=\{(.*?\))\}") or ""
    pairs = re.findall(r"\{(\d*)\}: \((\d+),", text)
    return [(int(result or 0), int(operand)) for result, operand in pairs]


def _has_scratch(call: Instruction) -> bool:
    """True if the last result is scratch space, most of which a kernel does not touch."""
    library = (_call_target(call) or "").startswith(_LIBRARIES)
    return library and len(call.arrays) > 1 and call.arrays[-1].dtype in ("s8", "u8")


def _call_target(own: Instruction) -> str | None:
    return own.attribute(r'custom_call_target="([^"]*)"')
