"""Locks on local files: others wait for the holder, who is named."""

import errno
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from t2t.storage import locks
from t2t.storage.locks import LockedError, lock_file


def test_holder_is_named_to_those_that_wait_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks, "WAIT", 0.01)
    holder = rf"process {os.getpid()} on {socket.gethostname()} since 20.* UTC, .*python"
    with (
        caplog.at_level(logging.INFO),
        lock_file(tmp_path / "lock"),
        pytest.raises(LockedError, match=f"{holder}.*; gave up after 0 seconds"),
        lock_file(tmp_path / "lock"),
    ):
        pass
    assert "lock is held by process" in caplog.text


@pytest.mark.parametrize("shared", [False, True])
def test_lock_is_taken_when_its_holder_ends(
    tmp_path: Path, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_POLL", 0.01)
    begun = threading.Event()

    def hold() -> None:
        with lock_file(tmp_path / "lock"):
            begun.set()
            time.sleep(0.05)

    holder = threading.Thread(target=hold)
    holder.start()
    begun.wait()
    with (
        pytest.raises(LockedError),
        lock_file(tmp_path / "lock", shared=shared, wait=0.0),
    ):
        pass
    with lock_file(tmp_path / "lock", shared=shared, wait=10.0):
        pass
    holder.join()


def test_killed_holder_leaves_nothing_but_children_that_inherit_the_lock_keep_it(
    tmp_path: Path,
) -> None:
    code = (
        "import os, subprocess, sys\nfrom pathlib import Path\n"
        "from t2t.storage.locks import lock_file\n"
        "with lock_file(Path(sys.argv[1])) as held:\n"
        "    null = subprocess.DEVNULL\n"
        "    child = subprocess.Popen(['sleep', '60'], pass_fds=[held], stdout=null)\n"
        "    print(child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "lock"
    done = subprocess.run([sys.executable, "-c", code, path], stdout=subprocess.PIPE, check=False)
    with pytest.raises(LockedError, match="process "), lock_file(path, wait=0.0):
        pass
    os.kill(int(done.stdout), 9)
    with lock_file(path, wait=10.0):
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
