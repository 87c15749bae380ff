"""Counts bytes, kernels, collectives and cycles of a compiled program, in its optimised HLO.

XLA's own analysis counts the body of a loop once, and counts on-chip memory as traffic. This module
counts

- bytes between the device's main memory (HBM) and the chip: the operands and results in HBM of each
  instruction outside of fusions. Of an array that a fusion only slices, or updates in place, only
  the slice counts. An asynchronous operation counts where it ends (`-done`). The scratch space of
  cuBLAS and cuDNN does not count.
- kernels: the instructions that do work, each of which is a kernel on a GPU, or a copy or a
  collective. An asynchronous operation counts where it starts.
- collectives: kind, groups of devices, and size.
- cycles: those that the TPU compiler states. It states none of collectives, asynchronous copies and
  kernels that are not its own.

The body of a loop counts once per iteration, and a conditional counts with all its branches.
`Cost.remarks` lists what is unknown or not counted.
"""

import dataclasses
import re
from typing import NamedTuple

from t2t.planning.hlo_parser import (
    Groups,
    HloModule,
    Instruction,
    Scope,
    count_bits,
    find_root,
    parse_module,
    read_groups,
)

_COLLECTIVES = set(
    "all-reduce all-gather reduce-scatter all-to-all ragged-all-to-all collective-permute "
    "collective-broadcast".split()
)
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
_LIBRARIES = {"__cublas": "matrix products", "__cudnn": "cuDNN"}
_TRANSFERS = ("-start", "send", "recv")  # ends of opcodes that begin what a -done ends
_BRANCHES = ("branch_computations", "true_computation", "false_computation")
_SLICES = {"slice", "dynamic-slice", "gather", "slice-done"}
# Kind of kernel -> the opcodes that make it one, in the order in which they decide.
_KERNEL_KINDS = {
    "matrix products": {"dot", "convolution"},
    "scatters": {"scatter"},
    "reductions": {"reduce", "reduce-window"},
}


class Collective(NamedTuple):
    """A collective operation that a program executes `times` times."""

    kind: str
    num_bytes: int  # per device, of the operand or the result, whichever is larger
    groups: Groups  # the devices that communicate; in a permutation, the pairs that send
    times: int
    between_slices: bool = False  # of TPUs, by their hosts; `groups` then number the slices

    @property
    def sent_bytes(self) -> int:
        """Bytes that a device sends per execution.

        In a ring of n devices it sends (n - 1) / n of the array, twice that in an all-reduce.
        """
        n = len(self.groups[0])
        if self.kind in ("collective-permute", "collective-broadcast"):
            return self.num_bytes
        passes = 2 if self.kind == "all-reduce" else 1  # all-reduce = reduce-scatter + all-gather
        return passes * self.num_bytes * (n - 1) // n


@dataclasses.dataclass(frozen=True)
class Work:
    """The kernels and bytes of an instruction, of all its executions together."""

    instruction: Instruction
    operands: tuple[Instruction, ...]
    kind: str  # of kernel
    count: int
    hbm_bytes: int


@dataclasses.dataclass
class SummedWork:
    """The work of instructions that belong together."""

    count: int = 0
    hbm_bytes: int = 0
    cycles: int = 0  # as the TPU compiler states them


@dataclasses.dataclass
class Cost:
    """The cost of one execution of a program, per device."""

    each: list[Work] = dataclasses.field(default_factory=list)  # in the order of execution
    operations: dict[str, SummedWork] = dataclasses.field(default_factory=dict)  # as traced
    kernels: dict[str, SummedWork] = dataclasses.field(default_factory=dict)  # by kind
    collectives: list[Collective] = dataclasses.field(default_factory=list)
    cycles: int | None = None  # None: the compiler states none
    uncounted_flops: int = 0  # of kernels that state FLOPs and have no cycles
    remarks: set[str] = dataclasses.field(default_factory=set)  # what is not counted exactly

    @property
    def hbm_bytes(self) -> int:
        """Bytes read from and written to HBM."""
        return sum(operation.hbm_bytes for operation in self.operations.values())

    def list_kernels(self) -> dict[str, dict[str, int]]:
        """Returns kind of kernel -> its count and HBM bytes; the most bytes come first."""
        kinds = sorted(self.kernels.items(), key=lambda item: -item[1].hbm_bytes)
        return {
            name: {"count": own.count, "hbm_bytes": own.hbm_bytes}
            for name, own in kinds
            if own.count
        }


