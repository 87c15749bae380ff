"""Folders of the cache: written whole; of several processes the first to finish wins.

Data sets of other formats are copied there as text: of each split two files, one for each side. A
split is read once, pair by pair. The copy then serves as a `TextCorpus`: random access, and a
fingerprint of the text. It appears when it is complete, so what a killed process leaves is never
taken for whole.
"""

import contextlib
import errno
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tqdm

from t2t.data.corpus import DataError, Pair
from t2t.storage.atomic_files import (
    atomic_path,
    explain_write_errors,
    remove_incomplete,
    write_file,
)
from t2t.storage.paths import storage_errors

_LINE_BREAK = re.compile("\r\n|[\r\n]")
_REMEDY = "data.cache_directory sets the folder"


def show_progress(doing: str, pairs: int | None = None) -> Any:
    """A bar that counts pairs, shown on a terminal (`disable=None`) after two seconds."""
    return tqdm.tqdm(desc=doing, total=pairs, unit=" pairs", unit_scale=True, delay=2, disable=None)


@contextlib.contextmanager
def create_folder(folder: Path) -> Iterator[Path]:
    """Yields a local draft that becomes `folder` when the block ends.

    Another process may have created the folder meanwhile: then its content stays.

    Raises:
        OSError: the folder cannot be written.
    """
    try:
        with atomic_path(folder) as draft:
            draft.mkdir()
            yield draft
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not folder.is_dir():
            raise


def find_text(copy: Path) -> tuple[Path, Path]:
    """The files of both sides in the folder of a copy."""
    return copy / "src.txt", copy / "tgt.txt"


def is_copied(copy: Path) -> bool:
    """Returns whether a split was copied to this folder."""
    return all(path.exists() for path in find_text(copy))


def copy_pairs(copy: Path, pairs: Iterable[Pair]) -> None:
    """Copies pairs to a folder of the cache; line breaks within a sentence become spaces.

    Raises:
        DataError: the cache cannot be written.
    """
    with explain_write_errors(DataError, copy, _REMEDY), contextlib.ExitStack() as stack:
        if not is_copied(copy):
            remove_incomplete(copy)  # a part of it was deleted
        draft = stack.enter_context(create_folder(copy))
        files = [stack.enter_context(path.open("wb")) for path in find_text(draft)]
        bar = stack.enter_context(show_progress("copying"))
        for pair in pairs:
            for file, sentence in zip(files, pair, strict=True):
                file.write(_LINE_BREAK.sub(" ", sentence).encode() + b"\n")
            bar.update()


def write_splits(path: Path, splits: Any) -> None:
    """Writes to the cache what is known of a data set's splits, as JSON, for other hosts.

    Raises:
        DataError: the cache cannot be written.
    """
    with explain_write_errors(DataError, path, _REMEDY):
        write_file(path, json.dumps(splits))


def read_splits(path: Path) -> Any:
    """Reads what `write_splits` wrote; None if it is not there, or damaged."""
    try:
        return json.loads(path.read_text("utf-8"))
    except storage_errors(ValueError):
        return None
