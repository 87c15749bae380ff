"""Data sets of Hugging Face's Hub, and files of both sides (TSV, CSV, JSON lines, Parquet).

Each split is copied to the cache as text (`cache_folders`).
"""

import glob
import importlib.util
import json
import logging
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.data.cache_folders import copy_pairs, find_text, is_copied, read_splits, write_splits
from t2t.data.corpus import Corpus, DataError, TextCorpus, hash_strings
from t2t.data.file_formats import describe_format
from t2t.data.parts import Part, Source
from t2t.data.row_files import (
    JSON_SUFFIXES,
    SUFFIXES,
    TableRow,
    describe_columns,
    find_suffix,
    read_rows,
    shorten,
)
from t2t.storage.open_text import HEAD, PACKED_SUFFIXES, TextError, check_regular, open_text
from t2t.storage.paths import describe_error, find_version, measure_size

# Increase one when rows are read differently: caches keep copies.
_HUB_FORMAT, _FILE_FORMAT = 3, 4
_STATE, _SPLITS = "state.json", "dataset_dict.json"  # of a Dataset and a DatasetDict on disk
_BLOCK = 1000  # rows that are read together from columns
_SURROGATE = re.compile("[\ud800-\udfff]")


def list_hf_splits(part: Part) -> tuple[str, ...]:
    """Names of the splits, as data.hf_files gives them, or as `prepare_hf` found them on the Hub.

    Raises:
        DataError: the data set of the Hub was not prepared.
    """
    if part.files:
        return tuple(part.files)
    if saved := _find_saved(part):
        return tuple(saved)
    if (splits := read_splits(_splits_path(part))) is None:
        raise _unprepared(part)
    return tuple(splits)


def prepare_hf(part: Part) -> None:
    """Copies all splits that are not in the cache.

    Raises:
        DataError: the Hub cannot be reached, or the data set is invalid.
    """
    if part.dataset and not _find_saved(part) and not _splits_path(part).exists():
        datasets, names = _import_datasets(), _read_name(part.dataset)
        try:
            splits = datasets.get_dataset_split_names(names.pop("path"), names.pop("name"), **names)
        except Exception as error:
            raise _explain(part, part.dataset, error) from None
        write_splits(_splits_path(part), splits)
    for split in list_hf_splits(part):
        if not is_copied(copy := find_copy(part, split)):
            copy_pairs(copy, _read_split(part, split))


def open_hf(part: Part, split: str) -> Corpus:
    """Opens a split; files are copied to the cache if they are not there, the Hub is not asked.

    Raises:
        DataError: a file or a row is invalid, or the data set was not prepared.
    """
    copy = find_copy(part, split)
    if not is_copied(copy):
        if part.dataset:
            raise _unprepared(part)
        copy_pairs(copy, _read_split(part, split))
    files = ", ".join(map(str, part.files.get(split, ())))
    return TextCorpus(*find_text(copy), part.facts, name=f"{part.dataset or files}, {split}")


def find_hf_text(part: Part) -> tuple[Path, Path]:
    """The files of the training text; they need not exist."""
    return find_text(find_copy(part, "train"))


def find_copy(part: Part, split: str) -> Path:
    """The folder to which a split is copied.

    It is named by the data set, the columns, and the versions of the files that are read.

    Raises:
        DataError: a file does not exist.
    """
    versions = [f"{path} {_find_version(path)}" for path in part.files.get(split, ())]
    if folder := _find_saved(part).get(split):
        versions = [_read_saved(folder / _STATE)]
    number = str(_HUB_FORMAT if part.dataset else _FILE_FORMAT)
    columns = *_name_columns(part), *part.languages
    name = hash_strings("hf", number, part.dataset, split, *columns, *versions)[:32]
    return part.cache / "hf" / name


def _find_saved(part: Part) -> dict[str, Path]:
    """The folder of each split, if the data set is one that `save_to_disk` wrote; else nothing."""
    folder = Path(part.dataset).expanduser()
    if part.dataset and (folder / _STATE).is_file():  # a Dataset
        return {"train": folder}
    if not part.dataset or not (folder / _SPLITS).is_file():
        return {}
    return {split: folder / split for split in json.loads(_read_saved(folder / _SPLITS))["splits"]}


