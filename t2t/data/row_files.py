"""Rows of TSV, CSV and JSON files, with the line in which each begins.

Every cell is text as it stands: "NA" is no missing value, "2020-01-01" is no date, and a quote in a
TSV file is a quote.
"""

import csv
import itertools
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from t2t.data.corpus import DataError
from t2t.storage.open_text import PACKED_SUFFIXES, TextError, describe_bad_bytes, open_text

_log = logging.getLogger(__name__)

BLOCK = 1000  # rows read at a time
MANY_BREAKS = 10  # line breaks of a row, from which on a quote of it may not be closed
_SEPARATORS = {".tsv": "\t", ".csv": ","}
SUFFIXES = (*_SEPARATORS, ".jsonl", ".json")
_NAME_WIDTH = 40  # characters shown of a column's name, which may be a sentence


class Block(NamedTuple):
    """Rows that follow each other, by column."""

    columns: Mapping[str, Sequence[Any]]
    numbers: Sequence[int]  # of the rows, from 1
    unit: str = "line"  # what `numbers` count: line | row


def find_suffix(path: Path) -> str:
    """Returns the suffix of a file's name that says its format: ".csv" for "a.CSV.gz"."""
    stem = path.name.lower()
    for suffix in PACKED_SUFFIXES:
        stem = stem.removesuffix(suffix)
    return Path(stem).suffix


def read_blocks(path: Path, names: Sequence[str]) -> Iterator[Block]:
    """Yields the rows of a file.

    `names` are those of the columns that are wanted; if all are numbers, a TSV or CSV file has no
    line of names, and its columns are counted from 0.

    Raises:
        DataError: the file is damaged, or a row of it; the message names the line.
    """
    suffix = find_suffix(path)
    try:
        with open_text(path) as file:
            if suffix in _SEPARATORS:
                has_names = not all(name.isdecimal() for name in names)
                yield from _read_delimited(path, file, _SEPARATORS[suffix], has_names)
            else:
                yield from _read_json(path, file)
    except TextError as error:
        raise DataError(str(error)) from None


def describe_columns(path: Path | None, names: Sequence[str]) -> str:
    """Lists the columns of a file that lacks one, with what may be the reason."""
    found = f"it has {', '.join(_shorten(name) for name in names)}"
    suffix = find_suffix(path) if path else ""
    if suffix not in _SEPARATORS:
        return found
    if len(names) == 1 and (hint := _find_separator(names[0])):
        return f"{found}; {hint}"
    return f"{found}; if that is no line of names, number the columns: data.src_column=0"


def _read_lines(path: Path, file: IO[bytes]) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, line {number}: {describe_bad_bytes(line, error.start)}"
            ) from None
        yield text.removeprefix("\ufeff") if number == 1 else text


def _read_delimited(
    path: Path, file: IO[bytes], separator: str, has_names: bool
) -> Iterator[Block]:
    """Rows of a TSV or CSV file; a blank line is a row of empty cells."""
    rows = _parse_rows(path, file, separator)
    _, row = first = next(rows, (0, [""]))
    names = row if has_names else [str(number) for number in range(max(len(row), 1))]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise DataError(f"{path} has several columns {_shorten(min(repeated))!r}; rename them")
    rows = _check_widths(path, rows if has_names else itertools.chain([first], rows), names)
    block = list(itertools.islice(rows, BLOCK))
    while True:
        cells = zip(*(row for _, row in block), strict=True) if block else ([] for _ in names)
        yield Block(dict(zip(names, cells, strict=True)), [number for number, _ in block])
        block = list(itertools.islice(rows, BLOCK))
        if not block:
            return


def _parse_rows(path: Path, file: IO[bytes], separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the line in which a row begins, and its cells; warns of rows of many lines."""
    reader = csv.reader(
        _read_lines(path, file),
        delimiter=separator,
        quoting=csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE,
        strict=True,
    )
    csv.field_size_limit(sys.maxsize)  # by default 128 KiB
    long = []
    start = 1
    try:
        for row in reader:
            if reader.line_num - start >= MANY_BREAKS:
                long.append(start)
            yield start, row
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(_describe_csv_error(path, start, reader.line_num, str(error))) from None
    if long:
        _log.warning(
            "%s: rows with %d line breaks or more: %d, the first begins in line %d; if a quote "
            "is not closed there, the rows up to the next quote are one pair",
            path, MANY_BREAKS, len(long), long[0],
        )  # fmt: skip


def _check_widths(
    path: Path, rows: Iterable[tuple[int, list[str]]], names: Sequence[str]
) -> Iterator[tuple[int, list[str]]]:
    for start, row in rows:
        if row and len(row) != len(names):
            hint = _find_separator(names[0]) if len(names) == 1 else ""
            raise DataError(
                f"{path}, line {start} has {len(row)} fields instead of {len(names)}; "
                + (hint or "correct the line or remove it")
            )
        yield start, row or [""] * len(names)


def _describe_csv_error(path: Path, start: int, line: int, error: str) -> str:
    if "new-line character" in error:
        return (
            f"{path}, line {line} has a carriage return within it; replace it by a space, or by a "
            "line feed if it ends a row"
        )
    if "unexpected end" in error:
        return (
            f"{path}, line {start}: a quote that opens in this row is never closed, up to the end "
            f"of the file in line {line}; close it, or double it within a quoted cell"
        )
    return (
        f"{path}, line {line}: {error}; in the row that begins in line {start}, double each quote "
        "within a quoted cell"
    )


def _find_separator(line: str) -> str:
    """Returns a hint at another separator, if a line that was not split holds one."""
    for separator, name in (("\t", "tabs"), (";", "semicolons"), ("|", "bars"), (",", "commas")):
        if separator in line:
            return (
                f"its fields seem to be separated by {name}, but those of .csv are separated by "
                "commas and those of .tsv by tabs: convert or rename it"
            )
    return ""


def _read_json(path: Path, file: IO[bytes]) -> Iterator[Block]:
    """Rows of a file of JSON lines, or of one list of objects."""
    lines = _read_lines(path, file)
    first = next(lines, "")
    if first.lstrip().startswith("["):
        text = first + "".join(lines)
        try:
            rows = json.loads(text, object_pairs_hook=_make_object)
        except ValueError as error:
            raise DataError(f"{path} is not JSON: {error}") from None
        yield from _make_blocks(path, enumerate(rows, start=1), "row")
        return
    yield from _make_blocks(path, _parse_lines(path, itertools.chain([first], lines)), "line")


def _parse_lines(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, json.loads(line, object_pairs_hook=_make_object)
            except ValueError as error:
                raise DataError(f"{path}, line {number} is not JSON: {error}") from None


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r} occurs twice")
    return found


def _make_blocks(path: Path, rows: Iterator[tuple[int, Any]], unit: str) -> Iterator[Block]:
    """Blocks of objects; a key that one of them lacks is None there."""
    while block := list(itertools.islice(rows, BLOCK)):
        for number, row in block:
            if not isinstance(row, dict):
                kind = type(row).__name__
                raise DataError(f"{path}, {unit} {number} is no object but {kind}; correct it")
        names = dict.fromkeys(name for _, row in block for name in row)
        columns = {name: [row.get(name) for _, row in block] for name in names}
        yield Block(columns, [number for number, _ in block], unit)


def _shorten(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 3] + "..."
