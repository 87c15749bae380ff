"""Rows of Hugging Face `datasets`, file by file, and what is wrong with them in one line."""

import contextlib
import csv
import glob
import importlib.util
import io
import json
import logging
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fsspec

from t2t.config.fields import DataConfig
from t2t.data.corpus import DataError
from t2t.storage.paths import measure_size

_BLOCK = 1000  # rows read at a time
_LINE_BREAK = re.compile("\r\n|[\r\n]")
_CUT_OFF = "cannot be read: it is cut off; fetch it again"
COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
# Every cell is text as it stands: "NA" is no missing value, and a quote in a TSV file is a quote.
# Without index_col=False a first column that has no name would count as the numbers of the rows.
_PLAIN = {
    "keep_default_na": False, "na_filter": False, "skip_blank_lines": False, "index_col": False,
}  # fmt: skip
_FORMATS: dict[str, tuple[str, dict[str, Any]]] = {  # suffix -> builder of `datasets`, its options
    ".tsv": ("csv", {**_PLAIN, "sep": "\t", "quoting": 3}),  # 3: csv.QUOTE_NONE
    ".csv": ("csv", _PLAIN),
    ".jsonl": ("json", {}),
    ".json": ("json", {}),
    ".parquet": ("parquet", {}),
}


class RowSource(NamedTuple):
    """The rows of one file, or of a split of a data set on the Hub."""

    origin: str  # for messages
    path: Path | None
    rows: Any  # `datasets.Dataset` or `datasets.IterableDataset`


def import_datasets() -> Any:
    """Returns the package `datasets`, which is not installed with t2t; silences it."""
    if importlib.util.find_spec("datasets") is None:
        raise DataError(
            "data.source='hf' needs the package datasets; pip install -r requirements-hf.txt"
        )
    import datasets  # here because it is slow and only this source needs it

    datasets.disable_progress_bars()
    for library in ("datasets", "huggingface_hub"):  # they log errors that they raise as well
        logging.getLogger(library).setLevel(logging.CRITICAL)
    return datasets


def open_rows(
    data: DataConfig, split: str, files: Sequence[Path], scratch: str
) -> Iterator[RowSource]:
    """Opens a split of the Hub, or files one after the other, so that messages can name the file.

    Args:
        data: the data set of the Hub, or the columns of the files.
        split: the split of a data set of the Hub.
        files: the files of the split; empty for the Hub.
        scratch: a folder for locks that `datasets` leaves behind.
    """
    datasets = import_datasets()
    if data.hf_name:
        options: dict[str, Any] = {"streaming": data.hf_streaming, "split": split}
        if data.hf_streaming:
            options["cache_dir"] = scratch
        with explain_errors(f"{data.hf_name}, {split}"):
            rows = datasets.load_dataset(**read_name(data.hf_name), **options)
        yield RowSource(f"{data.hf_name}, {split}", None, rows)
        return
    for path in files:
        builder, kwargs = _choose_builder(path, data)
        with explain_errors(str(path), path):
            if not measure_size(path):
                raise DataError(f"{path} is empty; remove it from data.hf_files")
            rows = datasets.load_dataset(
                builder, data_files=[glob.escape(str(path))],  # else "[1]" in a name is a pattern
                split="train", streaming=True, cache_dir=scratch, **kwargs,
            )  # fmt: skip
        yield RowSource(str(path), path, rows)


def read_name(name: str) -> dict[str, str | None]:
    """Arguments of `load_dataset` from "OWNER/NAME:CONFIGURATION@REVISION"."""
    rest, _, revision = name.partition("@")
    path, _, configuration = rest.partition(":")
    return {"path": path, "name": configuration or None, "revision": revision or None}


def _find_format(path: Path) -> tuple[str, dict[str, Any]]:
    """The entry of `_FORMATS` by a file's suffix."""
    stem = path.name.lower()
    for suffix in COMPRESSED:
        stem = stem.removesuffix(suffix)
    return _FORMATS.get(Path(stem).suffix, ("", {}))


def _choose_builder(path: Path, data: DataConfig) -> tuple[str, dict[str, Any]]:
    """The builder of `datasets` that reads a file, and the builder's options."""
    builder, options = _find_format(path)
    if not builder:
        raise DataError(
            f"{path}: data.hf_files takes {', '.join(_FORMATS)}, each also with "
            f"{', '.join(COMPRESSED)}; rename the file by its format"
        )
    if builder != "csv":
        return builder, options
    columns = data.src_column or data.src_language, data.tgt_column or data.tgt_language
    if all(column.isdecimal() for column in columns):  # a file without a line of names
        return builder, {
            **options,
            "header": None,
            "converters": {int(column): str for column in columns},
        }
    return builder, {**options, "converters": dict.fromkeys(columns, str)}


def read_sides(source: RowSource, data: DataConfig) -> Iterator[list[list[str]]]:
    """Yields the source sentences and the target sentences of a block of rows."""
    count = 0
    with explain_errors(source.origin, source.path, lambda: count):
        for block in source.rows.iter(batch_size=_BLOCK):
            sides = [
                _read_column(block, source.origin, count, data, side) for side in ("src", "tgt")
            ]
            yield sides
            count += len(sides[0])
        if not count and source.path:
            raise DataError(f"{source.origin} has no rows; remove it from data.hf_files")
        if source.path:
            _check_end(source.path)
            if _find_format(source.path)[0] == "csv":
                _check_fields(source.path)


