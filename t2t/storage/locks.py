"""Locks on local files, and on folders, local or in a bucket: `FOLDER/lock`.

Other processes wait for the holder of a local file, whose name is in the file. The operating system
releases a lock when its holder ends, even if it is killed; on NFS the locks are those of all hosts.
The file stays; its content counts only while somebody holds the lock. The package filelock unlocks
explicitly, which takes the lock from child processes, too.

In a bucket, where the operating system releases nothing, the lock is an object. Each write names
the generation of the object that it replaces (0: there is none), so of several processes one
succeeds. The owner writes the object again every `HEARTBEAT` seconds, and empties it when it ends.
An owner that finds another one's object has lost the lock and ends at once.

Whoever finds an owner watches the generation: if it changes the owner is alive, if it stays the
same for `STALE` seconds the owner is dead. No clocks of different machines are compared. On the
same machine nobody waits for a dead owner, since each owner also locks a local file.
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
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from t2t.storage.atomic_files import warn_of_write_errors, write_file
from t2t.storage.paths import LOCAL_FOLDER, find_client, is_bucket

_log = logging.getLogger(__name__)

WAIT = 150.0  # seconds until a process that waits for another one gives up
_POLL = 0.5  # seconds between two attempts
HEARTBEAT = 20.0  # seconds between two writes of the owner in a bucket
STALE = 120.0  # seconds without a write after which an owner counts as dead
_BUCKET_POLL = 2.0  # seconds between two looks at another owner's object


class LockedError(Exception):
    """Another process holds the lock; the message describes it."""


@contextlib.contextmanager
def lock_file(
    path: Path, *, shared: bool = False, wait: float | None = None, required: bool = True
) -> Iterator[int]:
    """A context that locks a file, which is created with its folder; it yields its descriptor.

    Child processes that inherit the descriptor hold the lock until they end, also if this process
    is killed. Several processes may hold a lock that all of them share (`shared`). `wait` is the
    seconds to wait for the holder; None: `WAIT`. If it is not `required`, the block runs without a
    lock where the file system has none.

    Raises:
        LockedError: another process held the lock all the time.
        OSError: the file cannot be written, or the file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with path.open("r+b", buffering=0) as file:
        try:
            _acquire(path, file, shared, WAIT if wait is None else wait)
        except OSError as error:
            if required:
                raise OSError(
                    errno.ENOLCK,
                    f"a file system without locks ({error.strerror}): mount it with locks (Lustre: "
                    "-o flock)",
                ) from None
        with contextlib.suppress(OSError):  # the name is for messages alone
            file.truncate(0)
            file.write(json.dumps(describe_self()).encode())
            os.fsync(file)  # other hosts read it
        yield file.fileno()


def _acquire(path: Path, file: IO[bytes], shared: bool, wait: float) -> None:
    """Locks an open file; it is released when the last process that has it open closes it."""
    started = time.monotonic()
    for attempt in itertools.count():
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = describe_holder(path.read_bytes())
        if time.monotonic() - started >= wait:
            raise LockedError(f"{holder}; gave up after {wait:.0f} seconds")
        if not attempt:
            limit = f" up to {wait:.0f} seconds" * math.isfinite(wait)
            _log.info("%s is held by %s; waiting%s", path, holder, limit)
        time.sleep(_POLL)


def describe_self() -> dict[str, Any]:
    """Returns what others are told of this process, for JSON."""
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "command": " ".join(shlex.join(sys.orig_argv).split())[:300],  # in one line
        "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def describe_holder(content: bytes) -> str:
    """Returns what the content of a lock says of its holder, in words."""
    try:
        return "process {pid} on {host} since {since}, {command}".format(**json.loads(content))
    except (ValueError, KeyError, TypeError):  # it is just being written
        return "a process that has just begun or ended"


@contextlib.contextmanager
def lock_folder(folder: Path, *, shared: bool = False) -> Iterator[int]:
    """A context that locks a folder, which is created; it yields the descriptor of a local lock.

    Child processes that inherit the descriptor hold the lock on this machine until they end, if
    this process is killed. Processes that share the lock (`shared`) admit each other; in a bucket
    they only check that no other holds it when they begin.

    Raises:
        LockedError: another process holds the lock.
        OSError: the folder cannot be written; or an error of a bucket's client.
    """
    if not is_bucket(folder):
        with lock_file(folder / "lock", shared=shared) as descriptor:
            yield descriptor
        return
    with _lock_machine(folder, shared) as (descriptor, machine):
        lock = _BucketLock(folder / "lock", machine)
        lock.wait()
        if shared:
            yield descriptor
            return
        lock.take()
        try:
            yield descriptor
        finally:
            lock.release()


@contextlib.contextmanager
def lock_update(path: Path) -> Iterator[None]:
    """A context for reading a file and writing it anew, which waits for others that do the same.

    Raises:
        LockedError: others held the lock all the time.
        OSError: as in `lock_folder`.
    """
    place, started = path.with_name(f"{path.name}.lock"), time.monotonic()
    with contextlib.ExitStack() as held:
        if not is_bucket(path):
            held.enter_context(lock_file(place))
        while is_bucket(path):  # where of several that begin at once, one gets the lock
            try:
                held.enter_context(lock_folder(place))
                break
            except LockedError:
                if time.monotonic() - started > WAIT:
                    raise
                time.sleep(_BUCKET_POLL)
        yield


@contextlib.contextmanager
def _lock_machine(folder: Path, shared: bool) -> Iterator[tuple[int, str]]:
    """Locks a local file; yields its descriptor, and a random text that is kept beside the file.

    Whoever holds the lock knows that earlier owners with the same text have ended. Where no file
    can be kept or locked it is a temporary one, which nobody else finds.
    """
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:32]
    with contextlib.ExitStack() as held:
        try:
            place = LOCAL_FOLDER.expanduser() / "locks"
            descriptor = held.enter_context(lock_file(place / name, shared=shared))
        except OSError:
            place = Path(held.enter_context(tempfile.TemporaryDirectory()))
            descriptor = held.enter_context(lock_file(place / name, required=False))
        text = place / f"{name}.id"
        if not text.exists():
            write_file(text, uuid.uuid4().hex)
        yield descriptor, text.read_text("utf-8")


class _BucketLock:
    """The object of one lock, as this process knows it."""

    def __init__(self, path: Path, machine: str):
        self._path, self._client = path, find_client()
        self._owner = describe_self() | {"id": uuid.uuid4().hex, "machine": machine}
        self._generation = "0"  # of the object that this process may replace
        self._found = b""  # what another process has written in its place
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_often, daemon=True)

    def wait(self) -> None:
        """Waits until nobody owns the lock, or raises `LockedError`."""
        self._generation, content = self._read()
        if not self._is_free(content):
            _log.info(
                "%s was left by %s, or is in use; waiting up to %.0f seconds to see which",
                self._path, describe_holder(content), STALE,
            )  # fmt: skip
        started = time.monotonic()
        while not self._is_free(content) and time.monotonic() - started < STALE:
            time.sleep(min(_BUCKET_POLL, STALE / 10))
            seen = self._generation
            self._generation, content = self._read()
            if self._generation != seen and not self._is_free(content):
                raise LockedError(describe_holder(content))

    def take(self) -> None:
        """Takes the lock after `wait`, and begins to write it again and again.

        Raises:
            LockedError: another process was faster.
        """
        if not self._write(self._describe()):
            raise LockedError(describe_holder(self._found))
        self._thread.start()

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
        """Returns whether nobody owns the lock, or an owner that had this machine's local lock."""
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
