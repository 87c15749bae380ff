"""Measures the tests: puts faults into t2t/, one at a time, and says which test catches each.

    python -m scripts.plant_faults --map=map.json --record=faults.json --output=before.tsv
    python -m scripts.plant_faults --map=map.json --replay=faults.json --output=after.tsv

A fault is a changed operator, comparison or constant, a negated condition, a dropped statement or
two swapped arguments, in a function that a test executes. Messages, asserts and types have none.
The tests of a fault are the test files that execute its statement, nearest first; the first failure
ends them. Everything happens in temporary copies of the tree. Python 3.12 or newer. The first call
makes a map of the lines that each test file executes, which takes as long as the quick tests, file
by file; later calls take it from --map, and measure only files that have changed.
"""

import argparse
import ast
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).parents[1]
OPERATORS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
    ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
MESSAGES = {"critical", "debug", "error", "exception", "info", "log", "print", "warn", "warning"}
SYMMETRIC = {"allclose", "array_equal", "gcd", "max", "maximum", "min", "minimum"}
GONE = "the statement is gone"
NEAR = 4  # quick test files of the same folder, which run before all others


@dataclasses.dataclass(frozen=True)
class Fault:
    """A change of one statement, which is found again by its text."""

    file: str  # from the root of the tree
    line: int  # where the statement begins
    statement: str  # the source; of a compound statement, its head
    offset: int  # of the change in the statement
    before: str
    after: str


class _Source:
    def __init__(self, text: str):
        self.raw = text.encode()
        self.starts = [0, *itertools.accumulate(map(len, self.raw.splitlines(keepends=True)))]

    def span(self, node: Any) -> tuple[int, int]:
        begin = self.starts[node.lineno - 1] + node.col_offset
        return begin, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, begin: int, end: int) -> str:
        return self.raw[begin:end].decode()


def _name(node: Any) -> str:
    """The function that is called, without its module or object."""
    called = getattr(node, "func", None)
    return getattr(called, "attr", getattr(called, "id", ""))


def _change_operators(source: _Source, node: ast.AST) -> Iterator[tuple[int, int, str]]:
    operands, operators = list[Any](), list[Any]()
    match node:
        case ast.BinOp(left=left, right=right) if not isinstance(left, ast.JoinedStr):
            operands, operators = [left, right], [node.op]
        case ast.BoolOp(values=[_, _]):
            operands, operators = node.values, [node.op]
        case ast.Compare():
            operands, operators = [node.left, *node.comparators], node.ops
    for number, (left, right) in enumerate(itertools.pairwise(operands)):
        if type(operators[number]) in OPERATORS:
            old, new = OPERATORS[type(operators[number])]
            begin, end = source.span(left)[1], source.span(right)[0]
            begin += re.sub("#.*", "", source.text(begin, end)).index(old)
            yield begin, begin + len(old), new


def _change(source: _Source, node: Any) -> Iterator[tuple[int, int, str]]:
    """Begin, end and new text of each change of a node, without those of its children."""
    yield from _change_operators(source, node)
    match node:
        case ast.Constant(value=bool() as value):
            yield *source.span(node), str(not value)
        case ast.Constant(value=int() as value):
            yield *source.span(node), str(value + 1)
        case ast.Constant(value=float() as value):
            yield *source.span(node), str(2 * value or 1.0)
        case ast.If(test=test) | ast.IfExp(test=test):
            yield *source.span(test), f"(not ({source.text(*source.span(test))}))"
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign():
            yield *source.span(node), "pass"
        case ast.Call(args=[first, second, *_]) if _name(node) not in SYMMETRIC:
            (begin, middle), (resumed, end) = source.span(first), source.span(second)
            one, other = source.text(begin, middle), source.text(resumed, end)
            if type(first) is type(second) and one != other:
                yield begin, end, other + source.text(middle, resumed) + one


def _list_children(node: ast.AST) -> Iterator[ast.AST]:
    """The parts that can hold a fault, without messages, types and defaults of arguments."""
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            is_code = isinstance(child, ast.AST) and field not in ("annotation", "returns")
            is_message = _name(getattr(child, "value", child)) in MESSAGES
            skipped = isinstance(child, ast.Assert | ast.JoinedStr | ast.arguments)
            skipped |= getattr(child, "name", "") == "__repr__"
            if is_code and not is_message and not skipped:
                yield child


