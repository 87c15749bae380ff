"""Locks on local files: other processes wait for the holder, whose name is in the file.

The operating system releases a lock when its holder ends, even if it is killed. On NFS that holds
for all hosts that mount it. The file stays; its content counts only while somebody holds the lock.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import filelock

_log = logging.getLogger(__name__)

WAIT = 150.0  # seconds until a process that waits for another one gives up
_POLL = 0.5  # seconds between two attempts


class LockedError(Exception):
    """Another process holds the lock; the message describes it."""


@contextlib.contextmanager
def lock_file(
    path: Path, *, shared: bool = False, wait: float | None = None, required: bool = True
) -> Iterator[int]:
    """A context that locks a file, which is created; it yields the lock's file descriptor.

    Child processes that inherit the descriptor hold the lock until they end, if this process is
    killed.

    Args:
        path: the file.
        shared: whether others may hold the lock at the same time, if they share it, too.
        wait: seconds to wait for the holder; None: `WAIT`.
        required: whether it is an error that the file system has no locks; if not, the block runs
            without one.

    Raises:
        LockedError: another process held the lock all the time.
        OSError: the file cannot be written, or the file system has no locks.
    """
    path.touch()
    seconds = WAIT if wait is None else wait
    with contextlib.ExitStack() as held:
        acquire = partial(_share if shared else _own, path, held)
        try:
            try:
                descriptor = acquire(0)
            except filelock.Timeout:
                _log.info(
                    "%s is held by %s; waiting up to %.0f seconds", path, read_holder(path), seconds
                )
                descriptor = acquire(seconds)
        except filelock.Timeout:
            waited = f"{seconds:.0f} seconds"
            raise LockedError(f"{read_holder(path)}; gave up after {waited}") from None
        except OSError as error:
            if required:
                raise OSError(
                    errno.ENOLCK,
                    f"a file system without locks ({error.strerror}): mount it with locks (Lustre: "
                    "-o flock)",
                ) from None
            descriptor = held.enter_context(path.open("r+b")).fileno()
        with contextlib.suppress(OSError):  # the name is for messages alone
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(describe_self()).encode(), 0)
            os.fsync(descriptor)
        yield descriptor


def _own(path: Path, held: contextlib.ExitStack, seconds: float) -> int:
    descriptors: list[int] = []
    lock = filelock.FileLock(
        path,
        poll_interval=_POLL,
        is_singleton=False,
        fallback_to_soft=False,  # a file that a killed process leaves behind would be a lock
        preserve_lock_file=True,
        on_acquired=descriptors.append,
    )
    held.enter_context(lock.acquire(timeout=seconds))
    return descriptors[0]


def _share(path: Path, held: contextlib.ExitStack, seconds: float) -> int:
    """Shares a lock, which filelock does only by means that child processes do not inherit."""
    file = held.enter_context(path.open("r+b"))
    started = time.monotonic()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return file.fileno()
        except BlockingIOError:
            if time.monotonic() - started >= seconds:
                raise filelock.Timeout(str(path)) from None
        time.sleep(_POLL)


def describe_self() -> dict[str, Any]:
    """Returns what others are told of this process, for JSON."""
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "command": shlex.join(sys.orig_argv)[:300],
        "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def describe_holder(content: bytes | str) -> str:
    """Returns what the content of a lock says of its holder, in words."""
    try:
        holder = json.loads(content)
        return (
            f"process {holder['pid']} on {holder['host']} since {holder['since']}, "
            f"{holder['command']}"
        )
    except (ValueError, KeyError, TypeError):  # it is just being written
        return "a process that has just begun or ended"


def read_holder(path: Path) -> str:
    """Returns in words who holds a lock; the lock may have been released since."""
    try:
        return describe_holder(path.read_bytes())
    except OSError:
        return "another process"
