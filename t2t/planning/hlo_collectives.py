"""Reads collectives from optimised HLO: their kinds, sizes and participating devices."""

import dataclasses
import math
import re

import numpy as np

from t2t.planning.hlo_parser import Instruction, Scope

KINDS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation that a program executes `times` times."""

    kind: str
    num_bytes: int  # per device, of the operand or the result, whichever is larger
    groups: tuple[tuple[int, ...], ...]  # devices, as indices into the program's
    times: int
    overlaps: bool  # asynchronous: other operations run at the same time
    between_slices: bool = False  # of TPUs, by their hosts; `groups` then number the slices

    @property
    def members(self) -> tuple[int, ...]:
        """The devices of the first group; groups are equally large, or pairs that send."""
        return self.groups[0]

    @property
    def sent_bytes(self) -> int:
        """Bytes that a device sends per execution.

        In a ring of n devices it sends (n - 1) / n of the array, twice that in an all-reduce.
        """
        n = len(self.members)
        if n == 1:
            return 0
        if self.kind in ("collective-permute", "collective-broadcast"):
            return self.num_bytes
        passes = 2 if self.kind == "all-reduce" else 1  # all-reduce = reduce-scatter + all-gather
        return passes * self.num_bytes * (n - 1) // n


def read_collective(
    own: Instruction, scope: Scope, num_devices: int, times: int, *, overlaps: bool = False
) -> Collective:
    """Reads the collective of an instruction whose opcode is one of `KINDS` or its `-start`."""
    kind = own.opcode.removesuffix("-start")
    size = sum(scope[name].num_bytes for name in own.operands)
    groups = _read_groups(own, num_devices)
    if kind == "all-gather":
        size *= len(groups[0])
    root = next((i for i in scope.values() if i.is_root), own)
    if kind == "all-reduce" and root.opcode == "dynamic-slice":
        kind = "reduce-scatter"  # the fusion keeps only this device's slice
    # The TPU compiler splits asynchronous collectives into chains of fusions with other work.
    overlaps |= own.opcode.endswith("-start") or "chain_id=" in own.attributes
    return Collective(kind, size, groups, times, overlaps)


def read_slice_transfer(own: Instruction, scope: Scope, times: int) -> Collective | None:
    """Reads the part of a collective that crosses TPU slices; None if this instruction is none.

    The TPU compiler divides a collective over slices into collectives inside a slice and a `send`
    with its `recv`, between which the hosts combine the parts of all slices.
    """
    kind = own.attribute('_xla_megascale_transfer_type="([A-Z_]+)"')
    if own.opcode != "send" or kind is None:
        return None
    slices = _read_range(own.attribute(r'_xla_megascale_target="\{([\d,:]+)\}') or "")
    kind = kind.lower().replace("_", "-")
    size = scope[own.operands[0]].num_bytes * (len(slices) if kind == "all-gather" else 1)
    return Collective(kind, size, (slices,), times, overlaps=True, between_slices=True)


def _read_range(text: str) -> tuple[int, ...]:
    """Reads `1,2` or `0:3`, which includes 3."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition(":")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def _read_groups(collective: Instruction, num_devices: int) -> tuple[tuple[int, ...], ...]:
    """Reads the replica groups, written as lists, as a grid or by mesh axes."""
    text = collective.attribute(r"(?:replica_groups|source_target_pairs)=(.*)") or ""
    if lists := re.match(r"\{\{.*?\}\}", text):
        found = tuple(tuple(_read_sizes(one)) for one in re.findall(r"\{([\d,]+)\}", lists[0][1:]))
        if not collective.attribute(r"source_target_pairs=(.*)"):
            return found
        return tuple(pair for pair in found if pair[0] != pair[1]) or ((0,),)  # who sends
    if grid := re.match(r"\[\d+,(\d+)\]<=(\[.*)", text):
        return _to_groups(_read_devices(grid[2]).reshape(-1, int(grid[1])))
    if mesh := re.match(r"mesh\[([^\]]*)\](?:, device_ids=\(([^)]*\)?)\))? ?\{([^}]*)\}", text):
        return _to_groups(_read_mesh_groups(mesh[1], mesh[2], mesh[3]))
    return (tuple(range(num_devices)),)


def _to_groups(rows: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, row)) for row in rows)


def _read_devices(text: str) -> np.ndarray:
    """Reads `[4,2]T(1,0)`: arange(8).reshape(4, 2).transpose(1, 0).ravel()."""
    shape, axes = re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text).groups()  # type: ignore[union-attr]
    devices = np.arange(np.prod(_read_sizes(shape))).reshape(_read_sizes(shape))
    return devices.transpose(_read_sizes(axes) if axes else None).ravel()


def _read_mesh_groups(axes: str, devices: str | None, taken: str) -> np.ndarray:
    """Reads groups along mesh axes, one per row, such as `'a'=4,'b'=8`, `[32]T(0)`, `'a','b':(2)4`.

    `'b':(2)4` is a part of axis `b`: with the axis reshaped to (2, 4, rest), the dimension of 4.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'?([\w.\-]+)'?=(\d+)", axes)}
    shape: list[int] = []
    inside: list[bool] = []
    parts = {
        name: (int(before or 1), int(part or sizes[name]))
        for name, before, part in re.findall(r"'?([\w.\-]+)'?(?::\((\d+)\)(\d+))?", taken)
    }
    for name, size in sizes.items():
        before, part = parts.get(name, (size, 1))
        shape += [before, part, size // (before * part)]
        inside += [False, True, False]
    ids = np.arange(np.prod(shape)) if devices is None else _read_devices(devices)
    order = np.argsort(inside, kind="stable")  # the axes of a group last
    size = math.prod(length for length, own in zip(shape, inside, strict=True) if own)
    return ids.reshape(shape).transpose(order).reshape(-1, size)


def _read_sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]
