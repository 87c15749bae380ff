"""Files and folders that nobody ever sees half written."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def drafting(path: Path) -> Iterator[Path]:
    """A draft beside `path`, a file, link or folder, which gets that name when the block has ended.

    The draft's name is unique, so processes that write the same path do not meet: of files the last
    one stays. It is on the disk before it is renamed, and removed where the block fails.

    Raises:
        OSError: it cannot be written, or a folder of that name is there already.
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
    """Writes a whole file, text as UTF-8, instead of the one that may be there.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    with drafting(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
