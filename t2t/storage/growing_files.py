"""Files that grow while they are written, such as metrics and logs.

A bucket has no appending, so files there are written to a local copy, which is uploaded as a whole.
"""

import tempfile
import time
from pathlib import Path

from t2t.storage.atomic_files import upload, warn_of_write_errors
from t2t.storage.paths import is_bucket, measure_size

INTERVAL = 60.0  # seconds between two uploads


def measure_growth(path: Path) -> int:
    """Returns a number that changes when a growing file is to be read again.

    It is the size of a local file, 0 if it does not exist; in a bucket, where each look is a
    request, it changes each `INTERVAL`.
    """
    return int(time.monotonic() // INTERVAL) if is_bucket(path) else measure_size(path)


class GrowingFiles:
    """Files of a folder that are appended to in `local`, which is the folder unless in a bucket.

    For a local folder the methods do nothing.
    """

    def __init__(self, folder: Path, *names: str):
        """Copies the files of these names from the bucket, if they exist, to be continued."""
        self._folder = self.local = folder
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._uploaded: dict[Path, int] = {}  # bytes
        self._last_upload = time.monotonic()
        if is_bucket(folder):
            self._copy = tempfile.TemporaryDirectory()
            self.local = Path(self._copy.name)
            for name in names:
                if (folder / name).exists():
                    (self.local / name).write_bytes((folder / name).read_bytes())

    def upload_when_due(self) -> bool:
        """Uploads if `INTERVAL` has passed; an error is only a warning, since more uploads follow.

        A program that is killed loses what it wrote since the last upload. Returns whether the
        folder has all that was written.
        """
        if not self._copy:
            return True
        if time.monotonic() - self._last_upload < INTERVAL:
            return False
        is_uploaded = False
        with warn_of_write_errors(f"{self._folder} is written later"):
            self.upload()
            is_uploaded = True
        self._last_upload = time.monotonic()
        return is_uploaded

    def upload(self) -> None:
        """Uploads the files that have grown.

        Raises:
            OSError: the bucket cannot be written; or an error of its client.
        """
        for path in self.local.rglob("*") if self._copy else []:
            if path.is_file() and (size := path.stat().st_size) != self._uploaded.get(path):
                upload(path, self._folder / path.relative_to(self.local))
                self._uploaded[path] = size
        self._last_upload = time.monotonic()

    def close(self) -> None:
        """Uploads the files and removes the local copy."""
        try:
            self.upload()
        finally:
            if self._copy:
                self._copy.cleanup()
