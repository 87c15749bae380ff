"""Folders of the cache: written whole; of several processes the first to finish wins."""

import contextlib
import errno
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tqdm

from t2t.storage.atomic_files import atomic_path, make_folder


def show_progress(doing: str, pairs: int | None = None, shown: bool = True) -> Any:
    """A bar that counts pairs, shown on a terminal (`disable=None`) after two seconds."""
    hidden = None if shown else True
    return tqdm.tqdm(
        desc=doing, total=pairs, unit=" pairs", unit_scale=True, delay=2, disable=hidden
    )


@contextlib.contextmanager
def create_folder(folder: Path) -> Iterator[Path]:
    """Yields a local draft that becomes `folder` when the block ends.

    Another process may have created the folder meanwhile: then its content stays.

    Raises:
        OSError: the folder cannot be written.
    """
    make_folder(folder.parent)
    try:
        with atomic_path(folder) as draft:
            draft.mkdir()
            yield draft
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not folder.is_dir():
            raise


def remove_whole(folder: Path) -> None:
    """Removes a local folder; no process sees it with only some of its files."""
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):  # another process moved it first
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
