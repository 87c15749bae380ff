"""Measures the tests: puts faults into t2t/, one at a time, and says which test catches each.

    python -m scripts.plant_faults --map=map.json --record=faults.json --output=before.tsv
    python -m scripts.plant_faults --map=map.json --replay=faults.json --output=after.tsv

A fault is a changed operator, comparison or constant, a negated condition, a dropped statement or
two swapped arguments, in a line that a test executes. The tests of each fault are the test files
that execute its line, nearest first; the first failure ends them. Everything happens in temporary
copies of the tree. Python 3.12 or newer; the map takes as long as the quick tests, file by file.
"""

import argparse
import ast
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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
# A fault in a message is none, and neither are two arguments of these in another order.
MESSAGES = {"critical", "debug", "error", "exception", "info", "log", "print", "warn", "warning"}
SYMMETRIC = {"allclose", "array_equal", "gcd", "max", "maximum", "min", "minimum"}


@dataclasses.dataclass(frozen=True)
class Fault:
    """A change of one statement, which is found again by its text."""

    file: str  # from the root of the tree
    line: int
    statement: str  # the source; of a compound statement, its head
    offset: int  # of the change in the statement
    before: str
    after: str


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that can hold a fault, without messages, asserts, types and __repr__."""
    if isinstance(node, ast.Assert | ast.JoinedStr) or getattr(node, "name", "") == "__repr__":
        return
    if isinstance(node, ast.Call) and _name(node) in MESSAGES:
        return
    yield node
    if isinstance(node, ast.Raise):  # as a whole
        return
    typed = isinstance(node, ast.AnnAssign | ast.arg)
    for field, value in ast.iter_fields(node):
        if (typed and field == "annotation") or field in ("returns", "decorator_list", "args"):
            if not isinstance(node, ast.Call):
                continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child)


def find_faults(source: str, file: str) -> list[tuple[range, Fault]]:
    """All faults of the functions in a file, and the lines of each."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    raw = source.encode()

    def place(node: Any) -> tuple[int, int]:
        return (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(start: int, end: int) -> str:
        return raw[start:end].decode()

    def change(node: Any) -> Iterator[tuple[int, int, str]]:
        """Start, end and new text of each change of one node."""
        pairs: list[tuple[Any, Any, Any]] = []
        match node:
            case ast.BinOp(left=left, op=op, right=right):
                if not any(isinstance(side, ast.JoinedStr) for side in (left, right)):
                    pairs = [(left, op, right)]
            case ast.Compare(left=left, ops=ops, comparators=[*rights]):
                pairs = list(zip([left, *rights], ops, rights, strict=False))
            case ast.BoolOp(op=op, values=[first, second, *others]):
                pairs = [] if others else [(first, op, second)]
            case ast.Constant(value=bool() as value):
                yield *place(node), str(not value)
            case ast.Constant(value=int() | float() as value):
                yield *place(node), repr(value + 1 if isinstance(value, int) else 2 * value or 1.0)
            case ast.If(test=test) | ast.IfExp(test=test):
                start, end = place(test)
                yield start, end, f"(not ({text(start, end)}))"
            case ast.Expr(value=ast.Call() as call) if _name(call) not in MESSAGES:
                yield *place(node), "pass"
            case ast.Raise() | ast.AugAssign():
                yield *place(node), "pass"
            case ast.Call(args=[first, second, *_]) if _name(node) not in SYMMETRIC:
                (start, middle), (resumed, end) = place(first), place(second)
                one, between, other = text(start, middle), text(middle, resumed), text(resumed, end)
                if type(first) is type(second) and one != other:
                    yield start, end, other + between + one
        for left, op, right in pairs:
            if type(op) in OPERATORS:
                start, end = place(left)[1], place(right)[0]
                old, new = OPERATORS[type(op)]
                where = start + re.sub(r"#.*", lambda x: " " * len(x[0]), text(start, end)).find(old)
                yield where, where + len(old), new

    found: list[tuple[range, Fault]] = []
    functions = [x for x in ast.walk(ast.parse(source)) if isinstance(x, ast.FunctionDef)]
    inner = {id(y) for x in functions for y in ast.walk(x) if x is not y}
    for function in functions:
        if id(function) in inner or function.name == "__repr__":
            continue
        statement: Any = function
        for node in (x for part in function.body for x in _walk(part)):
            if isinstance(node, ast.stmt):
                statement = node
            begin, finish = place(statement)
            if body := getattr(statement, "body", None):
                finish = place(body[0])[0]
            for start, end, new in change(node):
                if not begin <= start <= end <= finish:
                    continue
                lines = range(node.lineno, node.end_lineno + 1)  # type: ignore[attr-defined]
                if isinstance(node, ast.If | ast.IfExp):
                    lines = range(node.test.lineno, (node.test.end_lineno or 0) + 1)
                line = raw.count(b"\n", 0, start) + 1
                offset, whole = len(text(begin, start)), text(begin, finish).rstrip()
                found.append((lines, Fault(file, line, whole, offset, text(start, end), new)))
    return found


def plant(source: str, fault: Fault) -> tuple[str, int] | None:
    """The source with the fault, and its line; None if the statement is gone."""
    places = [found.start() for found in re.finditer(re.escape(fault.statement), source)]
    if not places:
        return None
    line_of = lambda place: source.count("\n", 0, place + fault.offset) + 1  # noqa: E731
    start = min(places, key=lambda place: abs(line_of(place) - fault.line)) + fault.offset
    end = start + len(fault.before)
    return source[:start] + fault.after + source[end:], line_of(start - fault.offset)


def record_lines(output: str) -> None:
    """Writes each line of t2t/ that a test executes in this process or in a fork of it."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    folder = f"{ROOT}/t2t/"

    def write(code: CodeType, line: int) -> Any:
        if not code.co_filename.startswith(folder):
            return sys.monitoring.DISABLE
        if "PYTEST_CURRENT_TEST" not in os.environ:
            return None
        with contextlib.suppress(OSError):  # from a program whose disk is full
            os.write(descriptor, f"{code.co_filename[len(str(ROOT)) + 1 :]}:{line}\n".encode())
        return sys.monitoring.DISABLE

    sys.monitoring.use_tool_id(sys.monitoring.COVERAGE_ID, "lines")
    sys.monitoring.register_callback(
        sys.monitoring.COVERAGE_ID, sys.monitoring.events.LINE, write
    )
    sys.monitoring.set_events(sys.monitoring.COVERAGE_ID, sys.monitoring.events.LINE)


def test(tree: Path, files: list[str], limit: float) -> tuple[str, float]:
    """Runs test files until one test fails; returns its name ("" if all pass), and seconds."""
    started = time.monotonic()
    options = ["-x", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-W", "ignore::ResourceWarning"]
    environment = os.environ | {"PYTHONPATH": str(tree), "T2T_TEST_SHAPES": "unchecked"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=tree, env=environment, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit)
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        caught = failed[1] if failed else f"exit status {process.returncode}"
        if process.returncode in (0, 5):  # all passed, or all are slow tests
            caught = ""
    except subprocess.TimeoutExpired:
        caught = f"timeout after {limit:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return caught, time.monotonic() - started


def digest(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def make_map(cached: dict[str, Any], each: Callable[..., Iterator[Any]]) -> dict[str, Any]:
    """For each test file: the lines that it executes, its seconds, and its failure, if any."""
    library = sorted((ROOT / "t2t").rglob("*.py"))
    keys = {
        str(path.relative_to(ROOT)): digest(*library, path)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
    }

    def measure(tree: Path, file: str) -> tuple[str, dict[str, Any]]:
        output = tree / "lines.txt"
        command = f"from scripts.plant_faults import record_lines\nrecord_lines({str(output)!r})\n"
        (tree / "sitecustomize.py").write_text(command)
        failed, seconds = test(tree, [file], 1800)
        lines: dict[str, list[int]] = {}
        for row in sorted({*output.read_text().splitlines()} if output.exists() else ()):
            path, _, number = row.rpartition(":")
            lines.setdefault(path, []).append(int(number))
        output.unlink(missing_ok=True)
        (tree / "sitecustomize.py").unlink()
        print(f"{file}: {seconds:.0f} s {failed}", file=sys.stderr, flush=True)
        return file, {"key": keys[file], "seconds": seconds, "failed": failed, "lines": lines}

    kept = {file: cached[file] for file, key in keys.items() if cached.get(file, {}).get("key") == key}
    return kept | dict(each(measure, [file for file in keys if file not in kept]))


def sort_tests(fault: Fault, lines: range, tests: dict[str, Any]) -> list[str]:
    """The test files that execute a line of the fault: of its own folder first, quick ones first."""
    folder = Path(fault.file).parent.name
    return sorted(
        (
            name
            for name, entry in tests.items()
            if not entry["failed"] and not {*lines}.isdisjoint(entry["lines"].get(fault.file, []))
        ),
        key=lambda name: (Path(name).parent.name != folder, tests[name]["seconds"]),
    )


def choose_faults(number: int, seed: int, tests: dict[str, Any]) -> list[Fault]:
    """Faults in different lines, each of which a test executes; the same for the same map."""
    lines: dict[tuple[str, int], list[Fault]] = {}
    for path in sorted((ROOT / "t2t").rglob("*.py")):
        file = str(path.relative_to(ROOT))
        for places, fault in find_faults(path.read_text("utf-8"), file):
            if sort_tests(fault, places, tests):
                lines.setdefault((file, fault.line), []).append(fault)
    generator = random.Random(seed)
    return [generator.choice(lines[key]) for key in generator.sample(sorted(lines), number)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--number", type=int, default=40, help="how many faults (default 40)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the faults (default 0)")
    parser.add_argument("--map", type=Path, help="keeps which test file executes which line")
    parser.add_argument("--record", type=Path, help="writes the faults to this file")
    parser.add_argument("--replay", type=Path, help="takes the faults from a record")
    parser.add_argument("--output", type=Path, help="writes the table (default: to stdout alone)")
    parser.add_argument("--jobs", type=int, default=1, help="trees that are tested at a time")
    parser.add_argument(
        "--limit", type=float, default=600,
        help="seconds for the tests of a fault beyond three times their usual ones; a fault whose "
        "tests take longer counts as caught (default 600)",
    )  # fmt: skip
    flags = parser.parse_args()
    with contextlib.ExitStack() as stack:
        trees: queue.Queue[Path] = queue.Queue()
        for _ in range(flags.jobs):
            tree = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "tree"
            ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "*_cache", "runs")
            shutil.copytree(ROOT, tree, ignore=ignored, symlinks=True)
            trees.put(tree)
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(flags.jobs))

        def each(function: Callable[[Path, Any], Any], items: list[Any]) -> Iterator[Any]:
            """Calls the function with each item, and with a tree that nobody else uses."""

            def call(item: Any) -> Any:
                tree = trees.get()
                try:
                    return function(tree, item)
                finally:
                    trees.put(tree)

            return pool.map(call, items)

        cached = json.loads(flags.map.read_text()) if flags.map and flags.map.exists() else {}
        tests = make_map(cached, each)
        if flags.map:
            flags.map.write_text(json.dumps(tests))
        if flags.replay:
            faults = [Fault(**fields) for fields in json.loads(flags.replay.read_text())]
        else:
            faults = choose_faults(flags.number, flags.seed, tests)
        if flags.record:
            flags.record.write_text(json.dumps([dataclasses.asdict(x) for x in faults], indent=1))

        def judge(tree: Path, fault: Fault) -> str:
            path, original = tree / fault.file, ROOT / fault.file
            source = original.read_text("utf-8") if original.exists() else ""
            planted = plant(source, fault)
            if planted is None:
                return "STATEMENT IS GONE\t0"
            changed, line = planted
            files = sort_tests(fault, range(line, line + 1), tests)
            path.write_text(changed, "utf-8")
            caught, seconds, near = "", 0.0, [x for x in files if tests[x]["seconds"] < 30][:4]
            for group in (near, [x for x in files if x not in near]):
                if group and not caught:
                    usual = sum(tests[name]["seconds"] for name in group)
                    caught, more = test(tree, group, 3 * usual + flags.limit)
                    seconds += more
            path.write_text(source, "utf-8")
            return f"{caught or 'NOT CAUGHT'}\t{seconds:.0f}"

        rows = []
        for number, (fault, result) in enumerate(zip(faults, each(judge, faults), strict=True), 1):
            before, after = (" ".join(x.split()) for x in (fault.before, fault.after))
            rows.append(f"{fault.file}\t{fault.line}\t{before} -> {after}\t{result}")
            print(f"{number}/{len(faults)}\t{rows[-1]}", flush=True)
            if flags.output:
                flags.output.write_text("\n".join(["file\tline\tfault\tcaught by\tseconds", *rows]) + "\n")
    missed = sum("NOT CAUGHT" in row for row in rows)
    print(f"{len(rows) - missed} of {len(rows)} faults were caught")


if __name__ == "__main__":
    main()