def _read_column(
    block: Mapping[str, Sequence[Any]], origin: str, first: int, data: DataConfig, side: str
) -> list[str]:
    """One side of a block of rows; line breaks within a sentence become spaces."""
    field, language = f"data.{side}_column", getattr(data, f"{side}_language")
    column = getattr(data, f"{side}_column")
    if not column:
        column = f"translation.{language}" if "translation" in block else language
    name, *keys = [column] if column in block else column.split(".")
    if name not in block:
        raise DataError(f"{origin} has no column {name!r}; it has {', '.join(block)}; set {field}")
    lines = []
    for row, value in enumerate(block[name], start=first + 1):
        where = f"{origin}, row {row}, column {column!r}"
        for key in keys:
            if not isinstance(value, Mapping | None):
                raise DataError(f"{where}: {value!r} has no keys; set {field}")
            value = value.get(key) if value else None
        if value is None:
            raise DataError(f"{where}: there is no value; correct the row or remove it")
        if not isinstance(value, str):
            kind = type(value).__name__
            raise DataError(f"{where}: {value!r} is no text but {kind}; set {field}")
        lines.append(_LINE_BREAK.sub(" ", value))
    return lines


@contextlib.contextmanager
def explain_errors(
    origin: str, path: Path | None = None, count: Callable[[], int] = lambda: 0
) -> Iterator[None]:
    """Raises whatever goes wrong in reading as a `DataError` in one line.

    `datasets` passes on errors of pandas, pyarrow, decompressors and HTTP clients, which have no
    common class.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if path and isinstance(error, EOFError):  # of every decompressor but the package zstandard
            raise DataError(f"{path} {_CUT_OFF}") from None
        if path:
            _find_broken_line(path)
            if _find_format(path)[0] == "csv":
                _check_fields(path)
            place = f" after row {rows}" if (rows := count()) else ""
            raise DataError(f"{origin} cannot be read{place}: {_shorten(error)}") from None
        raise DataError(
            f"{origin} cannot be read: {_shorten(error)}; check the network, and data.hf_name: "
            "OWNER/NAME:CONFIGURATION@REVISION"
        ) from None


def _shorten(error: Exception) -> str:
    """The first two lines of a message: the second one often says what to choose from."""
    return "; ".join((str(error).strip() or type(error).__name__).splitlines()[:2])


def _find_broken_line(path: Path) -> None:
    """Raises `DataError` with the first line of a text file that is not UTF-8, or no JSON.

    `datasets` reads blocks of lines and does not say which of them it could not read.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if ".parquet" in suffixes:
        return
    for number, line in enumerate(_read_lines(path), start=1):
        try:
            text = line.decode()
            if ".jsonl" in suffixes and text.strip():
                json.loads(text)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, line {number}: byte 0x{line[error.start]:02x} is not UTF-8; convert the "
                "file, for example with iconv -t UTF-8"
            ) from None
        except ValueError as error:
            raise DataError(f"{path}, line {number} is not JSON: {error}") from None


def _check_end(path: Path) -> None:
    """Raises `DataError` if a .zst file ends within a frame.

    fsspec reads these files with the package zstandard, which ignores it, or with the module
    `compression.zstd` of Python 3.14, which raises EOFError.
    """
    if path.suffix.lower() != ".zst":
        return
    import zstandard  # here because only these files need it

    frame = None
    with fsspec.open(str(path), "rb") as file:
        while block := file.read(1 << 16):
            while block:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                frame.decompress(block)
                block = frame.unused_data
                frame = None if frame.eof else frame
    if frame:
        raise DataError(f"{path} {_CUT_OFF}")


def _check_fields(path: Path) -> None:
    """Raises `DataError` with the first row of a TSV or CSV file that has too few or many fields.

    `datasets` reads missing fields as empty text, drops fields in excess if the first row has them,
    and takes a carriage return for the end of a row. A blank line stands for empty cells.
    """
    options = _find_format(path)[1]
    with contextlib.closing(_read_lines(path)) as lines:
        rows = csv.reader(
            (line.decode(errors="replace") for line in lines),
            delimiter=options.get("sep", ","),
            quoting=options.get("quoting", csv.QUOTE_MINIMAL),
        )
        csv.field_size_limit(sys.maxsize)  # by default 128 KiB
        width = 0
        try:
            for row in rows:
                width = width or len(row)
                if row and len(row) != width:
                    raise DataError(
                        f"{path}, line {rows.line_num} has {len(row)} fields instead of {width}; "
                        "correct the line or remove it"
                    )
        except csv.Error:
            raise DataError(
                f"{path}, line {rows.line_num} has a carriage return within it; replace it by "
                "a space, or by a line feed if it ends a row"
            ) from None


def _read_lines(path: Path) -> Generator[bytes]:
    """Yields the lines of a file up to the first error; each decompressor has errors of its own."""
    with (
        contextlib.suppress(Exception),
        fsspec.open(str(path), "rb", compression="infer") as file,
        io.BufferedReader(file) as lines,  # some decompressors have no lines of their own
    ):
        yield from lines
