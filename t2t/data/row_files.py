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

MANY_BREAKS = 10  # line breaks of a row, from which on a quote of it may not be closed
_SEPARATORS = {".tsv": "\t", ".csv": ","}
JSON_SUFFIXES = (".jsonl", ".json")
SUFFIXES = (*_SEPARATORS, *JSON_SUFFIXES)
# What to do about a TSV file with the quotes of CSV.
UNQUOTE = "write it as .csv: csv.writer(new).writerows(csv.reader(old, delimiter='\\t'))"
_WIDTH = 40  # characters shown of a column's name, which may be a sentence, and of a value
_KINDS = {list: "a list", str: "text", bool: "true or false", type(None): "null"}  # of JSON


class TableRow(NamedTuple):
    """A row: its place, for messages, and its cells by column."""

    place: str  # such as "a.tsv, line 3"
    cells: Mapping[str, Any]


def find_suffix(path: Path) -> str:
    """Returns the suffix of a file's name that says its format: ".csv" for "a.CSV.gz"."""
    stem = path.name.lower()
    for suffix in PACKED_SUFFIXES:
        stem = stem.removesuffix(suffix)
    return Path(stem).suffix


def is_in_quotes(cell: str) -> bool:
    """Returns whether a text stands in quotes, as a writer of CSV would put it."""
    is_enclosed = len(cell) > 1 and cell[0] == cell[-1] == '"'
    return is_enclosed and '"' not in cell[1:-1].replace('""', "")


def has_doubled_quotes(cell: str) -> bool:
    """Returns whether a writer of CSV has put a text in quotes because it has quotes.

    Within they are doubled, which they hardly ever are in text that merely stands in quotes.
    """
    return '""' in cell[1:-1] and is_in_quotes(cell)


def read_rows(path: Path, names: Sequence[str]) -> Iterator[TableRow]:
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
                yield from _read_json(path, file, names)
    except TextError as error:
        raise DataError(str(error)) from None


def describe_columns(file: str, names: Sequence[str]) -> str:
    """Lists the columns of a file that lacks one, with what may be the reason."""
    found = f"it has {', '.join(shorten(name) for name in names)}"
    if find_suffix(Path(file)) not in _SEPARATORS:
        return found
    if len(names) == 1 and (hint := _find_separator(names[0])):
        return f"{found}; {hint}"
    if all(name[:1] == name[-1:] == '"' for name in names):
        return f"{found}; their quotes are part of a TSV file's text: {UNQUOTE}"
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
) -> Iterator[TableRow]:
    """Rows of a TSV or CSV file; a blank line is a row of empty cells."""
    reader = csv.reader(
        _read_lines(path, file),
        delimiter=separator,
        quoting=csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE,
        strict=True,
    )
    csv.field_size_limit(sys.maxsize)  # by default 128 KiB
    start = 1  # line in which the next row begins
    long = []  # lines in which rows of many lines begin
    quoted = []  # lines in which rows with a cell in quotes begin, of a TSV file
    try:
        names = next(reader, [""]) if has_names else []
        if has_names and not names:
            raise DataError(
                f"{path}, line 1 is blank; it has to name the columns, such as en and de"
            )
        if repeated := {name for name in names if names.count(name) > 1}:
            raise DataError(f"{path} has several columns {shorten(min(repeated))!r}; rename them")
        start = reader.line_num + 1
        for row in reader:
            names = names or [str(number) for number in range(max(len(row), 1))]
            if row and len(row) != len(names):
                hint = _find_separator(names[0]) if len(names) == 1 else ""
                if separator == "\t" and any(cell.count('"') % 2 for cell in row):
                    hint = f"if a cell in quotes holds the separator or a line end, {UNQUOTE}"
                raise DataError(
                    f"{path}, line {start} has {len(row)} fields instead of {len(names)}; "
                    + (hint or "correct the line or remove it")
                )
            if reader.line_num - start >= MANY_BREAKS:
                long.append(start)
            if separator == "\t" and any(map(has_doubled_quotes, row)):
                quoted.append(start)
            cells = row or [""] * len(names)
            yield TableRow(f"{path}, line {start}", dict(zip(names, cells, strict=True)))
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(_describe_csv_error(path, start, reader.line_num, str(error))) from None
    _warn_of_quotes(path, long, quoted)


def _warn_of_quotes(path: Path, long: list[int], quoted: list[int]) -> None:
    """Warns of rows of many lines, and of cells in quotes, by the lines in which rows begin."""
    if long:
        _log.warning(
            "%s: rows with %d line breaks or more: %d, the first begins in line %d; if a quote "
            "is not closed there, the rows up to the next quote are one pair",
            path, MANY_BREAKS, len(long), long[0],
        )  # fmt: skip
    if quoted:
        _log.warning(
            "%s: rows with a cell in quotes, in which quotes are doubled: %d, the first begins in "
            "line %d; quotes of a TSV file are part of the text: if pandas or csv.writer wrote "
            "it, %s",
            path, len(quoted), quoted[0], UNQUOTE,
        )  # fmt: skip


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


def _read_json(path: Path, file: IO[bytes], names: Sequence[str]) -> Iterator[TableRow]:
    """Rows of a file of JSON lines, or of one list of objects; blank lines are skipped."""
    lines = enumerate(_read_lines(path, file), start=1)
    filled = ((number, text) for number, text in lines if text.strip())
    start, first = next(filled, (1, "[]"))
    second, whole = None, None
    try:
        whole = _parse_json(f"{path}, line {start}", first)
        second = next(filled, None)
    except DataError as error:  # the first line may be the beginning of one value
        rest = "".join(text for _, text in lines)
        try:
            whole = _parse_json(str(path), "\n" * (start - 1) + first + rest)
        except DataError as of_file:
            raise of_file if first.lstrip().startswith("[") else error from None
    rows: Iterable[tuple[str, Any]]
    if second:
        numbered = itertools.chain([(start, first), second], filled)
        places = ((f"{path}, line {number}", text) for number, text in numbered)
        rows = ((place, _parse_json(place, text)) for place, text in places)
    elif isinstance(whole, list):
        rows = ((f"{path}, row {number}", row) for number, row in enumerate(whole, start=1))
    else:
        _check_single(path, whole, names)
        rows = [(f"{path}, line {start}", whole)]
    for place, row in rows:
        if not isinstance(row, dict):
            raise DataError(
                f"{place} is {_KINDS.get(type(row), 'a number')}, not an object; write each row as "
                'an object, such as {"en": "a dog", "de": "ein Hund"}'
            )
        yield TableRow(place, row)


def _check_single(path: Path, value: Any, names: Sequence[str]) -> None:
    """Raises `DataError` if the only value of a file is an object that holds rows or columns."""
    if not isinstance(value, dict) or not any(isinstance(x, list | dict) for x in value.values()):
        return
    for name in (*names, *(f"translation.{language}" for language in names)):
        key, _, rest = name.partition(".")
        kind = str if not rest else list | dict if rest[0].isdecimal() else dict
        if isinstance(value.get(key), kind):
            return  # it is a row
    raise DataError(
        f"{path} is one object, not a list of rows; it has {shorten(', '.join(value))}: write the "
        "rows alone, as a list of objects or one object a line"
    )


def _parse_json(place: str, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_make_object)
    except ValueError as error:
        raise DataError(f"{place} is not JSON: {error}") from None


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r} occurs twice")
    return found


def shorten(text: str) -> str:
    """Cuts a text that a message shows, unless it is short."""
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
