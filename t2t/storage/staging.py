"""Local copies of what lies in a bucket, for readers that need a file: memory maps and engines.

A copy is named by a hash of the object's path and generation, so an object that was replaced is
fetched again. Each host fetches what its processes open once: one of them fetches, while the others
wait. The copies are in `LOCAL_FOLDER`; any of them may be deleted while no program runs.
"""

import base64
import contextlib
import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t2t.storage.atomic_files import atomic_path
from t2t.storage.locks import lock
from t2t.storage.paths import LOCAL_FOLDER, find_client, is_bucket


def stage_file(path: Path) -> Path:
    """Returns a local copy of a file in a bucket, and a local path unchanged.

    The size of the copy is checked at each call, and its MD5 checksum if the bucket has one: GCS
    has it unless the object was composed of parts.

    Raises:
        OSError: the file does not exist or cannot be read, or its checksum is wrong twice.
    """
    if not is_bucket(path):
        return path
    info = find_client().info(str(path))
    digest = hashlib.sha256(f"{path} {info['generation']}".encode()).hexdigest()[:32]
    copy = LOCAL_FOLDER.expanduser() / "files" / f"{digest}-{path.name}"
    if _is_whole(copy, info):
        return copy
    with fetch_once(path, copy):
        for has_to_fetch in (False, True, True):  # another process may have fetched it meanwhile
            if has_to_fetch:
                with atomic_path(copy) as draft:
                    find_client().get_file(str(path), str(draft))
            if _is_whole(copy, info):
                return copy
    raise OSError(f"{path} was fetched twice, and its size or checksum is wrong")


def find_local(path: Path, kind: str) -> Path:
    """Returns the local path that stands for a path: itself, or for a bucket one in `LOCAL_FOLDER`.

    `kind` is the folder in `LOCAL_FOLDER`, for example "tokens".
    """
    return LOCAL_FOLDER.expanduser() / kind / path.name if is_bucket(path) else path


@contextlib.contextmanager
def fetch_once(path: Path, copy: Path) -> Iterator[None]:
    """A context in which no other process of this host fetches the same copy of a path.

    It does nothing for a local path, which is its own copy. Where the disk has no locks, several
    processes may fetch it at once.
    """
    if copy == path:
        yield
        return
    with lock(copy.with_name(f".{copy.name}.lock"), wait=math.inf, required=False):
        yield


def _is_whole(copy: Path, info: dict[str, Any]) -> bool:
    if not copy.exists() or copy.stat().st_size != info["size"]:
        return False
    expected: str | None = info.get("md5Hash")
    if not expected:
        return True
    with copy.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
    return base64.b64encode(digest.digest()).decode() == expected


def fetch_folder(folder: Path, copy: Path) -> None:
    """Copies the files of a folder in a bucket, without its folders, to a local folder.

    Raises:
        OSError: the folder does not exist, or cannot be read or written.
    """
    for path in folder.iterdir():
        find_client().get_file(str(path), str(copy / path.name))
