"""Data sets of Hugging Face's Hub, and files of both sides (TSV, CSV, JSON lines, Parquet).

Each split is read once, row by row, and its two columns are copied to the cache directory as two
text files, which then serve as a `TextCorpus`: random access, and a fingerprint of the text. The
copy appears when it is complete, so what a killed process leaves is never taken for whole. Of
several processes that copy the same split the first one to finish wins.
"""

import contextlib
import errno
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import tqdm

from t2t.config.fields import DataConfig
from t2t.data.corpus import Corpus, DataError, TextCorpus, facts_folder, hash_strings
from t2t.data.hugging_face_rows import (
    explain_errors,
    import_datasets,
    open_rows,
    read_name,
    read_sides,
)
from t2t.storage.atomic_files import (
    atomic_path,
    explain_write_errors,
    make_folder,
    remove_incomplete,
    write_file,
)
from t2t.storage.open_text import PACKED_SUFFIXES, TextError, check_regular
from t2t.storage.paths import (
    find_version,
    is_storage_error,
    make_absolute,
    make_path,
    measure_size,
)

# Increase one when rows are read differently: caches keep copies.
_HUB_FORMAT, _FILE_FORMAT = 3, 4


def list_hf_splits(data: DataConfig) -> tuple[str, ...]:
    """Names of the splits, as data.hf_files gives them, or as `prepare_hf` found them on the Hub.

    Raises:
        DataError: the data set of the Hub was not prepared.
    """
    if data.hf_files:
        return tuple(dict.fromkeys(name.partition("=")[0] for name in data.hf_files))
    try:
        return tuple(json.loads(_find_splits(data).read_text("utf-8")))
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
    corpus = TextCorpus(*copy, facts_folder(data))
    corpus.name = f"{data.hf_name or ', '.join(map(str, list_files(data, split)))}, {split}"
    return corpus


def prepare_hf(data: DataConfig) -> None:
    """Copies all splits that are not in the cache.

    Raises:
        DataError: the Hub cannot be reached, or the data set is invalid.
    """
    if data.hf_name and not _find_splits(data).exists():
        datasets = import_datasets()
        with explain_errors(data.hf_name):
            names = read_name(data.hf_name)
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
    number = str(_HUB_FORMAT if data.hf_name else _FILE_FORMAT)
    name = hash_strings("hf", number, data.hf_name, split, *columns, *versions)[:32]
    folder = make_path(data.cache_directory) / "hf" / name
    return folder / "src.txt", folder / "tgt.txt"


def measure_text(data: DataConfig) -> int:
    """Bytes of the training text, estimated for files that are compressed; 0: not known yet."""
    return sum(
        measure_size(path) * (3 if path.suffix in (*PACKED_SUFFIXES, ".parquet") else 1)
        for path in list_files(data, "train") or find_copy(data, "train")
    )


def _find_version(path: Path) -> str:
    try:
        check_regular(path)
        return find_version(path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; data.hf_files names it") from None
    except TextError as error:
        raise DataError(str(error)) from None


def _find_splits(data: DataConfig) -> Path:
    name = hash_strings("hf", data.hf_name)[:32]
    return make_path(data.cache_directory) / "hf" / f"{name}-splits.json"


def _unprepared(data: DataConfig) -> DataError:
    return DataError(
        f"data.hf_name={data.hf_name!r} was not copied to data.cache_directory="
        f"{data.cache_directory}; run `python -m t2t.prepare --config=...` with this config first"
    )


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
        if not all(path.exists() for path in copy):
            remove_incomplete(folder)  # a part of it was deleted
        with contextlib.ExitStack() as stack:
            draft = stack.enter_context(atomic_path(folder))
            draft.mkdir()
            files = [stack.enter_context((draft / path.name).open("wb")) for path in copy]
            bar = stack.enter_context(_open_bar())
            for rows in open_rows(data, split, list_files(data, split), scratch):
                for sides in read_sides(rows, data):
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
    """Ignores that a copy cannot be put in its place if another process's whole copy is there."""
    try:
        yield
    except OSError as error:
        exists = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
        if not (exists and all(path.exists() for path in copy)):
            raise


def _open_bar() -> "tqdm.tqdm[NoReturn]":
    """A progress bar, shown on a terminal (`disable=None`) after two seconds."""
    return tqdm.tqdm(desc="copying", unit=" pairs", unit_scale=True, delay=2, disable=None)