def find_faults(text: str, file: str) -> list[Fault]:
    """All faults of the functions of a file."""
    source, found = _Source(text), list[Fault]()

    def visit(node: ast.AST, statement: Any) -> None:
        if isinstance(node, ast.stmt) and (statement or isinstance(node, ast.FunctionDef)):
            statement = node
        if statement:
            first, last = source.span(statement)
            if body := getattr(statement, "body", None):
                last = source.span(body[0])[0]
            for begin, end, new in _change(source, node):
                if first <= begin <= end <= last:
                    whole, old = source.text(first, last).rstrip(), source.text(begin, end)
                    offset = len(source.text(first, begin))
                    found.append(Fault(file, statement.lineno, whole, offset, old, new))
        for child in _list_children(node) if not isinstance(node, ast.Raise) else ():
            visit(child, statement)

    visit(ast.parse(text), None)
    return found


def plant(source: str, fault: Fault) -> tuple[str, int] | None:
    """The source with the fault, and the line of its statement; None if there is none of them."""
    places = [found.start() for found in re.finditer(re.escape(fault.statement), source)]
    lines = {source.count("\n", 0, place) + 1: place for place in places}
    if not lines:
        return None
    line = min(lines, key=lambda line: abs(line - fault.line))
    begin = lines[line] + fault.offset
    return source[:begin] + fault.after + source[begin + len(fault.before) :], line


