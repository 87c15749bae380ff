"""Locks on local files: other processes wait for the holder, whose name is in the file.

The operating system releases a lock when its holder ends, even if it is killed; on NFS the locks
are those of all hosts. The file stays; its content counts only while somebody holds the lock.

The package filelock unlocks explicitly, which takes the lock from child processes, too.
"""

import contextlib
import errno
import fcntl
import itertools
import json
import logging
import math
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

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

    Child processes that inherit the descriptor hold the lock until they end, also if this process
    is killed. Several processes may hold a lock that all of them share (`shared`). `wait` is the
    seconds to wait for the holder; None: `WAIT`. If it is not `required`, the block runs without a
    lock where the file system has none.

    Raises:
        LockedError: another process held the lock all the time.
        OSError: the file cannot be written, or the file system has no locks.
    """
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
