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
from t2t.storage.locks import LockedError, lock_file, lock_folder
from t2t.storage.paths import make_path
from t2t.training.run_directory import RunError, lock
from tests.bucket_server import die_at


@pytest.mark.parametrize("shared", [False, True])
def test_holder_is_named_and_the_lock_is_taken_when_it_ends(
    tmp_path: Path, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    holding = contextlib.ExitStack()
    holding.enter_context(lock_file(tmp_path / "lock"))
    holder = rf"process {os.getpid()} on {socket.gethostname()} since 20.* UTC, .*python"
    with (
        pytest.raises(LockedError, match=f"{holder}.*; gave up after 0 seconds"),
        lock_file(tmp_path / "lock", shared=shared, wait=0.0),
    ):
        pass
    monkeypatch.setattr(time, "sleep", lambda _: holding.close())
    with lock_file(tmp_path / "lock", shared=shared, wait=math.inf):
        pass


def test_killed_holder_leaves_nothing_but_children_that_inherit_the_lock_keep_it(
    tmp_path: Path,
) -> None:
    code = (
        "import os, subprocess, sys\nfrom pathlib import Path\n"
        "from t2t.storage.locks import lock_file\n"
        "with lock_file(Path(sys.argv[1])) as held:\n"
        "    null = subprocess.DEVNULL\n"
        "    child = subprocess.Popen(['sleep', '600'], pass_fds=[held], stdout=null)\n"
        "    print(child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "lock"
    done = subprocess.run([sys.executable, "-c", code, path], stdout=subprocess.PIPE, check=False)
    with pytest.raises(LockedError, match="process "), lock_file(path, wait=0.0):
        pass
    os.kill(int(done.stdout), 9)
    with lock_file(path, wait=600.0):
        pass


def test_file_system_without_locks_is_named_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(OSError, match=r"without locks .*-o flock"), lock_file(tmp_path / "lock"):
        pass
    with lock_file(tmp_path / "lock", required=False) as descriptor:
        assert descriptor > 0


REFUSAL = "another trainer is at work"
# The first request that writes the object of the lock again, after it has been created or emptied.
HEARTBEAT = r"POST .*lock&ifGenerationMatch=(?!0\b)"


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "HEARTBEAT", 0.2)
    monkeypatch.setattr(locks, "_BUCKET_POLL", 0.1)
    monkeypatch.setattr(locks, "_end_process", print)  # it would end the tests


def be_on_another_machine(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("HOME", str(home))


def hold(folder: str, moment: str) -> None:
    """Holds the lock until the process is killed."""
    locks.HEARTBEAT = 0.2
    if moment:
        die_at(moment)
    with lock_folder(make_path(folder)):
        signal.pause()


def leave_lock(folder: Path, moment: str) -> None:
    """Lets a process be killed at a request, when it has the lock."""
    process = multiprocessing.get_context("spawn").Process(target=hold, args=(str(folder), moment))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_lock_that_is_held_is_refused_on_this_machine_and_on_another(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only holders that share it admit each other."""
    holder = f"process {os.getpid()} on "
    with lock_folder(bucket, shared=True), lock_folder(bucket, shared=True):
        pass
    with lock(bucket, REFUSAL):
        with (
            pytest.raises(RunError, match=rf"{REFUSAL} \(the lock is held by {holder}"),
            lock(bucket, REFUSAL),
        ):
            pass
        be_on_another_machine(monkeypatch, tmp_path)  # where the heartbeat is noticed
        for shared in (False, True):
            with pytest.raises(LockedError, match=holder), lock_folder(bucket, shared=shared):
                pass


def test_lock_released_while_another_waits_is_given_on(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "HEARTBEAT", 100.0)
    first = lock_folder(bucket)
    first.__enter__()
    be_on_another_machine(monkeypatch, tmp_path)
    monkeypatch.setattr(time, "sleep", lambda _: first.__exit__(None, None, None))
    with lock_folder(bucket):
        pass


@pytest.mark.slow
def test_lock_of_a_killed_process_is_taken_over(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once on the same machine, after `STALE` seconds on another one."""
    leave_lock(bucket, HEARTBEAT)
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", None)  # nobody waits
        with lock_folder(bucket):
            pass
    (bucket / "lock").unlink()
    monkeypatch.setattr(locks, "STALE", 1.5)
    leave_lock(bucket, HEARTBEAT)
    be_on_another_machine(monkeypatch, tmp_path)
    started = time.monotonic()
    with lock_folder(bucket):
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
    original = locks._BucketLock.wait
    winner = lock_folder(bucket)

    def wait_and_lose(self: locks._BucketLock) -> None:
        original(self)
        monkeypatch.setattr(locks._BucketLock, "wait", original)
        be_on_another_machine(monkeypatch, tmp_path / "third")
        if hesitates:
            with lock_folder(bucket):
                pass
        winner.__enter__()

    monkeypatch.setattr(locks._BucketLock, "wait", wait_and_lose)
    with pytest.raises(LockedError, match="process "), lock_folder(bucket):
        pass
    winner.__exit__(None, None, None)


def test_lock_needs_no_home(bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with lock_folder(bucket):
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
    first = lock_folder(bucket)
    first.__enter__()
    monkeypatch.setattr(locks, "STALE", 0.5)
    be_on_another_machine(monkeypatch, tmp_path)
    with lock_folder(bucket):
        is_taken_over.set()
        message = ended.get(timeout=600)
    first.__exit__(None, None, None)
    assert re.search("has taken over the lock.*ends without writing", message)
