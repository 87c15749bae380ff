"""Locks that say who holds them: local files, and objects in a bucket.

Other processes wait for the holder of a local file, whose name is in the file. The operating system
releases a lock when its holder ends, even if it is killed; on NFS a lock holds for all hosts. The
file stays; its content counts only while somebody holds the lock. The package filelock would not
do: it unlocks explicitly, which takes the lock from child processes, too.

In a bucket, where the operating system releases nothing, the lock is an object. Each write names
the generation of the object that it replaces (0: there is none), so of several processes one
succeeds. The owner writes the object again every `HEARTBEAT` seconds, and empties it when it ends.
An owner that finds another one's object has lost the lock and ends at once.

A process that finds an owner watches the generation. If it stays the same for `STALE` seconds, the
owner counts as dead; no clocks of different machines are compared. On the same machine nobody waits
for a dead owner, since each owner also locks a local file.
"""

import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import logging
import math
import os
import platform
import shlex
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from t2t.storage.atomic_files import explain_write_errors, warn_of_write_errors, write_file
from t2t.storage.paths import LOCAL_FOLDER, find_client, is_bucket

_log = logging.getLogger(__name__)

WAIT = 150.0  # seconds until a process that waits for another one gives up; more than `STALE`
_POLL = 0.5  # seconds between two attempts
HEARTBEAT = 20.0  # seconds between two writes of the owner in a bucket
STALE = 120.0  # seconds without a write after which an owner counts as dead
_BUCKET_POLL = 2.0  # seconds between two looks at another owner's object


class LockedError(RuntimeError):
    """Another process holds the lock; the message describes it."""


@contextlib.contextmanager
def lock(
    path: Path,
    refusal: str = "the lock is in use",
    kind: type[Exception] = LockedError,
    *,
    shared: bool = False,
    wait: float | None = None,
    required: bool = True,
) -> Iterator[int]:
    """A context that holds a lock: a local file, whose folder is made, or an object in a bucket.

    It yields a file descriptor. Child processes that inherit it keep the lock on this machine until
    they end, even if this process is killed.

    Args:
        path: the file or object, which others find by its name.
        refusal: the message of the error if another process holds the lock; who it is is added.
        kind: the class of the error.
        shared: several processes may share the lock, while nobody holds it alone. In a bucket a
            shared lock is only a check, at the start, that nobody holds it alone.
        wait: seconds to wait for a holder that is alive; None: `WAIT`.
        required: False: where a file cannot be written or locked, the block runs without a lock.

    Raises:
        Exception: (of this `kind`) another process held the lock during the whole wait, or the
            folder cannot be written or does not support locks.
    """
    acquire, wait = _lock_object if is_bucket(path) else _lock_file, WAIT if wait is None else wait
    with contextlib.ExitStack() as held:
        with explain_write_errors(kind, path.parent):
            try:
                descriptor = held.enter_context(acquire(path, shared, wait))
            except LockedError as error:
                raise kind(f"{refusal} (the lock is held by {error})") from None
            except OSError:
                if required:
                    raise
                descriptor = held.enter_context(Path(os.devnull).open("rb")).fileno()
        yield descriptor


@contextlib.contextmanager
def _lock_file(path: Path, shared: bool, wait: float) -> Iterator[int]:
    """Locks a local file, which is released when the last process that has it open closes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        _wait(path, wait, _POLL, lambda: _take_file(path, file, shared))
        with contextlib.suppress(OSError):  # the name is for messages alone
            file.truncate(0)
            file.write(json.dumps(describe_self()).encode())
            os.fsync(file)  # other hosts read it
        yield file.fileno()


def _take_file(path: Path, file: IO[bytes], shared: bool) -> bytes | None:
    """Locks an open file and returns None, or returns what its holder wrote."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return path.read_bytes()
    except OSError as error:
        raise OSError(
            errno.ENOLCK,
            f"a file system without locks ({error.strerror}): mount it with locks (Lustre: -o "
            "flock)",
        ) from None
    return None


def _wait(path: Path, wait: float, poll: float, take: Callable[[], bytes | None]) -> None:
    """Waits until `take` returns None: it has the lock. Until then it returns the holder's text."""
    started = time.monotonic()
    for attempt in itertools.count():
        if (content := take()) is None:
            return
        holder = describe_holder(content)
        if time.monotonic() - started >= wait:
            raise LockedError(f"{holder}; gave up after {wait:.0f} seconds")
        if not attempt:
            limit = f" up to {wait:.0f} seconds" * math.isfinite(wait)
            _log.info("%s is held by %s; waiting%s", path, holder, limit)
        time.sleep(poll)