def record_lines(output: str) -> None:
    """Writes each line of t2t/ that a test executes in this process or in a fork of it."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    monitor: Any = getattr(sys, "monitoring", None)  # Python 3.11 has none
    prefix = len(f"{ROOT}/")

    def write(code: CodeType, line: int) -> Any:
        if not code.co_filename.startswith(f"{ROOT}/t2t/"):
            return monitor.DISABLE
        if "PYTEST_CURRENT_TEST" not in os.environ:  # an import; a test may call it later
            return None
        with contextlib.suppress(OSError):  # in a program whose disk is full
            os.write(descriptor, f"{code.co_filename[prefix:]}:{line}\n".encode())
        return monitor.DISABLE

    monitor.use_tool_id(monitor.COVERAGE_ID, "lines")
    monitor.register_callback(monitor.COVERAGE_ID, monitor.events.LINE, write)
    monitor.set_events(monitor.COVERAGE_ID, monitor.events.LINE)


def run_tests(tree: Path, files: list[str], limit: float) -> tuple[str, float]:
    """Runs test files up to a failure; returns which ("" if all pass), and the seconds."""
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-x", "--tb=no", "-rfE", "-p", "no:cacheprovider", *files],
        cwd=tree, text=True, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(tree), "T2T_TEST_SHAPES": "unchecked"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit)
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        caught = failed[1] if failed else f"exit status {process.returncode}"
        caught = "" if process.returncode in (0, 5) else caught  # 5: there is no quick test
    except subprocess.TimeoutExpired:
        caught = f"timeout after {limit:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return caught, time.monotonic() - started


def measure(tree: Path, file: str) -> dict[str, Any]:
    """The lines that a test file executes, its seconds, and its failure, if any."""
    output = tree / "lines.txt"
    command = f"from scripts.plant_faults import record_lines\nrecord_lines({str(output)!r})\n"
    (tree / "sitecustomize.py").write_text(command)
    failed, seconds = run_tests(tree, [file], 1800)
    lines: dict[str, list[int]] = {}
    for row in {*output.read_text().splitlines()} if output.exists() else ():
        path, _, number = row.rpartition(":")
        lines.setdefault(path, []).append(int(number))
    output.unlink(missing_ok=True)
    (tree / "sitecustomize.py").unlink()
    print(f"{file}: {seconds:.0f} s {failed}", file=sys.stderr, flush=True)
    return {"failed": failed, "seconds": seconds, "lines": lines}


def list_tests(file: str, line: int, tests: dict[str, Any]) -> list[str]:
    """The test files that execute a line: of its own folder first, quick ones first."""
    folder = Path(file).parent.name
    passing = (name for name, own in tests.items() if line in own["lines"].get(file, ()))
    return sorted(
        (name for name in passing if not tests[name]["failed"]),
        key=lambda name: (Path(name).parent.name != folder, tests[name]["seconds"]),
    )


def judge(tree: Path, fault: Fault, tests: dict[str, Any], limit: float) -> str:
    """Says which test catches a fault, and after how many seconds."""
    path = tree / fault.file
    source = path.read_text("utf-8") if path.exists() else ""
    planted = plant(source, fault)
    if planted is None:
        return f"{GONE}\t0"
    path.write_text(planted[0], "utf-8")
    files, caught, seconds = list_tests(fault.file, planted[1], tests), "", 0.0
    near = [name for name in files if tests[name]["seconds"] < 30][:NEAR]
    for group in (near, [name for name in files if name not in near]):
        if group and not caught:
            usual = sum(tests[name]["seconds"] for name in group)
            caught, more = run_tests(tree, group, 3 * usual + limit)
            seconds += more
    path.write_text(source, "utf-8")
    return f"{caught or 'NOT CAUGHT'}\t{seconds:.0f}"


def make_map(path: Path, library: str, tree: Path) -> dict[str, Any]:
    """Lines that each test file executes, by `measure`; runs only files that the map lacks."""
    known = json.loads(path.read_text()) if path.exists() else {}
    kept: dict[str, Any] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        key = hashlib.sha256((library + file.read_text("utf-8")).encode()).hexdigest()
        name = str(file.relative_to(ROOT))
        kept[name] = known.get(name)
        if not kept[name] or kept[name]["key"] != key:
            kept[name] = measure(tree, name) | {"key": key}
            path.write_text(json.dumps(known | kept))
    return kept


def draw_faults(sources: dict[str, str], number: int, seed: int, tests: Any) -> list[Fault]:
    """Faults of different statements that tests execute; the same for the same tree and seed."""
    found: dict[tuple[str, int], list[Fault]] = {}
    for file, source in sources.items():
        for fault in find_faults(source, file):
            if list_tests(file, fault.line, tests):
                found.setdefault((file, fault.line), []).append(fault)
    draw = random.Random(seed)
    return [draw.choice(found[key]) for key in draw.sample([*found], number)]


def main() -> None:
    """Does what the docstring of the module says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--number", type=int, default=40, help="of faults (default 40)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice (default 0)")
    parser.add_argument("--map", type=Path, required=True, help="keeps the lines of each test file")
    parser.add_argument("--record", type=Path, help="writes the faults to this file")
    parser.add_argument("--replay", type=Path, help="takes the faults from a record")
    parser.add_argument("--output", type=Path, required=True, help="the table")
    parser.add_argument(
        "--limit", type=float, default=600, help="seconds beyond three times the usual ones, after "
        "which tests are killed; the fault counts as caught (default 600)",
    )  # fmt: skip
    flags = parser.parse_args()
    if not hasattr(sys, "monitoring"):
        parser.error("this needs Python 3.12 or newer, which says what lines are executed")
    paths = sorted((ROOT / "t2t").rglob("*.py"))
    sources = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths}
    with tempfile.TemporaryDirectory() as folder:
        ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", "runs")
        tree = Path(shutil.copytree(ROOT, Path(folder, "tree"), ignore=ignored, symlinks=True))
        tests = make_map(flags.map, "".join(sources.values()), tree)
        if flags.replay:
            faults = [Fault(**fields) for fields in json.loads(flags.replay.read_text())]
        else:
            faults = draw_faults(sources, flags.number, flags.seed, tests)
        if flags.record:
            flags.record.write_text(json.dumps([*map(dataclasses.asdict, faults)], indent=1))
        rows = ["file\tline\tfault\tcaught by\tseconds"]
        for fault in faults:
            result = judge(tree, fault, tests, flags.limit)
            change = " -> ".join(" ".join(x.split()) for x in (fault.before, fault.after))
            rows.append(f"{fault.file}\t{fault.line}\t{change}\t{result}")
            print(f"{len(rows) - 1} of {len(faults)}\t{rows[-1]}", flush=True)
            flags.output.write_text("\n".join(rows) + "\n")
    missed, gone = (sum(f"\t{x}\t" in row for row in rows) for x in ("NOT CAUGHT", GONE))
    print(f"{len(faults) - missed - gone} of {len(faults) - gone} faults were caught")


if __name__ == "__main__":
    main()
