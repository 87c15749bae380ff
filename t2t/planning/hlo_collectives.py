"""Communication between devices in optimised HLO: kinds, sizes, and who takes part."""

import dataclasses
import re

from t2t.planning.hlo import Instruction, Scope

KINDS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Collective:
    """A communication between devices that is executed `times` times."""

    kind: str
    num_bytes: int  # of a device's operand, or of the result where that is larger
    group_size: int  # devices that take part
    times: int
    overlaps: bool  # asynchronous: products that do not need it are computed meanwhile

    @property
    def sent_bytes(self) -> int:
        """What a device sends in one execution, in a ring of n: a share (n - 1) / n, or twice."""
        n = self.group_size
        if n == 1:
            return 0
        if self.kind in ("collective-permute", "collective-broadcast"):
            return self.num_bytes
        passes = 2 if self.kind == "all-reduce" else 1  # a reduce-scatter, then an all-gather
        return passes * self.num_bytes * (n - 1) // n


def read_collective(own: Instruction, scope: Scope, num_devices: int, times: int) -> Collective:
    """The instruction's, which is one of `KINDS` or the `-start` of one."""
    kind = own.opcode.removesuffix("-start")
    size = sum(array.num_bytes for name in own.operands for array in scope[name].arrays)
    group = _count_group(own, num_devices)
    if kind == "all-gather":
        size *= group
    root = next((i for i in scope.values() if i.is_root), own)
    if kind == "all-reduce" and root.opcode == "dynamic-slice":
        kind = "reduce-scatter"  # a fusion that keeps this device's slice alone
    # The TPU compiler cuts an asynchronous one into a chain of fusions with other work.
    overlaps = own.opcode.endswith("-start") or "chain_id=" in own.attributes
    return Collective(kind, size, group, times, overlaps)


def _count_group(collective: Instruction, num_devices: int) -> int:
    """Devices in a replica group, of which the text has four forms."""
    text = collective.attribute(r"replica_groups=(.*)") or ""
    if mesh := re.match(r"mesh\[([^\]]*)\][^{]*\{([^}]*)\}", text):
        sizes = dict(re.findall(r"'?([\w.\-]+)'?=(\d+)", mesh[1]))
        group = 1
        for axis in mesh[2].split(","):
            name, _, part = axis.strip().replace("'", "").partition(":")
            group *= int(part.split(")")[-1]) if part else int(sizes.get(name, 1))
        return group
    if listed := re.match(r"\[(\d+),(\d+)\]<=", text):
        return int(listed[2])
    if members := re.match(r"\{\{([\d,]+)\}", text):
        return len(members[1].split(","))
    if collective.opcode.startswith("collective-permute"):
        return 2
    return num_devices
