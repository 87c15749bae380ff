"""Programs of a sweep or a pipeline, run one after the other in processes that stay warm.

A process that has run a program keeps its packages and its compiled programs for the next one
(`t2t.runtime.warm_worker`). That is done on CPUs alone: a process that stays would keep the memory
of its GPU, or the chips of its TPU, from programs that are started otherwise.
"""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO

from t2t.config.requests import HOSTS
from t2t.runtime.child_programs import assign_resources, start_program
from t2t.runtime.machine_speed import may_have_accelerator

MODULES = ("t2t.train", "t2t.evaluate")  # programs that a warm process runs
_WORKER = sys.executable, "-m", "t2t.runtime.warm_worker"
_PAUSE = 0.05  # seconds between two looks at a process
_ANSWER = 60.0  # seconds until a process has to take a program, which it does at once


class Running:
    """A program that runs, with the methods of `subprocess.Popen` that a scheduler needs.

    Attributes:
        pid: the process, which runs other programs before and after if it is warm.
        returncode: the exit status, the negative number of the signal that killed the program, or
            None while it runs.
        core_seconds: what the program and its children have used, known when it has ended.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], command: Sequence[str], used_before: float = 0.0
    ):
        """`used_before` are the core-seconds that the process had used before."""
        self.args, self.pid = command, process.pid
        self.returncode: int | None = None
        self.core_seconds: float | None = None
        self._process, self._used_before = process, used_before

    def poll(self) -> int | None:
        """Returns `returncode`, without waiting."""
        if self.returncode is None:
            self._look(0.0)
        return self.returncode

    def wait(self) -> int:
        """Waits for the end; returns `returncode`."""
        while self.returncode is None:
            self._look(_PAUSE)
        return self.returncode

    def measure_cores(self) -> float:
        """Returns the core-seconds so far; without /proc they are 0 until the program has ended."""
        if self.poll() is not None:
            return self.core_seconds or 0.0
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        except OSError:
            return 0.0
        used = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return max(0.0, used - self._used_before)

    def terminate(self) -> None:
        """Sends SIGTERM, unless the program has ended."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL, unless the program has ended."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _look(self, seconds: float) -> None:
        """Notes the end of the program, if it comes within so many seconds."""
        number, status, used = os.wait4(self.pid, os.WNOHANG)
        if number:
            self._process.returncode = os.waitstatus_to_exitcode(status)  # Popen would wait, too
            self._end(self._process.returncode, used.ru_utime + used.ru_stime - self._used_before)
        else:
            time.sleep(seconds)

    def _end(self, status: int, core_seconds: float) -> None:
        self.returncode, self.core_seconds = status, core_seconds


class _RunningWarm(Running):
    """A program in a warm process, which answers when the program has ended well."""

    def __init__(self, worker: "_Worker", command: Sequence[str]):
        super().__init__(worker.process, command, worker.used)
        self._worker = worker

    def _look(self, seconds: float) -> None:
        if not select.select([self._worker.channel], [], [], seconds)[0]:
            return
        if answer := self._worker.receive(4096):
            used = json.loads(answer)["core_seconds"]
            self._end(0, used - self._used_before)
            self._worker.used = used
        else:  # the process has ended, or is about to
            super()._look(seconds)


class _Worker:
    """A warm process, and this side of the channel through which it gets programs."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, setting: object):
        self.process, self.channel, self.setting = process, channel, setting
        self.used = 0.0  # core-seconds until the end of its last program
        channel.settimeout(_ANSWER)

    def take(self, command: Sequence[str], files: Sequence[int]) -> bool:
        """Gives the process a program and its files; returns whether it begins."""
        try:
            socket.send_fds(self.channel, [b"\n"], files)
            self.channel.sendall(json.dumps([*command]).encode() + b"\n")
        except OSError:
            return False
        return self.receive(1) == b"\n"

    def receive(self, size: int) -> bytes:
        """Returns what the process has sent; empty if it has ended."""
        try:
            return self.channel.recv(size)
        except OSError:
            return b""

    def close(self) -> None:
        """Lets the process end after its program, and waits for it."""
        self.channel.close()
        self.process.wait()


def stop_programs(processes: Collection[Running]) -> None:
    """Tells all programs to save and stop, and waits; a second Ctrl-C kills them.

    A second SIGTERM has no effect: launchers may send several.
    """
    previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for process in processes:
        process.terminate()
    try:
        for process in processes:
            process.wait()
    except KeyboardInterrupt:
        for process in processes:
            process.kill()
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)


class WarmPrograms:
    """Starts programs as `start_program` does; each worker has a warm process for those it can run.

    These are the programs of `MODULES`, in one process and on CPUs. A program that fails or is
    killed takes its process along, and the next one gets a new process. So does a program after the
    code has changed, with another environment or share of the cores, and after one with plugins.
    If this process is killed, warm processes end after the program that they are running.

    It is a context, at whose end the warm processes end. The thread that starts programs has to
    last as long, since Linux takes its end for the end of this process.
    """

    def __init__(self) -> None:
        self._workers: dict[int, _Worker] = {}

    def __enter__(self) -> "WarmPrograms":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def start(
        self,
        command: Sequence[str],
        worker: int,
        workers: int,
        stdout: IO[bytes],
        stderr: IO[bytes],
        lock: int,
    ) -> Running:
        """Starts a program; the arguments are those of `start_program`.

        Raises:
            ConfigError: as `assign_resources`.
        """
        share = worker, workers, stdout, stderr
        if not is_warm(command):
            return Running(start_program(command, *share, lock), command)
        files = stdout.fileno(), stderr.fileno(), lock
        setting = assign_resources(worker, workers, os.environ)
        found = self._workers.pop(worker, None)
        if found and not (found.setting == setting and found.take(command, files)):
            found.close()
            found = None
        if found is None:
            here, there = socket.socketpair()
            with there:
                started = start_program(_WORKER, *share, None, there.fileno())
            found = _Worker(started, here, setting)
            if not found.take(command, files):
                found.close()
                return Running(start_program(command, *share, lock), command)
        self._workers[worker] = found
        return _RunningWarm(found, command)


def is_warm(command: Sequence[str]) -> bool:
    """Returns whether a warm process may run this program."""
    hosts = re.compile(rf"--?(no)?({'|'.join(HOSTS)})(=|$)")
    return (
        [*command[:2]] == [sys.executable, "-m"]
        and command[2] in MODULES
        and not any(map(hosts.match, command))
        and hasattr(socket, "send_fds")
        and not may_have_accelerator()
    )