def measure_cost(text: str) -> Cost:
    """Computes the cost of the program in `text`, which is optimised HLO."""
    module = parse_module(text)
    counter = _Counter(module)
    counter.visit(module.entry, 1)
    return counter.cost


class _Counter:
    """Adds up the cost of computations in execution order."""

    def __init__(self, module: HloModule):
        self.module = module
        self.cost = Cost()

    def visit(self, computation: str, times: int) -> None:
        scope = self.module.computations[computation]
        chains: set[str] = set()  # asynchronous collectives that have started
        for own in scope.values():
            if own.opcode == "while":
                for body in own.called("body"):
                    self.visit(body, times * self._count_iterations(own))
            elif own.opcode == "conditional":
                self.cost.remarks.add("a conditional counts as if all its branches were taken")
                for branch in own.called(*_BRANCHES):
                    self.visit(branch, times)
            elif own.opcode in ("call", "async-start"):
                for called in own.called("calls", "to_apply"):
                    self.visit(called, times)
            elif own.opcode not in _FREE:
                self._add(own, scope, times, self._collect(own, scope, times, chains))

    def _add(self, own: Instruction, scope: Scope, times: int, started: bool | None) -> None:
        """Adds an instruction; `started` is the result of `_collect`."""
        for array in own.arrays:
            if count_bits(array.dtype) is None:
                self.cost.remarks.add(
                    f"arrays of dtype {array.dtype}, whose size is unknown, are not counted"
                )
        hbm_bytes = times * self._count_bytes(own, scope, started)
        kind = "collectives" if started is not None else self._find_kind(own)
        kernels = self.cost.kernels.setdefault(kind, SummedWork())
        kernels.hbm_bytes += hbm_bytes
        is_start = not own.opcode.endswith("-done") and _call_target(own) not in _HARMLESS_CALLS
        count = times if is_start else 0
        kernels.count += count
        operands = tuple(scope[name] for name in own.operands)
        self.cost.each.append(Work(own, operands, kind, count, hbm_bytes))
        name = own.attribute(r'op_name="([^"]*)"') or own.opcode
        operation = self.cost.operations.setdefault(name, SummedWork())
        operation.count += times
        operation.hbm_bytes += hbm_bytes
        if estimated := own.attribute(r'"estimated_cycles":"?(\d+)'):
            operation.cycles += times * int(estimated)
            self.cost.cycles = (self.cost.cycles or 0) + times * int(estimated)
        elif stated := own.attribute(r'"cost_estimate":\{"flops":"(\d+)"'):
            self.cost.uncounted_flops += times * int(stated)
        elif kind == "custom calls" and (target := _call_target(own)) not in _HARMLESS_CALLS:
            self.cost.remarks.add(
                f"calls of {target} count only with their HBM traffic: it states no FLOPs"
            )

    def _collect(self, own: Instruction, scope: Scope, times: int, chains: set[str]) -> bool | None:
        """Records a collective that starts in this instruction.

        Returns True if one starts, False if the instruction continues one that started before, and
        None if it contains no collective. The TPU compiler splits an asynchronous collective into
        a chain of fusions with other work.
        """
        if transfer := _read_slice_transfer(own, scope, times):
            self.cost.collectives.append(transfer)
            return True
        scopes = [(own, scope)]
        if own.opcode == "fusion":
            fused = [self.module.computations[called] for called in own.called("calls")]
            scopes = [(one, inner) for inner in fused for one in inner.values()]
        found = None
        for one, inner in scopes:
            if one.opcode.removesuffix("-start") in _COLLECTIVES:
                chain = one.attribute(r'chain_id="(\d+)"')
                found = chain is None or chain not in chains
                if found:
                    chains.add(chain or "")
                    groups = read_groups(one, self.module.num_devices)
                    if len(groups[0]) > 1:  # else every device keeps its own
                        self.cost.collectives.append(_read_collective(one, inner, groups, times))
        return found

    def _find_kind(self, own: Instruction) -> str:
        if own.opcode == "custom-call":
            library = (_call_target(own) or "").partition("$")[0]
            return _LIBRARIES.get(library, "custom calls")
        opcodes, fusions = set(), [own]
        while fusions:
            one = fusions.pop()
            opcodes.add(one.opcode)
            if one.opcode == "fusion":
                for called in one.called("calls"):
                    fusions += self.module.computations[called].values()
        kinds = (kind for kind, deciding in _KERNEL_KINDS.items() if deciding & opcodes)
        return next(kinds, "elementwise")

    def _count_iterations(self, loop: Instruction) -> int:
        """Returns the iterations of a loop.

        They are known to the compiler, or the limit in a condition `counter < constant`.
        """
        if known := loop.attribute(r'known_trip_count":\{"n":"(\d+)"'):
            return int(known)
        (condition,) = loop.called("condition")
        scope = self.module.computations[condition]
        root = find_root(scope)
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
            used, update = _find_parts(self.module.computations[called])
            read = [min(size, used.get(number, size)) for number, size in enumerate(read)]
            written = written if update is None else [min(sum(written), update)]
        elif own.opcode in _SLICES and read:
            read[0] = min(read[0], own.num_bytes)
        elif own.opcode == "dynamic-update-slice":
            read[0], written = 0, [sources[1].num_bytes]
        elif own.opcode == "custom-call" and _has_scratch(own):
            written = written[:-1]
        return sum(read) + sum(written)


