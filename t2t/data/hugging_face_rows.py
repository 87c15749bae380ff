"""Rows of Hugging Face `datasets`, file by file, and what is wrong with them in one line."""

import contextlib
import glob
import importlib.util
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t2t.config.fields import DataConfig
from t2t.data.corpus import DataError
from t2t.data.row_files import BLOCK, SUFFIXES, Block, describe_columns, find_suffix, read_blocks
from t2t.storage.open_text import PACKED_SUFFIXES
from t2t.storage.paths import measure_size

_LINE_BREAK = re.compile("\r\n|[\r\n]")
_SURROGATE = re.compile("[\ud800-\udfff]")


class RowSource(NamedTuple):
    """The rows of one file, or of a split of a data set on the Hub."""

    origin: str  # for messages
    path: Path | None
    blocks: Iterator[Block]


def import_datasets() -> Any:
    """Returns the package `datasets`, which is not installed with t2t; silences it."""
    if importlib.util.find_spec("datasets") is None:
        raise DataError("the Hub and Parquet need the package datasets; pip install -e '.[hf]'")
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
    if data.hf_name:
        datasets = import_datasets()
        options: dict[str, Any] = {"streaming": data.hf_streaming, "split": split}
        if data.hf_streaming:
            options["cache_dir"] = scratch
        with explain_errors(f"{data.hf_name}, {split}"):
            rows = datasets.load_dataset(**read_name(data.hf_name), **options)
        yield RowSource(f"{data.hf_name}, {split}", None, _iterate(rows))
        return
    names = data.src_column or data.src_language, data.tgt_column or data.tgt_language
    for path in files:
        if not measure_size(path):
            raise DataError(f"{path} is empty; remove it from data.hf_files")
        match find_suffix(path):
            case ".parquet":
                blocks = _iterate(_open_parquet(path, scratch))
            case suffix if suffix in SUFFIXES:
                blocks = read_blocks(path, names)
            case _:
                raise DataError(
                    f"{path}: data.hf_files takes .parquet and {', '.join(SUFFIXES)}, these also "
                    f"with {', '.join(PACKED_SUFFIXES)}; rename the file by its format"
                )
        yield RowSource(str(path), path, blocks)


def _open_parquet(path: Path, scratch: str) -> Any:
    datasets = import_datasets()
    with explain_errors(str(path), path):
        return datasets.load_dataset(
            "parquet", data_files=[glob.escape(str(path))],  # else "[1]" in a name is a pattern
            split="train", streaming=True, cache_dir=scratch,
        )  # fmt: skip


def _iterate(rows: Any) -> Iterator[Block]:
    """Blocks of a `datasets.Dataset` or `datasets.IterableDataset`."""
    count = 0
    for columns in rows.iter(batch_size=BLOCK):
        size = len(next(iter(columns.values())))
        yield Block(columns, range(count + 1, count + size + 1), "row")
        count += size


def read_name(name: str) -> dict[str, str | None]:
    """Arguments of `load_dataset` from "OWNER/NAME:CONFIGURATION@REVISION"."""
    rest, _, revision = name.partition("@")
    path, _, configuration = rest.partition(":")
    return {"path": path, "name": configuration or None, "revision": revision or None}


def read_sides(source: RowSource, data: DataConfig) -> Iterator[list[list[str]]]:
    """Yields the source sentences and the target sentences of a block of rows."""
    count = 0
    with explain_errors(source.origin, source.path, lambda: count):
        for block in source.blocks:
            sides = [_read_column(block, source, data, side) for side in ("src", "tgt")]
            yield sides
            count += len(sides[0])
        if not count and source.path:
            raise DataError(f"{source.origin} has no rows; remove it from data.hf_files")


def _read_column(block: Block, source: RowSource, data: DataConfig, side: str) -> list[str]:
    """One side of a block of rows; line breaks within a sentence become spaces."""
    field, language = f"data.{side}_column", getattr(data, f"{side}_language")
    column, columns = getattr(data, f"{side}_column"), block.columns
    if not column:
        column = f"translation.{language}" if "translation" in columns else language
    name, *keys = [column] if column in columns else column.split(".")
    if name not in columns:
        raise DataError(
            f"{source.origin} has no column {name!r}; "
            f"{describe_columns(source.path, list(columns))}; set {field}"
        )
    lines = []
    for number, value in zip(block.numbers, columns[name], strict=True):
        where = f"{source.origin}, {block.unit} {number}, column {column!r}"
        for key in keys:
            if not isinstance(value, Mapping | None):
                raise DataError(f"{where}: {value!r} has no keys; set {field}")
            value = value.get(key) if value else None
        if value is None:
            raise DataError(f"{where}: there is no value; correct the row or remove it")
        if not isinstance(value, str):
            kind = type(value).__name__
            raise DataError(f"{where}: {value!r} is no text but {kind}; set {field}")
        if found := _SURROGATE.search(value):
            raise DataError(
                f"{where}: U+{ord(found[0]):04X} is half of a character (a lone surrogate), which "
                "is not UTF-8; correct the row or remove it"
            )
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
        if path:
            place = f" after row {rows}" if (rows := count()) else ""
            raise DataError(f"{origin} cannot be read{place}: {_shorten(error)}") from None
        raise DataError(
            f"{origin} cannot be read: {_shorten(error)}; check the network, and data.hf_name: "
            "OWNER/NAME:CONFIGURATION@REVISION"
        ) from None


def _shorten(error: Exception) -> str:
    """The first two lines of a message: the second one often says what to choose from."""
    return "; ".join((str(error).strip() or type(error).__name__).splitlines()[:2])
