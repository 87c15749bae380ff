"""Remembers what was found in a file until the file changes, so that it is not read again.

A corpus of gigabytes would otherwise be decoded and hashed by each host at each start. A file
counts as unchanged if its size and time of modification are (in a bucket: its generation).
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from t2t.storage.atomic_files import write_file
from t2t.storage.paths import find_version, storage_errors


def recall(folder: Path, path: Path) -> dict[str, Any] | None:
    """Returns what `remember` was told about a file, or None if the file has changed since."""
    try:
        entry = json.loads(_find_entry(folder, path).read_text("utf-8"))
        facts: dict[str, Any] = entry["facts"]
        return facts if entry["version"] == find_version(path) else None
    except storage_errors(ValueError, KeyError, TypeError):
        return None


def remember(folder: Path, path: Path, facts: dict[str, Any], version: str) -> None:
    """Writes facts about a file into `folder`, if that can be written.

    `version` is what `find_version` said before the file was read: it may have grown meanwhile.
    """
    try:
        content = {"path": str(path), "version": version, "facts": facts}
        write_file(_find_entry(folder, path), json.dumps(content))
    except storage_errors():
        pass


def _find_entry(folder: Path, path: Path) -> Path:
    return folder / f"{hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:32]}.json"
