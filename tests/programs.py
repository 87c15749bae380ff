"""Programs in processes that have imported everything already, so that each starts at once.

They are forks of a server that has not used JAX yet. Everything else is as `python -m` has it: a
process with an environment, streams, signals and an exit status. Where a promise depends on how
Python itself starts or ends, or on a pipe or a terminal, tests start a Python of their own.
"""

import atexit
import contextlib
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "tests.programs",
        "tests.tiny_training",
        "t2t.api.evaluate_run",
        "t2t.api.line_translator",
        "t2t.api.text_scorer",
        "t2t.api.train_run",
    ]
)


def make_environment(**changed: str) -> dict[str, str]:
    """The environment of programs: that of the tests, with one device, which starts sooner."""
    one_device = {"XLA_FLAGS": os.environ["XLA_FLAGS"].replace("=8", "=1", 1)}
    return dict(os.environ) | one_device | {"PYTHONPATH": str(ROOT)} | changed


def _become(
    command: tuple[str, ...], environment: dict[str, str], folder: Path, streams: tuple[Path, ...]
) -> None:
    """Runs a program in this process, which has nothing else to do."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in enumerate(streams):
        mode = os.O_WRONLY | os.O_CREAT | os.O_APPEND if number else os.O_RDONLY
        os.dup2(os.open(path, mode), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  (as long as the process)
    sys.argv = [*command]
    try:
        if command[0].endswith(".py"):
            runpy.run_path(command[0], run_name="__main__")
        else:
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()


def _call(environment: dict[str, str], function: Callable[..., None], *arguments: object) -> None:
    os.environ.clear()
    os.environ.update(environment)
    function(*arguments)


def call(function: Callable[..., None], *arguments: object) -> ForkServerProcess:
    """Starts a process that calls a function of a module with the environment of programs."""
    process = CONTEXT.Process(target=_call, args=(make_environment(), function, *arguments))
    process.start()
    return process


class Program:
    """A running program, such as `t2t.train --workdir=...`; its output goes to files."""

    def __init__(
        self,
        *command: str,
        given: bytes = b"",
        folder: Path = ROOT,
        environment: Mapping[str, str] | None = None,
    ):
        self.args = command
        self.stdout = self.stderr = ""  # known when the block ends
        self._files = tempfile.TemporaryDirectory()
        self._streams = tuple(Path(self._files.name, name) for name in ("in", "out", "err"))
        for path, content in zip(self._streams, (given, b"", b""), strict=True):
            path.write_bytes(content)
        self._process: ForkServerProcess = CONTEXT.Process(
            target=_become,
            args=(command, dict(environment or make_environment()), folder, self._streams),
        )
        self._process.start()

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        """Kills the program if it runs still."""
        self._process.kill()
        self._process.join()
        self.stdout, self.stderr = (path.read_bytes().decode() for path in self._streams[1:])
        self._files.cleanup()

    @property
    def messages(self) -> str:
        """The output so far, followed by the messages."""
        if self.stdout or self.stderr:
            return self.stdout + self.stderr
        return b"".join(path.read_bytes() for path in self._streams[1:]).decode()

    @property
    def pid(self) -> int:
        assert self._process.pid
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def find_children(self) -> list[int]:
        """Returns the ids of the processes that the program has started, in order."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return sorted(map(int, children.split()))

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float = 1200) -> int:
        """Waits for the end; returns the exit status, or the negative number of a signal."""
        self._process.join(timeout)
        status = self._process.exitcode
        assert status is not None, f"{self.args} did not end within {timeout} s: {self.messages}"
        return status


def run(
    *command: str,
    given: bytes = b"",
    folder: Path = ROOT,
    environment: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Runs a program to its end."""
    with Program(*command, given=given, folder=folder, environment=environment) as program:
        status = program.wait()
    return subprocess.CompletedProcess(command, status, program.stdout, program.stderr)


def write_program(path: Path, text: str) -> Path:
    """Writes a script that can be called, such as a stub of another program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def refuse(*command: str, **given: Any) -> str:
    """Runs a program that refuses to start; returns its message, which is one line."""
    done = run(*command, **given)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


def run_python(
    *arguments: str, folder: Path = ROOT, environment: Mapping[str, str] = os.environ
) -> "subprocess.CompletedProcess[str]":
    """Runs a Python of its own, in which nothing is imported yet."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1200,
    )


@contextlib.contextmanager
def start_two(code: str) -> "Iterator[list[subprocess.Popen[str]]]":
    """Starts two Pythons of their own that find each other, and kills what is left of them."""
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        meeting = [f"--coordinator=localhost:{unused.getsockname()[1]}", "--num_processes=2"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, *meeting, f"--process_id={number}"],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