def _read_saved(path: Path) -> str:
    try:
        text = path.read_text("utf-8")
        json.loads(text)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read: {describe_error(error)}; save the data set anew"
        ) from None
    return text


def _name_columns(part: Part) -> tuple[str, str]:
    return part.config.src_column, part.config.tgt_column


def _find_version(path: Path) -> str:
    try:
        check_regular(path)
        return find_version(path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; data.hf_files names it") from None
    except TextError as error:
        raise DataError(str(error)) from None


def _splits_path(part: Part) -> Path:
    return part.cache / "hf" / f"{hash_strings('hf', part.dataset)[:32]}-splits.json"


def _unprepared(part: Part) -> DataError:
    return DataError(
        f"data.hf_name={part.dataset!r} was not copied to data.cache_directory={part.cache}; "
        "run `python -m t2t.prepare --config=...` with this config first"
    )


def _import_datasets() -> Any:
    """Returns the package `datasets`, which is not installed with t2t; silences it."""
    if importlib.util.find_spec("datasets") is None:
        raise DataError(
            "the Hub, data sets that were saved to disk, Parquet and Arrow need the package "
            "datasets; pip install -e '.[hf]'"
        )
    import datasets  # here because it is slow and only this source needs it

    datasets.disable_progress_bars()
    for library in ("datasets", "huggingface_hub"):  # they log errors that they raise as well
        logging.getLogger(library).setLevel(logging.CRITICAL)
    return datasets


def _read_name(name: str) -> dict[str, str | None]:
    """Arguments of `load_dataset` from "OWNER/NAME:CONFIGURATION@REVISION"."""
    rest, _, revision = name.partition("@")
    path, _, configuration = rest.partition(":")
    return {"path": path, "name": configuration or None, "revision": revision or None}


def _read_split(part: Part, split: str) -> Iterator[tuple[str, str]]:
    """Yields the pairs of a split of the Hub, or of files, one file after the other."""
    if part.dataset:
        origin = f"{part.dataset}, {split}"
        if folder := _find_saved(part).get(split):
            rows = _list_rows(origin, _import_datasets().load_from_disk(str(folder)))
        else:
            options = {"split": split, **_read_name(part.dataset)}
            rows = _load_rows(origin, part.config.hf_streaming, **options)
        yield from _read_pairs(part, origin, rows)
        return
    copy, files = find_copy(part, split), part.files[split]
    for path in files:
        yield from _read_pairs(part, str(path), _read_file(part, path))
    if find_copy(part, split) != copy:
        names = ", ".join(map(str, files))
        raise DataError(f"{names} changed while it was read; start again when it is whole")


def _load_rows(origin: str, streaming: bool, **options: Any) -> Iterator[TableRow]:
    """Yields the rows of what `datasets.load_dataset` opens with these options."""
    datasets = _import_datasets()
    with tempfile.TemporaryDirectory() as scratch:  # for locks that `datasets` leaves behind
        if streaming:
            options["cache_dir"] = scratch
        yield from _list_rows(origin, datasets.load_dataset(**options, streaming=streaming))


def _list_rows(origin: str, dataset: Any) -> Iterator[TableRow]:
    number = 0
    for columns in dataset.iter(batch_size=_BLOCK):
        for cells in zip(*columns.values(), strict=True):
            number += 1
            yield TableRow(f"{origin}, row {number}", dict(zip(columns, cells, strict=True)))


def _read_file(part: Part, path: Path) -> Iterator[TableRow]:
    if path.is_dir():
        raise DataError(
            f"{path} is a folder; name its files, or set data.hf_name to a folder that "
            "save_to_disk of datasets wrote"
        )
    if not measure_size(path):
        raise DataError(f"{path} is empty; remove it from data.hf_files")
    suffix = find_suffix(path)
    if suffix in (".parquet", ".arrow"):
        files = [glob.escape(str(path))]  # else "[1]" in a name is a pattern
        return _load_rows(str(path), True, path=suffix[1:], data_files=files, split="train")
    if found := _describe_format(path, suffix):
        raise DataError(f"{path} {found}")
    if suffix not in SUFFIXES:
        raise DataError(
            f"{path}: data.hf_files takes .parquet, .arrow and {', '.join(SUFFIXES)}, these "
            f"also with {', '.join(PACKED_SUFFIXES)}; rename the file by its format"
        )
    names = zip(_name_columns(part), part.languages, strict=True)
    return read_rows(path, [column or language for column, language in names])


def _describe_format(path: Path, suffix: str) -> str:
    """Says what a file is that has no rows; "" for one that may have them."""
    try:
        with open_text(path) as file:
            return describe_format(
                path,
                file.read(HEAD),
                by_name=suffix not in SUFFIXES,
                takes_json=suffix in JSON_SUFFIXES,
            )
    except TextError as error:
        raise DataError(str(error)) from None


def _read_pairs(part: Part, origin: str, rows: Iterable[TableRow]) -> Iterator[tuple[str, str]]:
    """Yields both sides of each row of a file or of a split, which messages call `origin`."""
    columns: dict[str, None] = {}  # of all rows so far; one that lacks a key is a fault of the row
    count = 0
    try:
        for row in rows:
            count += 1
            columns |= dict.fromkeys(row.cells)
            src, tgt = (_read_side(part, side, row, columns, origin) for side in (0, 1))
            yield src, tgt
    except DataError:
        raise
    except Exception as error:  # of pyarrow, decompressors and HTTP clients: without a common class
        raise _explain(part, origin, error, count) from None
    if not count:
        remedy = "choose another split" if part.dataset else "remove it from data.hf_files"
        raise DataError(f"{origin} has no rows; {remedy}")


def _read_side(
    part: Part, side: int, row: TableRow, columns: Mapping[str, None], origin: str
) -> str:
    """The sentence of a row, of the source (side 0) or the target (1)."""
    field = f"data.{('src', 'tgt')[side]}_column"
    column, language = _name_columns(part)[side], part.languages[side]
    if not column:
        column = f"translation.{language}" if "translation" in columns else language
    name, *keys = [column] if column in columns else column.split(".")
    if name not in columns:
        found = describe_columns("" if part.dataset else origin, list(columns))
        raise DataError(f"{origin} has no column {name!r}; {found}; set {field}")
    place = f"{row.place}, column {column!r}"
    value = _find_value(row.cells, [name, *keys], place, field)
    if isinstance(value, list):
        raise DataError(
            f"{place}: {shorten(repr(value))} is a list; set {field} with the number of an item, "
            f"such as {name}.0"
        )
    if not isinstance(value, str):
        kind = type(value).__name__
        raise DataError(f"{place}: {shorten(repr(value))} is no text but {kind}; set {field}")
    if half := _SURROGATE.search(value):
        raise DataError(
            f"{place}: U+{ord(half[0]):04X} is half of a character (a lone surrogate), which "
            "is not UTF-8; correct the row or remove it"
        )
    return value


def _find_value(value: Any, keys: Sequence[str], place: str, field: str) -> Any:
    """Goes from a row to a value within it, by keys of objects and numbers of items."""
    others, remedy = "", "correct the row or remove it"
    for number, key in enumerate(keys):
        if isinstance(value, list) and key.isdecimal():
            value = value[int(key)] if int(key) < len(value) else None
        elif isinstance(value, Mapping):
            if value and key not in value:
                known = shorten(", ".join(value))
                others = f" (but of {known})" if number else ""
                remedy += f", or set {field}" if number else f", or set {field}: it has {known}"
            value = value.get(key)
        elif value is not None and not isinstance(value, list):
            raise DataError(f"{place}: {shorten(repr(value))} has no keys; set {field}")
    if value is None:
        raise DataError(f"{place}: there is no value{others}; {remedy}")
    return value


def _explain(part: Part, origin: str, error: Exception, count: int = 0) -> DataError:
    """Describes whatever goes wrong in reading in one line: two of the message, which may be many.

    The second line often says what to choose from.
    """
    lines = (str(error).strip() or type(error).__name__).splitlines()
    reason = "; ".join(lines[:2])
    if not part.dataset:
        place = f" after row {count}" if count else ""
        return DataError(f"{origin} cannot be read{place}: {reason}")
    if Path(part.dataset).expanduser().exists():
        return DataError(f"{origin} cannot be read: {reason}; check the files of data.hf_name")
    return DataError(
        f"{origin} cannot be read: {reason}; check the network, and data.hf_name: "
        "OWNER/NAME:CONFIGURATION@REVISION, or a folder that exists"
    )


SOURCE = Source(list_hf_splits, open_hf, prepare_hf, find_hf_text)