def _read_collective(own: Instruction, scope: Scope, groups: Groups, times: int) -> Collective:
    kind = own.opcode.removesuffix("-start")
    size = sum(scope[name].num_bytes for name in own.operands)
    if kind == "all-gather":
        size *= len(groups[0])
    root = next((one for one in scope.values() if one.is_root), own)
    if kind == "all-reduce" and root.opcode == "dynamic-slice":
        kind = "reduce-scatter"  # the fusion keeps only this device's slice
    return Collective(kind, size, groups, times)


def _read_slice_transfer(own: Instruction, scope: Scope, times: int) -> Collective | None:
    """Reads the part of a collective that crosses TPU slices; None if this instruction is none.

    The TPU compiler divides a collective over slices into collectives inside a slice and a `send`
    with its `recv`, between which the hosts combine the parts of all slices.
    """
    kind = own.attribute('_xla_megascale_transfer_type="([A-Z_]+)"')
    if own.opcode != "send" or kind is None:
        return None
    slices: list[int] = []
    target = own.attribute(r'_xla_megascale_target="\{([\d,:]+)\}') or ""  # such as 1,2 or 1:4
    for part in target.split(","):
        first, _, last = part.partition(":")
        slices += range(int(first), int(last or first) + 1)
    kind = kind.lower().replace("_", "-")
    size = scope[own.operands[0]].num_bytes * (len(slices) if kind == "all-gather" else 1)
    return Collective(kind, size, (tuple(slices),), times, between_slices=True)


def _find_parts(fusion: Scope) -> tuple[dict[int, int], int | None]:
    """Finds operands that a fusion only slices, and an update in place of its result.

    Returns (number of a sliced operand -> bytes read, bytes written or None if not in place).
    """
    read: dict[int, int] = {}
    for own in (i for i in fusion.values() if i.opcode == "parameter"):
        names = {own.name}  # and those of its bitcasts
        for one in fusion.values():
            if one.opcode == "bitcast" and one.operands[0] in names:
                names.add(one.name)
        users = [u for u in fusion.values() if names & {*u.operands} and u.name not in names]
        places = {place for user in users for place in user.operands[1:]}
        updates = [user for user in users if user.opcode == "dynamic-update-slice"]
        slices = [user for user in users if user.opcode in _SLICES]
        if users and len(slices) + len(updates) == len(users) and not names & places:
            read[int(own.arguments)] = sum(user.num_bytes for user in slices)
    root = find_root(fusion)
    while root.opcode == "bitcast":
        root = fusion[root.operands[0]]
    update = root.opcode == "dynamic-update-slice"
    return read, fusion[root.operands[1]].num_bytes if update else None


def _find_aliases(fusion: Instruction) -> list[tuple[int, int]]:
    """Returns (number of the result, number of the operand) of each pair that shares memory."""
    text = fusion.attribute(r"output_to_operand_aliasing=\{(.*?\))\}") or ""
    pairs = re.findall(r"\{(\d*)\}: \((\d+),", text)
    return [(int(result or 0), int(operand)) for result, operand in pairs]


def _has_scratch(call: Instruction) -> bool:
    """True if the last result is scratch space, most of which a kernel does not touch."""
    library = (_call_target(call) or "").startswith(tuple(_LIBRARIES))
    return library and len(call.arrays) > 1 and call.arrays[-1].dtype in ("s8", "u8")


def _call_target(own: Instruction) -> str | None:
    return own.attribute(r'custom_call_target="([^"]*)"')
