"""Writes files and folders atomically: readers see the old content or the new, never a part."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`, which is renamed to `path` when the block ends.

    The block creates a file, link or folder there. Its name is unique, so processes that write the
    same path do not interfere; the last file wins. Its content is flushed to disk before the
    rename. If the block fails, it is deleted.

    Raises:
        OSError: it cannot be written, or `path` is a folder that is not empty.
    """
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        yield draft
        if not draft.is_symlink():
            for written in draft.rglob("*") if draft.is_dir() else [draft]:
                if written.is_file():
                    _flush(written)
        draft.replace(path)
    finally:
        if draft.is_dir() and not draft.is_symlink():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)


def write_file(path: Path, content: str | bytes) -> None:
    """Writes a file, text as UTF-8, and replaces an existing one.

    Raises:
        OSError: it cannot be written; an existing file is unchanged.
    """
    with atomic_path(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
