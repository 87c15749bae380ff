"""Parses the text of optimised HLO, from `compiled.as_text()`, into instructions.

jaxlib's own HloModule exposes neither the types nor the called computations of an instruction. The
cost of instructions is in `hlo_traffic.py`. Unknown fields of the text are skipped, so that the
output of other compiler versions can be read as well.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

_ARRAY = re.compile(r"\b(?P<dtype>[a-z]\w*)\[(?P<shape>[\d,<=]*)\](?:\{(?P<layout>[^}]*)\})?")
_HEAD = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{$")
_LINE = re.compile(
    r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>.+?) (?P<opcode>[a-z][\w\-]*)"
    r"\((?P<arguments>.*?)\)(?P<attributes>,.*)?$"
)
_CALLED = re.compile(
    r"\b(?P<role>calls|to_apply|body|condition|branch_computations|true_computation|"
    r"false_computation)=\{?(?P<names>%?[\w.\-]+(?:, ?%[\w.\-]+)*)"
)
Groups = tuple[tuple[int, ...], ...]  # of devices, as indices into the program's


class HloArray(NamedTuple):
    """An array in the result of an instruction, without the padding to tiles."""

    dtype: str
    num_elements: int
    in_hbm: bool  # in the device's main memory (HBM), not in on-chip memory

    @property
    def num_bytes(self) -> int:
        """Size in bytes; 0 if the dtype is unknown."""
        return self.num_elements * (count_bits(self.dtype) or 0) // 8


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction: `ROOT %name = type opcode(%operand, ...), attribute=value, ...`."""

    name: str
    opcode: str
    type: str
    operands: tuple[str, ...]
    arguments: str  # text between the parentheses
    attributes: str  # text after the parentheses
    is_root: bool

    @functools.cached_property
    def arrays(self) -> tuple[HloArray, ...]:
        """The result, or the leaves of a result tuple in order."""
        return tuple(_read_array(match) for match in _ARRAY.finditer(self.type))

    @property
    def num_bytes(self) -> int:
        """Size of the result in bytes, in any memory."""
        return sum(array.num_bytes for array in self.arrays)

    @property
    def hbm_bytes(self) -> list[int]:
        """Bytes in HBM of each array of the result."""
        return [array.num_bytes * array.in_hbm for array in self.arrays]

    def attribute(self, pattern: str) -> str | None:
        """The first group of the regular expression `pattern` in the attributes."""
        found = re.search(pattern, self.attributes)
        return found[1] if found else None

    def called(self, *roles: str) -> list[str]:
        """Names of the computations called in these roles: calls, to_apply, body, condition, ..."""
        return [
            name.strip().lstrip("%")
            for match in _CALLED.finditer(self.attributes)
            if match["role"] in roles
            for name in match["names"].split(",")
        ]


Scope = Mapping[str, Instruction]  # a computation: name -> instruction, in order


class HloModule(NamedTuple):
    """A parsed HLO program."""

    entry: str  # name of the computation that is executed
    computations: Mapping[str, Scope]
    num_devices: int


def find_root(scope: Scope) -> Instruction:
    """Returns the instruction that yields the result of the computation."""
    return next(own for own in scope.values() if own.is_root)


def count_bits(dtype: str) -> int | None:
    """Bits per element, read from XLA's name of the dtype (bf16, s4, f8e4m3fn); None: unknown."""
    if dtype in ("token", "opaque"):
        return 0
    found = re.fullmatch(r"(?:bf|[cfsu])(\d+)(?:e\d+m\d+\w*)?", dtype)
    return 8 if dtype == "pred" else int(found[1]) if found else None


def parse_module(text: str) -> HloModule:
    """Parses the text of an HLO module."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = None, None
    for line in text.splitlines():
        if head := _HEAD.match(line):
            current = computations.setdefault(head["name"], {})
            entry = head["name"] if head["entry"] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (found := _LINE.match(line)):
            current[found["name"]] = Instruction(
                name=found["name"],
                opcode=found["opcode"],
                type=found["type"],
                operands=tuple(re.findall(r"%([\w.\-]+)", found["arguments"])),
                arguments=found["arguments"],
                attributes=found["attributes"] or "",
                is_root=found["root"] is not None,
            )
    assert entry is not None, "the text has no ENTRY computation"
    header = text.split("\n", 1)[0]
    counts = re.findall(r"(?:num_partitions|replica_count)=(\d+)", header)
    return HloModule(entry, computations, math.prod(map(int, counts)))


def _read_array(match: re.Match[str]) -> HloArray:
    shape = [int(size.lstrip("<=")) for size in match["shape"].split(",") if size]
    space = re.search(r"S\((\d+)\)", match["layout"] or "")
    return HloArray(match["dtype"], math.prod(shape), space is None or space[1] == "0")


def read_groups(collective: Instruction, num_devices: int) -> Groups:
    """Reads the devices that communicate with each other: lists, a grid, or axes of a mesh."""
    if pairs := collective.attribute(r"source_target_pairs=\{(.*?\})\}"):
        sending = tuple(pair for pair in _read_lists(pairs) if pair[0] != pair[1])
        return sending or ((0,),)
    text = collective.attribute(r"replica_groups=(.*)") or ""
    if lists := re.match(r"\{(\{.*?\})\}", text):
        return _read_lists(lists[1])
    if grid := re.match(r"\[\d+,(\d+)\]<=(\[.*)", text):
        return _to_groups(_read_devices(grid[2]).reshape(-1, int(grid[1])))
    if mesh := re.match(r"mesh\[([^\]]*)\](?:, device_ids=\(([^)]*\)?)\))? ?\{([^}]*)\}", text):
        return _to_groups(_read_mesh_groups(mesh[1], mesh[2], mesh[3]))
    return (tuple(range(num_devices)),)


def _read_lists(text: str) -> Groups:
    return tuple(tuple(_read_sizes(one)) for one in re.findall(r"\{([\d,]+)\}", text))


def _to_groups(rows: np.ndarray) -> Groups:
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
    parts = {
        name: (int(before or 1), int(part or sizes[name]))
        for name, before, part in re.findall(r"'?([\w.\-]+)'?(?::\((\d+)\)(\d+))?", taken)
    }
    shape: list[int] = []
    for name, size in sizes.items():
        before, part = parts.get(name, (size, 1))
        shape += [before, part, size // (before * part)]
    ids = np.arange(np.prod(shape)) if devices is None else _read_devices(devices)
    order = sorted(range(len(shape)), key=lambda axis: axis % 3 == 1)  # the axes of a group last
    return ids.reshape(shape).transpose(order).reshape(-1, math.prod(shape[1::3]))


def _read_sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]
