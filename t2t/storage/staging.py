"""Local copies of what lies in a bucket, for readers that need a file: memory maps and engines.

A copy is named by a hash of the object's path and version, so an object that was replaced is
fetched again. Each host fetches what it opens, once. The copies are in `FOLDER`; any of them may be
deleted while no program runs.
"""

import base64
import contextlib
import hashlib
from pathlib import Path
from typing import Any

from t2t.storage.atomic_files import atomic_path
from t2t.storage.paths import find_client, find_object_version, is_bucket

FOLDER = Path("~/.cache/t2t/buckets")


class _DamagedError(Exception):
    """A copy that differs from the object."""


def stage_file(path: Path) -> Path:
    """Returns a local copy of a file in a bucket, and a local path unchanged.

    The size of the copy is checked at each call, and its MD5 checksum if the bucket has one: GCS
    has it unless the object was composed of parts.

    Raises:
        OSError: the file does not exist or cannot be read, or its checksum is wrong twice.
    """
    if not is_bucket(path):
        return path
    client = find_client(path)
    info = client.info(str(path))
    digest = hashlib.sha256(f"{path} {find_object_version(info)}".encode()).hexdigest()[:32]
    copy = FOLDER.expanduser() / "files" / f"{digest}-{path.name}"
    if copy.exists() and _is_whole(copy, info):
        return copy
    copy.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(2):
        with contextlib.suppress(_DamagedError), atomic_path(copy) as draft:
            client.get_file(str(path), str(draft))
            if not _is_whole(draft, info):
                raise _DamagedError
            return copy
    raise OSError(f"{path} was fetched twice, and its size or checksum is wrong")


def _is_whole(copy: Path, info: dict[str, Any]) -> bool:
    if copy.stat().st_size != info["size"]:
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
        find_client(folder).get_file(str(path), str(copy / path.name))
