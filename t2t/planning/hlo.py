"""Reads the text of optimised HLO, as `compiled.as_text()` gives it, into its instructions.

What an instruction costs is in `hlo_cost.py`. Fields of the text that are not needed are skipped,
so that other versions of the compiler, which write others, are read as well.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

_ITEM_BITS = {
    "pred": 8, "bf16": 16, "token": 0, "opaque": 0,
    **{f"{kind}{bits}": bits for kind in "su" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"f{bits}": bits for bits in (16, 32, 64)},
    "c64": 64, "c128": 128,
}  # fmt: skip
_FLOAT8 = re.compile(r"f8e\w+")
_ARRAY = re.compile(r"\b(?P<dtype>[a-z]\w*)\[(?P<shape>[\d,<=]*)\](?:\{(?P<layout>[^}]*)\})?")
_MEMORY_SPACE = re.compile(r"S\((\d+)\)")
_HEAD = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{$")
_LINE = re.compile(
    r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>.+?) (?P<opcode>[a-z][\w\-]*)\("
)
_CALLED = re.compile(
    r"\b(?P<role>calls|to_apply|body|condition|branch_computations|true_computation|"
    r"false_computation)=\{?(?P<names>%?[\w.\-]+(?:, ?%[\w.\-]+)*)"
)


@dataclasses.dataclass(frozen=True)
class Array:
    """An array's type; `memory_space` 0 is the device's large memory, others are on the chip."""

    dtype: str
    shape: tuple[int, ...]
    memory_space: int = 0

    @property
    def num_bytes(self) -> int:
        """Size without the padding of tiles."""
        bits = 8 if _FLOAT8.fullmatch(self.dtype) else _ITEM_BITS[self.dtype]
        return math.prod(self.shape) * bits // 8


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line: `ROOT %name = type opcode(%operand, ...), attribute=value, ...`."""

    name: str
    opcode: str
    type: str
    operands: tuple[str, ...]
    arguments: str  # what stands between the parentheses
    attributes: str  # what follows them
    is_root: bool

    @property
    def arrays(self) -> list[Array]:
        """The result, or those of a tuple, in order, without their nesting."""
        return list(read_arrays(self.type))

    def attribute(self, pattern: str) -> str | None:
        """The first group of `pattern` in the attributes."""
        found = re.search(pattern, self.attributes)
        return found[1] if found else None

    def called(self, *roles: str) -> list[str]:
        """Computations that it calls in these roles: calls, to_apply, body, condition ..."""
        return [
            name.strip().lstrip("%")
            for match in _CALLED.finditer(self.attributes)
            if match["role"] in roles
            for name in match["names"].split(",")
        ]

    @property
    def origin(self) -> str:
        """The line of the traced program that it comes from, as JAX names it; may be empty."""
        return self.attribute(r'op_name="([^"]*)"') or ""


Scope = Mapping[str, Instruction]  # the instructions of a computation by name, in their order


@dataclasses.dataclass(frozen=True)
class Module:
    """A program."""

    entry: str  # the computation that is executed
    computations: Mapping[str, Scope]
    num_devices: int

    def root(self, computation: str) -> Instruction:
        """The instruction whose result is the computation's."""
        return next(i for i in self.computations[computation].values() if i.is_root)


def parse_module(text: str) -> Module:
    """Raises ValueError: the text has no entry computation, so it is no HLO module."""
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
        raise ValueError("the text holds no ENTRY computation; it is no HLO module")
    header = text.split("\n", 1)[0]
    counts = re.findall(r"(?:num_partitions|replica_count)=(\d+)", header)
    return Module(entry, computations, math.prod(map(int, counts)))


def read_arrays(type_text: str) -> Iterator[Array]:
    """All arrays in the text of a type."""
    for match in _ARRAY.finditer(type_text):
        if match["dtype"] in _ITEM_BITS or _FLOAT8.fullmatch(match["dtype"]):
            space = _MEMORY_SPACE.search(match["layout"] or "")
            shape = tuple(int(size.lstrip("<=")) for size in match["shape"].split(",") if size)
            yield Array(match["dtype"], shape, int(space[1]) if space else 0)


def _parse_line(line: str) -> Instruction | None:
    match = _LINE.match(line)
    if match is None:
        return None
    end = _find_closing(line, match.end())
    arguments = line[match.end() : end]
    return Instruction(
        name=match["name"],
        opcode=match["opcode"],
        type=match["type"],
        operands=tuple(re.findall(r"%([\w.\-]+)", arguments)),
        arguments=arguments,
        attributes=line[end + 1 :],
        is_root=match["root"] is not None,
    )


def _find_closing(line: str, start: int) -> int:
    """Where the parenthesis closes that opened before `start`."""
    depth = 1
    for index in range(start, len(line)):
        depth += (line[index] == "(") - (line[index] == ")")
        if depth == 0:
            return index
    return len(line)