def describe_self() -> dict[str, Any]:
    """Returns the description of this process that other processes read in the lock, for JSON."""
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "command": " ".join(shlex.join(sys.orig_argv).split())[:300],  # in one line
        "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def describe_holder(content: bytes) -> str:
    """Describes the holder of a lock by the lock's content."""
    try:
        return "process {pid} on {host} since {since}, {command}".format(**json.loads(content))
    except (ValueError, KeyError, TypeError):  # it is just being written
        return "a process that has just begun or ended"


@contextlib.contextmanager
def _lock_object(path: Path, shared: bool, wait: float) -> Iterator[int]:
    """Locks an object in a bucket, after a local file that is the lock within this machine."""
    with _lock_machine(path, shared, wait) as (descriptor, machine):
        owned = _BucketLock(path, machine)
        _wait(path, wait, _BUCKET_POLL, lambda: owned.take(shared))
        try:
            yield descriptor
        finally:
            if not shared:
                owned.release()


@contextlib.contextmanager
def _lock_machine(path: Path, shared: bool, wait: float) -> Iterator[tuple[int, str]]:
    """Locks a local file; yields its descriptor, and a random text that is kept beside the file.

    The holder knows that earlier owners of the object with the same text have ended. Where no file
    can be kept or locked it is a temporary file, which no other process finds.
    """
    name = hashlib.sha256(str(path).encode()).hexdigest()[:32]
    with contextlib.ExitStack() as held:
        try:
            place = LOCAL_FOLDER.expanduser() / "locks"
            descriptor = held.enter_context(_lock_file(place / name, shared, wait))
        except OSError:
            place = Path(held.enter_context(tempfile.TemporaryDirectory()))
            descriptor = held.enter_context(lock(place / name, required=False))
        text = place / f"{name}.id"
        if not text.exists():
            write_file(text, uuid.uuid4().hex)
        yield descriptor, text.read_text("utf-8")


class _BucketLock:
    """The object of one lock, as this process knows it."""

    def __init__(self, path: Path, machine: str):
        self._path, self._client = path, find_client()
        self._owner = describe_self() | {"id": uuid.uuid4().hex, "machine": machine}
        self._generation = ""  # of the object that this process may replace
        self._changed = 0.0  # the time when this generation was first seen
        self._found = b""  # the content that another process wrote instead
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_often, daemon=True)

    def take(self, shared: bool) -> bytes | None:
        """Takes the lock and returns None; if its owner may be alive, returns what it wrote.

        The object is written every `HEARTBEAT` seconds until `release`, unless the lock is shared.
        """
        generation, content = self._read()
        if generation != self._generation:
            self._generation, self._changed = generation, time.monotonic()
        if not self._is_free(content) and time.monotonic() - self._changed < STALE:
            return content
        if shared:
            return None
        if not self._write(self._describe()):  # another process was faster
            return self._found
        self._thread.start()
        return None

    def release(self) -> None:
        """Releases the lock; a bucket that cannot be written leaves it to become stale."""
        self._ended.set()
        self._thread.join()
        with warn_of_write_errors(f"{self._path} is not released"):
            self._write(b"{}")

    def _write_often(self) -> None:
        while not self._ended.wait(HEARTBEAT):
            with warn_of_write_errors(f"{self._path} is not refreshed"):
                if not self._write(self._describe()):
                    _end_process(
                        f"{self._path}: {describe_holder(self._found)}, has taken over the "
                        f"lock, since this process did not refresh it for {STALE:.0f} seconds; "
                        "this process ends without writing anything more"
                    )

    def _is_free(self, content: bytes) -> bool:
        """Returns whether nobody owns it, or a dead owner, who had the local lock that we hold."""
        owner = json.loads(content)
        return all(owner.get(name) in (None, self._owner[name]) for name in ("host", "machine"))

    def _describe(self) -> bytes:
        return json.dumps(self._owner).encode()

    def _read(self) -> tuple[str, bytes]:
        """Returns the object's generation and content; "0" and nobody if it does not exist."""
        try:
            headers, content = self._client.call("GET", self._client.url(str(self._path)))
        except FileNotFoundError:
            return "0", b"{}"
        return headers["x-goog-generation"], content

    def _write(self, content: bytes) -> bool:
        """Replaces the object; returns False if another process has written it."""
        bucket, _, name = str(self._path).removeprefix("gs://").partition("/")
        url = self._client.base.replace("/storage/", "/upload/storage/") + "b/{}/o"
        query = {"uploadType": "media", "name": name, "ifGenerationMatch": self._generation}
        try:
            answer = self._client.call("POST", url, bucket, **query, data=content, json_out=True)
        except FileExistsError:
            # The client repeats a request whose answer was lost: the object may be our own.
            generation, self._found = self._read()
            if self._found != content:
                return False
        else:
            generation = answer["generation"]
        self._generation = generation
        return True


def _end_process(reason: str) -> None:
    """Ends this process without any clean-up, which would write to the bucket."""
    print(reason, file=sys.stderr, flush=True)
    os._exit(2)
