"""Locks on files, whose holder is named, and in a bucket: taken over from the dead alone."""

import contextlib
import errno
import math
import multiprocessing
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from t2t.storage import locks
from t2t.storage.locks import LockedError, lock
from t2t.storage.paths import make_path
from tests.bucket_server import die_at


@pytest.mark.parametrize("shared", [False, True])
def test_holder_is_named_and_the_lock_is_taken_when_it_ends(
    tmp_path: Path, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    holding = contextlib.ExitStack()
    holding.enter_context(lock(tmp_path / "lock"))
    holder = rf"process {os.getpid()} on {socket.gethostname()} since 20.* UTC, .*python"
    with (
        pytest.raises(KeyError, match=rf"busy \(the lock is held by {holder}.*; gave up after 0"),
        lock(tmp_path / "lock", "busy", KeyError, shared=shared),
    ):
        pass
    monkeypatch.setattr(time, "sleep", lambda _: holding.close())
    with lock(tmp_path / "lock", shared=shared, wait=math.inf):
        pass


def test_killed_holder_leaves_nothing_but_children_that_inherit_the_lock_keep_it(
    tmp_path: Path,
) -> None:
    code = (
        "import os, subprocess, sys\nfrom pathlib import Path\n"
        "from t2t.storage.locks import lock\n"
        "with lock(Path(sys.argv[1])) as held:\n"
        "    null = subprocess.DEVNULL\n"
        "    child = subprocess.Popen(['sleep', '600'], pass_fds=[held], stdout=null)\n"
        "    print(child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "lock"
    done = subprocess.run([sys.executable, "-c", code, path], stdout=subprocess.PIPE, check=False)
    with pytest.raises(LockedError, match="process "), lock(path):
        pass
    os.kill(int(done.stdout), 9)
    with lock(path, wait=600.0):
        pass


def test_file_system_without_locks_is_named_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(LockedError, match=r"without locks .*-o flock"), lock(tmp_path / "lock"):
        pass
    with lock(tmp_path / "lock", required=False) as descriptor:
        assert descriptor > 0


def test_folder_that_cannot_be_written_is_named_or_left_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(LockedError, match="file/in cannot be written"),
        lock(tmp_path / "file/in/lock"),
    ):
        pass
    with lock(tmp_path / "file/lock", required=False) as descriptor:
        assert descriptor > 0


# The first request that writes the object of the lock again, after it has been created or emptied.
HEARTBEAT = r"POST .*lock&ifGenerationMatch=(?!0\b)"


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "HEARTBEAT", 0.2)
    monkeypatch.setattr(locks, "_BUCKET_POLL", 0.1)
    monkeypatch.setattr(locks, "_end_process", print)  # it would end the tests


def be_on_another_machine(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("HOME", str(home))


def hold(place: str, moment: str) -> None:
    """Holds the lock until the process is killed."""
    locks.HEARTBEAT = 0.2
    if moment:
        die_at(moment)
    with lock(make_path(place)):
        signal.pause()


def leave_lock(place: Path, moment: str) -> None:
    """Lets a process be killed at a request, when it has the lock."""
    process = multiprocessing.get_context("spawn").Process(target=hold, args=(str(place), moment))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_lock_that_is_held_is_refused_on_this_machine_and_on_another(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only holders that share it admit each other."""
    place, holder = bucket / "lock", f"process {os.getpid()} on "
    with lock(place, shared=True), lock(place, shared=True):
        pass
    with lock(place):
        with pytest.raises(LockedError, match=holder), lock(place):
            pass
        be_on_another_machine(monkeypatch, tmp_path)
        for shared in (False, True):
            with pytest.raises(LockedError, match=holder), lock(place, shared=shared, wait=1.0):
                pass


def test_lock_released_while_another_waits_is_given_on(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "HEARTBEAT", 100.0)
    first = lock(bucket / "lock")
    first.__enter__()
    be_on_another_machine(monkeypatch, tmp_path)
    monkeypatch.setattr(time, "sleep", lambda _: first.__exit__(None, None, None))
    with lock(bucket / "lock", wait=math.inf):
        pass


@pytest.mark.slow
def test_lock_of_a_killed_process_is_taken_over(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once on the same machine, after `STALE` seconds on another one."""
    leave_lock(bucket / "lock", HEARTBEAT)
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", None)  # nobody waits
        with lock(bucket / "lock"):
            pass
    (bucket / "lock").unlink()
    monkeypatch.setattr(locks, "STALE", 1.5)
    leave_lock(bucket / "lock", HEARTBEAT)
    be_on_another_machine(monkeypatch, tmp_path)
    started = time.monotonic()
    with lock(bucket / "lock", wait=math.inf):
        assert time.monotonic() - started > locks.STALE


@pytest.mark.parametrize("hesitates", [False, True])
def test_one_of_two_that_see_the_same_dead_holder_gets_the_lock(
    hesitates: bool, bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second replaces a generation that the first has replaced, which the server refuses.

    Also if it hesitates while others hold and release the lock.
    """
    monkeypatch.setattr(locks, "HEARTBEAT", 100.0)
    be_on_another_machine(monkeypatch, tmp_path)
    write = locks._BucketLock._write
    winner = lock(bucket / "lock")

    def write_too_late(self: locks._BucketLock, content: bytes) -> bool:
        monkeypatch.setattr(locks._BucketLock, "_write", write)
        be_on_another_machine(monkeypatch, tmp_path / "third")
        if hesitates:
            with lock(bucket / "lock"):
                pass
        winner.__enter__()
        return write(self, content)

    monkeypatch.setattr(locks._BucketLock, "_write", write_too_late)
    with pytest.raises(LockedError, match="process "), lock(bucket / "lock"):
        pass
    winner.__exit__(None, None, None)


def test_lock_needs_no_home(bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with lock(bucket / "lock"):
        pass


def test_holder_that_lost_the_lock_ends_at_once(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its heartbeat stops, as if the machine had been suspended, and goes on too late."""
    ended: queue.Queue[str] = queue.Queue()
    is_taken_over, describe = threading.Event(), locks._BucketLock._describe

    def describe_late(self: locks._BucketLock) -> bytes:
        if threading.current_thread() is self._thread:  # of the heartbeat
            is_taken_over.wait()
        return describe(self)

    monkeypatch.setattr(locks._BucketLock, "_describe", describe_late)
    monkeypatch.setattr(locks, "_end_process", ended.put)
    first = lock(bucket / "lock")
    first.__enter__()
    monkeypatch.setattr(locks, "STALE", 0.5)
    be_on_another_machine(monkeypatch, tmp_path)
    with lock(bucket / "lock", wait=math.inf):
        is_taken_over.set()
        message = ended.get(timeout=600)
    first.__exit__(None, None, None)
    assert re.search("has taken over the lock.*ends without writing", message)
