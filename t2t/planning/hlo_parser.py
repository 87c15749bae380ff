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

_NO_DATA = {"token", "opaque"}
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


@dataclasses.dataclass(frozen=True)
class HloArray:
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

    @property
    def origin(self) -> str:
        """JAX's name of the traced operation that the instruction comes from; may be empty."""
        return self.attribute(r'op_name="([^"]*)"') or ""


Scope = Mapping[str, Instruction]  # a computation: name -> instruction, in order


@dataclasses.dataclass(frozen=True)
class HloModule:
    """A parsed HLO program."""

    entry: str  # name of the computation that is executed
    computations: Mapping[str, Scope]
    num_devices: int

    def root(self, computation: str) -> Instruction:
        """The instruction that yields the result of the computation."""
        return next(i for i in self.computations[computation].values() if i.is_root)


def count_bits(dtype: str) -> int | None:
    """Bits per element, read from XLA's name of the dtype (bf16, s4, f8e4m3fn); None: unknown."""
    if dtype in _NO_DATA:
        return 0
    found = re.fullmatch(r"(?:bf|[cfsu])(\d+)(?:e\d+m\d+\w*)?", dtype)
    return 8 if dtype == "pred" else int(found[1]) if found else None


def parse_module(text: str) -> HloModule:
    """Parses the text of an HLO module.

    Raises:
        ValueError: the text has no ENTRY computation.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = None, None
    for line in text.splitlines():
        if head := _HEAD.match(line):
            current = computations.setdefault(head["name"], {})
            entry = head["name"] if head["entry"] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (instruction := _parse_line(line)):
            current[instruction.name] = instruction
    if entry is None:
        raise ValueError("the text has no ENTRY computation; it is no HLO module")
    header = text.split("\n", 1)[0]
    counts = re.findall(r"(?:num_partitions|replica_count)=(\d+)", header)
    return HloModule(entry, computations, math.prod(map(int, counts)))


def _read_array(match: re.Match[str]) -> HloArray:
    shape = [int(size.lstrip("<=")) for size in match["shape"].split(",") if size]
    space = re.search(r"S\((\d+)\)", match["layout"] or "")
    return HloArray(match["dtype"], math.prod(shape), space is None or space[1] == "0")


def _parse_line(line: str) -> Instruction | None:
    match = _LINE.match(line)
    return match and Instruction(
        name=match["name"],
        opcode=match["opcode"],
        type=match["type"],
        operands=tuple(re.findall(r"%([\w.\-]+)", match["arguments"])),
        arguments=match["arguments"],
        attributes=match["attributes"] or "",
        is_root=match["root"] is not None,
    )
