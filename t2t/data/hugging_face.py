"""Data sets read by Hugging Face `datasets`: on its Hub, or files (TSV, CSV, JSON lines, Parquet).

Each split is read once, row by row, and its two columns are copied to the cache directory as two
text files, which then serve as a `TextCorpus`: random access, and a fingerprint of the text. The
copy appears when it is complete, so what a killed process leaves is never taken for whole. Of
several processes that copy the same split the first one to finish wins.
"""

import contextlib
import errno
import importlib.util
import io
import json
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import fsspec
import tqdm

from t2t.config.fields import DataConfig
from t2t.data.corpus import Corpus, DataError, TextCorpus, find_memory, hash_strings
from t2t.storage.atomic_files import (
    atomic_path,
    explain_write_errors,
    make_folder,
    remove_folder,
    write_file,
)
from t2t.storage.paths import (
    find_version,
    is_bucket,
    is_storage_error,
    make_absolute,
    make_path,
    measure_size,
)

_BLOCK = 1000  # rows read at a time
_LINE_BREAK = re.compile("\r\n|[\r\n]")
_COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
# Every cell is text as it stands: "NA" is no missing value, and a quote in a TSV file is a quote.
_PLAIN = {"keep_default_na": False, "na_filter": False, "skip_blank_lines": False}
_FORMATS: dict[str, tuple[str, dict[str, Any]]] = {  # suffix -> builder of `datasets`, its options
    ".tsv": ("csv", {**_PLAIN, "sep": "\t", "quoting": 3}),  # 3: csv.QUOTE_NONE
    ".csv": ("csv", _PLAIN),
    ".jsonl": ("json", {}),
    ".json": ("json", {}),
    ".parquet": ("parquet", {}),
}


class _Rows(NamedTuple):
    """Rows of one file, or of a split of a data set on the Hub."""

    origin: str  # for messages
    path: Path | None
    rows: Any  # `datasets.Dataset` or `datasets.IterableDataset`


def list_hf_splits(data: DataConfig) -> tuple[str, ...]:
    """Names of the splits, as data.hf_files gives them, or as `prepare_hf` found them on the Hub.

    Raises:
        DataError: the data set of the Hub was not prepared.
    """
    if data.hf_files:
        return tuple(dict.fromkeys(name.partition("=")[0] for name in data.hf_files))
    try:
        return tuple(json.loads(_find_splits(data).read_text()))
    except Exception as error:
        if is_storage_error(error) or isinstance(error, ValueError):
            raise _unprepared(data) from None
        raise


def open_hf(data: DataConfig, split: str) -> Corpus:
    """Opens a split; files are copied to the cache if they are not there, the Hub is not asked.

    Raises:
        DataError: a file or a row is invalid, or the data set of the Hub was not prepared.
    """
    copy = find_copy(data, split)
    if not all(path.exists() for path in copy):
        if data.hf_name:
            raise _unprepared(data)
        _copy(data, split)
    corpus = TextCorpus(*copy, find_memory(data))
    corpus.name = f"{data.hf_name or ', '.join(map(str, list_files(data, split)))}, {split}"
    return corpus


def prepare_hf(data: DataConfig) -> None:
    """Copies all splits that are not in the cache.

    Raises:
        DataError: the Hub cannot be reached, or the data set is invalid.
    """
    if data.hf_name and not _find_splits(data).exists():
        datasets = _import_datasets()
        with _explain(data.hf_name):
            names = _read_name(data.hf_name)
            splits = datasets.get_dataset_split_names(names.pop("path"), names.pop("name"), **names)
        path = _find_splits(data)
        with explain_write_errors(DataError, path, "data.cache_directory sets the folder"):
            make_folder(path.parent)
            write_file(path, json.dumps(splits))
    for split in list_hf_splits(data):
        if not all(path.exists() for path in find_copy(data, split)):
            _copy(data, split)


def list_files(data: DataConfig, split: str) -> list[Path]:
    """The files of a split in data.hf_files."""
    entries = (entry.partition("=") for entry in data.hf_files)
    return [make_absolute(make_path(path)) for name, _, path in entries if name == split]


def find_copy(data: DataConfig, split: str) -> tuple[Path, Path]:
    """The text files, source and target, to which a split is copied.

    Their folder is named by the data set, the columns, and the versions of the files that are read.

    Raises:
        DataError: a file does not exist.
    """
    versions = [f"{path} {_find_version(path)}" for path in list_files(data, split)]
    columns = data.src_column, data.tgt_column, data.src_language, data.tgt_language
    name = hash_strings("hf", data.hf_name, split, *columns, *versions)[:32]
    folder = make_path(data.cache_directory) / "hf" / name
    return folder / "src.txt", folder / "tgt.txt"


def measure_text(data: DataConfig) -> int:
    """Bytes of the training text, estimated for files that are compressed; 0: not known yet."""
    return sum(
        measure_size(path) * (3 if path.suffix in (*_COMPRESSED, ".parquet") else 1)
        for path in list_files(data, "train") or find_copy(data, "train")
    )


