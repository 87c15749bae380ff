"""A lock in a bucket, where there is no `flock`: numbered objects and a heartbeat.

    FOLDER/lock/00000007   who holds the lock, when it was refreshed, and whether it was released

The object with the highest number counts. To take the lock is to create the next number, on the
condition that it does not exist, so of several processes one succeeds. Only its creator writes an
object again: every `HEARTBEAT` seconds, and when it releases the lock. A holder that finds a higher
number has lost the lock and ends at once.

A holder that was killed releases nothing. A process that finds its object watches it: if it is
refreshed the holder is alive, if it stays the same for `STALE` seconds the holder is dead. No
clocks of different machines are compared. On the same machine nobody needs to wait, since each
holder also locks a local file.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import platform
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from t2t.storage.atomic_files import write_file
from t2t.storage.paths import describe_error, find_client, is_storage_error
from t2t.storage.staging import FOLDER

_log = logging.getLogger(__name__)

HEARTBEAT = 20.0  # seconds between two refreshes
STALE = 120.0  # seconds without a refresh after which a holder counts as dead
_POLL = 2.0  # seconds between two looks at another holder's object


class LockedError(Exception):
    """Another process holds the lock; the message describes it."""


@contextlib.contextmanager
def lock_in_bucket(folder: Path, *, shared: bool = False) -> Iterator[int]:
    """A context that holds the lock of a folder in a bucket.

    It yields the descriptor of the local lock. Child processes that inherit it keep the lock on
    this machine if this process is killed. Processes that share the lock only check that no other
    holds it when they begin.

    Raises:
        LockedError: another process holds the lock.
        OSError: the bucket cannot be written; or an error of its client.
    """
    with _open_local(folder) as file:
        lock = _Lock(folder, _lock_locally(file, shared))
        if shared:
            lock.wait()
            yield file.fileno()
            return
        lock.take()
        try:
            yield file.fileno()
        finally:
            lock.release()


def _open_local(folder: Path) -> IO[str]:
    """Opens the local lock; where no file can be kept, a temporary one, which nobody else finds."""
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:32]
    path = FOLDER.expanduser() / "locks" / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+", encoding="utf-8")
    except OSError:
        return tempfile.TemporaryFile("w+", encoding="utf-8")


def _lock_locally(file: IO[str], shared: bool) -> str | None:
    """Locks the local file; returns its random content, or None if locks do not work there.

    Whoever locks a file of this content knows that earlier holders who did so have ended.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LockedError("a process on this machine") from None
    except OSError:
        return None
    file.seek(0)
    content = file.read()
    if not content:
        content = uuid.uuid4().hex
        file.write(content)
        file.flush()
    return content


class _Lock:
    """The lock of one folder, held by this process."""

    def __init__(self, folder: Path, machine: str | None):
        self._folder, self._client = folder / "lock", find_client(folder)
        self._number = 0
        self._owner = {
            "id": uuid.uuid4().hex,
            "host": platform.node(),
            "pid": os.getpid(),
            "machine": machine,
        }
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._refresh_often, daemon=True)

    def take(self) -> None:
        """Takes the lock, and starts to refresh it; raises `LockedError` if it is held."""
        numbers = self.wait()
        self._number = max(numbers, default=0) + 1
        try:
            self._client.pipe_file(str(self._find(self._number)), self._describe(), mode="create")
        except FileExistsError:
            # The client repeats a request whose answer was lost: the object may be our own.
            found = self._read(self._number)
            if found is None or found["id"] != self._owner["id"]:
                raise LockedError(_describe_holder(found)) from None
        if (newest := self._list_numbers()[-1]) > self._number:  # taken since `wait` listed them
            self._client.rm_file(str(self._find(self._number)))
            raise LockedError(_describe_holder(self._read(newest)))
        for number in numbers:
            with contextlib.suppress(FileNotFoundError):
                self._client.rm_file(str(self._find(number)))
        self._thread.start()

    def release(self) -> None:
        """Releases the lock; a bucket that cannot be written leaves it to become stale."""
        self._ended.set()
        self._thread.join()
        with _warning_of_errors(f"{self._folder} is not released"):
            write_file(self._find(self._number), self._describe(released=True))

    def wait(self) -> list[int]:
        """Waits until nobody holds the lock, or raises `LockedError`; returns all numbers."""
        numbers = self._list_numbers()
        if numbers:
            self._wait_for(numbers[-1])
        return numbers

    def _wait_for(self, number: int) -> None:
        """Waits until the holder of this number is known to be dead, or raises `LockedError`."""
        first = self._read(number)
        if first is None or first["released"] or self._was_here(first):
            return
        _log.info(
            "%s was left by %s or is in use; waiting up to %.0f seconds to see which",
            self._find(number), _describe_holder(first), STALE,
        )  # fmt: skip
        started = time.monotonic()
        while time.monotonic() - started < STALE:
            time.sleep(min(_POLL, STALE / 10))
            found = self._read(number)
            if found is not None and found["released"]:
                return
            if found is None or found["time"] != first["time"]:
                raise LockedError(_describe_holder(found or first))
        _log.info("the lock of %s is taken over", _describe_holder(first))

    def _was_here(self, holder: dict[str, Any]) -> bool:
        """Returns whether a holder had the local lock, which this process holds now."""
        names = ("host", "machine")
        return all(self._owner[name] and holder[name] == self._owner[name] for name in names)

    def _refresh_often(self) -> None:
        while not self._ended.wait(HEARTBEAT):
            with _warning_of_errors(f"{self._folder} is not refreshed"):
                newest = max(self._list_numbers(), default=0)
                if newest > self._number:
                    _end_process(
                        f"{self._folder}: {_describe_holder(self._read(newest))} has taken over "
                        f"the lock, since this process did not refresh it for {STALE:.0f} seconds; "
                        "this process ends without writing anything more"
                    )
                write_file(self._find(self._number), self._describe())

    def _list_numbers(self) -> list[int]:
        try:
            names = self._client.ls(str(self._folder), detail=False)
        except FileNotFoundError:
            return []
        found = [name.rstrip("/").rpartition("/")[-1] for name in names]
        return sorted(int(name) for name in found if name.isdecimal())

    def _find(self, number: int) -> Path:
        return self._folder / f"{number:08}"

    def _read(self, number: int) -> dict[str, Any] | None:
        """Returns the content of an object; None if it does not exist."""
        try:
            content: dict[str, Any] = json.loads(self._client.cat_file(str(self._find(number))))
        except FileNotFoundError:
            return None
        return content

    def _describe(self, released: bool = False) -> bytes:
        return json.dumps({**self._owner, "time": time.time(), "released": released}).encode()


def _describe_holder(content: dict[str, Any] | None) -> str:
    if content is None:
        return "a process that has just ended"
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(content["time"]))
    return f"process {content['pid']} on {content['host']}, by its own clock alive at {since}"


@contextlib.contextmanager
def _warning_of_errors(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_storage_error(error):
            raise
        _log.warning("%s: %s", what, describe_error(error))


def _end_process(reason: str) -> None:
    """Ends this process without any clean-up, which would write to the bucket."""
    print(reason, file=sys.stderr, flush=True)
    os._exit(2)
