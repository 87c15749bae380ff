"""Writes files and folders atomically: readers see the old content or the new, never a part."""

import contextlib
import errno
import logging
import math
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from t2t.storage.paths import describe_error, find_client, is_bucket, storage_errors

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary local path, which becomes `path` when the block ends.

    The block creates a file, link or folder there. Beside a local `path`, whose folder is made, it
    is renamed. For a path in a bucket it is uploaded: a file as one object, which is atomic; the
    files of a folder one after the other.

    Its name is unique, so processes that write the same path do not interfere; the last file wins.
    Its content is flushed to disk before the rename. If the block fails, it is deleted.

    Raises:
        OSError: it cannot be written, or `path` is a folder that is not empty.
    """
    if is_bucket(path):
        with tempfile.TemporaryDirectory() as folder:
            draft = Path(folder) / path.name
            yield draft
            upload(draft, path)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _name_draft(path)
    try:
        yield draft
        if not draft.is_symlink():
            for written in draft.rglob("*") if draft.is_dir() else [draft]:
                if written.is_file():
                    with written.open("rb") as file:
                        os.fsync(file.fileno())
        draft.replace(path)
    finally:
        if draft.is_dir() and not draft.is_symlink():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)


def _name_draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")


def write_file(path: Path, content: str | bytes) -> None:
    """Writes a file, text as UTF-8, and its folder; replaces an existing file.

    Of a link it replaces the file that the link names. What is no regular file, such as a pipe or
    /dev/stdout, is written to.

    Raises:
        OSError: it cannot be written; an existing file is unchanged.
    """
    content = content.encode() if isinstance(content, str) else content
    if is_bucket(path):
        find_client().pipe_file(str(path), content)
        return
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    with atomic_path(path.resolve() if path.is_symlink() else path) as draft:
        draft.write_bytes(content)


def make_folder(folder: Path) -> None:
    """Creates a folder and those above it; in a bucket, which has none, it does nothing."""
    if not is_bucket(folder):
        folder.mkdir(parents=True, exist_ok=True)


def upload(local: Path, path: Path, last: str = "") -> None:
    """Copies a local file or folder into a bucket, file by file, each as one whole object.

    The file of the name `last` is the last one: readers that wait for it find all others.
    """
    client = find_client()
    files = sorted(local.rglob("*")) if local.is_dir() else [local]
    for file in sorted(files, key=lambda file: file.name == last):
        if file.is_file():
            client.put_file(str(file), str(path / file.relative_to(local)))


def remove_folder(folder: Path) -> None:
    """Removes a folder with its content, if it exists.

    No process sees a local folder with only some of its files; in a bucket each is removed alone.
    """
    if is_bucket(folder):
        with contextlib.suppress(FileNotFoundError):
            find_client().rm(str(folder), recursive=True)
        return
    aside = _name_draft(folder)
    with contextlib.suppress(FileNotFoundError):  # another process moved it first
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def remove_incomplete(folder: Path) -> None:
    """Makes way for a whole folder, if it is local: there a draft is renamed to its name.

    In a bucket, files are replaced one by one, and another process may be writing them now.
    """
    if not is_bucket(folder):
        remove_folder(folder)


@contextlib.contextmanager
def draft_folder(folder: Path) -> Iterator[Path]:
    """Yields a folder for a library that writes to buckets itself, such as Orbax.

    For a local folder it is the draft of `atomic_path`, in a bucket the folder itself.
    """
    if is_bucket(folder):
        yield folder
        return
    with atomic_path(folder) as draft:
        yield draft


def list_files(folder: Path) -> list[Path]:
    """Returns all files of a folder, if it exists; buckets have no recursive glob."""
    found = []
    for path in folder.iterdir() if folder.exists() else ():
        found += list_files(path) if path.is_dir() else [path]
    return found


def list_complete(folder: Path, last: str) -> list[str]:
    """Returns the names of the folders in a folder that are complete.

    A local folder is complete when it has its name, one in a bucket when it has the object `last`.
    """
    if is_bucket(folder):
        return [path.parent.name for path in folder.glob(f"*/{last}")]
    return [path.name for path in folder.glob("[!.]*")]


def write_link(link: Path, target: str) -> None:
    """Writes a symbolic link, or replaces it; in a bucket, an object that holds the target."""
    if is_bucket(link):
        write_file(link, target)
        return
    with atomic_path(link) as draft:
        draft.symlink_to(target)


def name_linked(link: Path) -> Path:
    """Returns the path by which programs open what `write_link` linked: the link, if it is one."""
    is_object = is_bucket(link) and link.exists()
    return link.parent / link.read_text("utf-8") if is_object else link


def drop_from_page_cache(path: Path) -> None:
    """Makes the next read of a local file come from its disk, where the system can do so."""
    if not is_bucket(path):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def check_bucket(folder: Path) -> None:
    """Raises `OSError` if a bucket cannot be written; a local folder is checked when it is made."""
    if is_bucket(folder):
        check_writable(folder)


def check_writable(folder: Path, name: str = "t2t") -> None:
    """Raises `OSError` if no file can be created in a folder, or its name would be too long.

    The folder exists unless it is in a bucket.
    """
    probe = _name_draft(folder / name)
    write_file(probe, b"") if is_bucket(folder) else probe.touch()
    probe.unlink(missing_ok=True)


def measure_free_space(folder: Path) -> float:
    """Returns the free bytes on the disk of a folder; infinity for a bucket."""
    return math.inf if is_bucket(folder) else shutil.disk_usage(folder).free


def require_space(folder: Path, num_bytes: int) -> None:
    """Raises `OSError` if the disk of a folder has less free space than `num_bytes`."""
    if (free := measure_free_space(folder)) < num_bytes:
        needed, found = math.ceil(num_bytes / 1e5) / 10, math.floor(free / 1e5) / 10
        raise OSError(errno.ENOSPC, f"{needed} MB are needed, {found} MB are free")


@contextlib.contextmanager
def explain_write_errors(
    kind: type[Exception], target: Path | str, remedy: str = ""
) -> Iterator[None]:
    """Raises an `OSError` of the block as `kind`: what cannot be written, why, and a remedy.

    It does the same with errors of a bucket's client. `target` is what the block writes, a path for
    example. The remedy is added to the advice that follows from the reason.
    """
    try:
        yield
    except storage_errors() as error:
        is_remote = "://" in str(target)
        match error.errno if isinstance(error, OSError) else None:
            case errno.ENOSPC if is_remote:  # on this machine, where an upload is written first
                advice = f"free some space in {tempfile.gettempdir()}, or set TMPDIR to another one"
            case _ if is_remote:
                advice = "check the name of the bucket, your credentials and the network"
            case errno.EACCES | errno.EPERM | errno.EROFS:
                advice = "change the permissions, or choose another folder"
            case errno.ENOENT | errno.ENOTDIR | errno.EISDIR | errno.EEXIST | errno.ENAMETOOLONG:
                advice = "choose another path"
            case None | errno.ENOSPC | errno.EDQUOT | errno.EFBIG:  # None: an error of Orbax
                advice = "free some space there, or choose another folder"
            case _:
                advice = "check this file system, or choose another folder"
        message = f"{target} cannot be written: {describe_error(error)}; {advice}"
        raise kind(f"{message}; {remedy}" if remedy else message) from None


@contextlib.contextmanager
def warn_of_write_errors(what: str) -> Iterator[None]:
    """Logs a storage error of the block as a warning: `what`, and why."""
    try:
        yield
    except storage_errors() as error:
        _log.warning("%s: %s", what, describe_error(error))
