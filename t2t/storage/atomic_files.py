"""Writes files and folders atomically: readers see the old content or the new, never a part."""

import contextlib
import errno
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


def require_space(folder: Path, num_bytes: int) -> None:
    """Raises `OSError` if the disk of `folder` has less free space than `num_bytes`."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        needed = f"{num_bytes / 1e6:.1f} MB are needed, {free / 1e6:.1f} MB are free"
        raise OSError(errno.ENOSPC, needed)


@contextlib.contextmanager
def explain_write_errors(
    kind: type[Exception], target: Path | str, remedy: str = ""
) -> Iterator[None]:
    """Raises an `OSError` of the block as `kind`: what cannot be written, why, and a remedy.

    Args:
        kind: type of the error to raise.
        target: what the block writes, a path for example.
        remedy: added to the advice that follows from the reason.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            advice = "change the permissions, or choose another folder"
        elif error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG):
            advice = "choose another path"
        else:  # a full disk, or an error of Orbax, which has a text but no number
            advice = "free some space there, or choose another folder"
        reason = error.strerror or str(error).strip()
        message = f"{target} cannot be written: {reason}; {advice}"
        raise kind(f"{message}; {remedy}" if remedy else message) from None


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