def _find_version(path: Path) -> str:
    try:
        return find_version(path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; data.hf_files names it") from None


def _find_splits(data: DataConfig) -> Path:
    name = hash_strings("hf", data.hf_name)[:32]
    return make_path(data.cache_directory) / "hf" / f"{name}-splits.json"


def _unprepared(data: DataConfig) -> DataError:
    return DataError(
        f"data.hf_name={data.hf_name!r} was not copied to data.cache_directory="
        f"{data.cache_directory}; run `python -m t2t.prepare --config=...` with this config first"
    )


def _import_datasets() -> Any:
    if importlib.util.find_spec("datasets") is None:
        raise DataError(
            "data.source='hf' needs the package datasets; pip install -r requirements-hf.txt"
        )
    import datasets  # here because it is slow and only this source needs it

    datasets.disable_progress_bars()
    for library in ("datasets", "huggingface_hub"):  # they log errors that they raise as well
        logging.getLogger(library).setLevel(logging.CRITICAL)
    return datasets


def _copy(data: DataConfig, split: str) -> None:
    """Copies a split into the cache: both columns, one line for each row."""
    copy = find_copy(data, split)
    folder, count = copy[0].parent, 0
    with (
        tempfile.TemporaryDirectory() as scratch,  # for locks that `datasets` leaves behind
        explain_write_errors(DataError, folder, "data.cache_directory sets the folder"),
        _let_others_win(copy),
    ):
        make_folder(folder.parent)
        if not is_bucket(folder):
            remove_folder(folder)  # a part of it was deleted
        with contextlib.ExitStack() as stack:
            draft = stack.enter_context(atomic_path(folder))
            draft.mkdir()
            files = [stack.enter_context((draft / path.name).open("wb")) for path in copy]
            bar = stack.enter_context(_open_bar())
            for rows in _open_rows(data, split, scratch):
                for sides in _read_sides(rows, data):
                    for file, lines in zip(files, sides, strict=True):
                        file.write("".join(f"{line}\n" for line in lines).encode())
                    bar.update(len(sides[0]))
                    count += len(sides[0])
            if not count:
                raise DataError(f"{data.hf_name}, {split} holds no rows; choose another split")
            if find_copy(data, split) != copy:
                names = ", ".join(map(str, list_files(data, split)))
                raise DataError(f"{names} changed while it was read; start again when it is whole")


@contextlib.contextmanager
def _let_others_win(copy: Sequence[Path]) -> Iterator[None]:
    """Ignores that the folder of a copy cannot be written if another process has just done so."""
    try:
        yield
    except OSError as error:
        exists = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
        if not (exists and all(path.exists() for path in copy)):
            raise


def _open_bar() -> "tqdm.tqdm[NoReturn]":
    """A progress bar, shown on a terminal (`disable=None`) after two seconds."""
    return tqdm.tqdm(desc="copying", unit=" pairs", unit_scale=True, delay=2, disable=None)


def _open_rows(data: DataConfig, split: str, scratch: str) -> Iterator[_Rows]:
    """Opens the files of a split one after the other, so that messages can name the file."""
    datasets = _import_datasets()
    if data.hf_name:
        options: dict[str, Any] = {"streaming": data.hf_streaming, "split": split}
        if data.hf_streaming:
            options["cache_dir"] = scratch
        with _explain(f"{data.hf_name}, {split}"):
            rows = datasets.load_dataset(**_read_name(data.hf_name), **options)
        yield _Rows(f"{data.hf_name}, {split}", None, rows)
        return
    for path in list_files(data, split):
        builder, kwargs = _choose_builder(path, data)
        with _explain(str(path), path):
            if not measure_size(path):
                raise DataError(f"{path} is empty; remove it from data.hf_files")
            rows = datasets.load_dataset(
                builder, data_files=[str(path)], split="train", streaming=True, cache_dir=scratch,
                **kwargs,
            )  # fmt: skip
        yield _Rows(str(path), path, rows)


def _read_name(name: str) -> dict[str, str | None]:
    """Arguments of `load_dataset` from "OWNER/NAME:CONFIGURATION@REVISION"."""
    rest, _, revision = name.partition("@")
    path, _, configuration = rest.partition(":")
    return {"path": path, "name": configuration or None, "revision": revision or None}


def _choose_builder(path: Path, data: DataConfig) -> tuple[str, dict[str, Any]]:
    """The builder of `datasets` that reads a file, by its suffix, and the builder's options."""
    stem = path.name.lower()
    for suffix in _COMPRESSED:
        stem = stem.removesuffix(suffix)
    builder, options = _FORMATS.get(Path(stem).suffix, ("", {}))
    if not builder:
        raise DataError(
            f"{path}: data.hf_files takes {', '.join(_FORMATS)}, each also with "
            f"{', '.join(_COMPRESSED)}; rename the file by its format"
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


def _read_sides(rows: _Rows, data: DataConfig) -> Iterator[list[list[str]]]:
    """Yields the source sentences and the target sentences of a block of rows."""
    count = 0
    with _explain(rows.origin, rows.path, lambda: count):
        for block in rows.rows.iter(batch_size=_BLOCK):
            yield [_read_column(block, rows.origin, count, data, side) for side in ("src", "tgt")]
            count += len(next(iter(block.values())))
        if not count and rows.path:
            raise DataError(f"{rows.origin} has no rows; remove it from data.hf_files")


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
def _explain(
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
            _find_broken_line(path)
            raise DataError(
                f"{origin} cannot be read after row {count()}: {_shorten(error)}"
            ) from None
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


def _read_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file up to the first error; each decompressor has errors of its own."""
    with (
        contextlib.suppress(Exception),
        fsspec.open(str(path), "rb", compression="infer") as file,
        io.BufferedReader(file) as lines,  # some decompressors have no lines of their own
    ):
        yield from lines
