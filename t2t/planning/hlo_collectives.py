"""Reads collectives from optimised HLO: their kinds, sizes and participating devices."""

import dataclasses
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
    members: tuple[int, ...]  # devices of the first group, as indices into the program's
    times: int
    overlaps: bool  # asynchronous: other operations run at the same time

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
    members = _read_group(own, num_devices)
    if kind == "all-gather":
        size *= len(members)
    root = next((i for i in scope.values() if i.is_root), own)
    if kind == "all-reduce" and root.opcode == "dynamic-slice":
        kind = "reduce-scatter"  # the fusion keeps only this device's slice
    # The TPU compiler splits asynchronous collectives into chains of fusions with other work.
    overlaps |= own.opcode.endswith("-start") or "chain_id=" in own.attributes
    return Collective(kind, size, members, times, overlaps)


def _read_group(collective: Instruction, num_devices: int) -> tuple[int, ...]:
    """Reads the first replica group, written as a list, as a grid or by mesh axes."""
    text = collective.attribute(r"(?:replica_groups|source_target_pairs)=(.*)") or ""
    if members := re.match(r"\{\{([\d,]+)\}", text):
        return tuple(map(int, members[1].split(",")))
    if grid := re.match(r"\[\d+,(\d+)\]<=(\[.*)", text):
        return tuple(map(int, _read_devices(grid[2])[: int(grid[1])]))
    if mesh := re.match(r"mesh\[([^\]]*)\](?:, device_ids=\(([^)]*\)?)\))? ?\{([^}]*)\}", text):
        return _read_mesh_group(mesh[1], mesh[2], mesh[3])
    return tuple(range(num_devices))


def _read_devices(text: str) -> np.ndarray:
    """Reads `[4,2]T(1,0)`: arange(8).reshape(4, 2).transpose(1, 0).ravel()."""
    shape, axes = re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text).groups()  # type: ignore[union-attr]
    devices = np.arange(np.prod(_read_sizes(shape))).reshape(_read_sizes(shape))
    return devices.transpose(_read_sizes(axes) if axes else None).ravel()


def _read_mesh_group(axes: str, devices: str | None, taken: str) -> tuple[int, ...]:
    """Reads a group along mesh axes, such as `'a'=4,'b'=8`, `[32]T(0)`, `'a','b':(2)4`.

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
    index = tuple(slice(None) if whole else 0 for whole in inside)
    return tuple(map(int, ids.reshape(shape)[index].ravel()))


def _read_sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]
