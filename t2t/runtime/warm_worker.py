"""Runs programs one after the other in this process: `python -m t2t.runtime.warm_worker`.

`t2t.runtime.warm_programs` starts it, and says through a socket, its standard input, which programs
to run. The first one imports packages and loads compiled programs, and the next ones find them.
Each has the environment, the streams, the signals and the flags of a new process. A program that
fails, or that a signal stops, ends this process with its exit status.
"""

import contextlib
import gc
import json
import os
import resource
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_SIGNALS = signal.SIGINT, signal.SIGTERM
# Kilobytes by which the memory of this process may grow after its first program: models of other
# shapes leave their compiled programs behind.
MOST_GROWTH = 2 << 20
# Mappings of memory, of which Linux allows a process 65,530 by default. XLA needs some for each
# kernel of a compiled program; without any it crashes.
MOST_MAPPINGS = 20_000


def work(channel: socket.socket) -> None:
    """Runs the programs that come through the channel, until its other end is closed.

    It ends before that, without an answer, if a module has changed since it was imported, and after
    a program that has left something behind, or when its memory has grown by `MOST_GROWTH` or has
    `MOST_MAPPINGS`.
    """
    began, lines, has_run, memory = time.time(), channel.makefile("rb"), False, 0
    while not (has_run and (has_left_something() or is_full(memory))):
        marker, files, _, _ = socket.recv_fds(channel, 1, 3)
        if not marker or (has_run and has_changed(began)):
            return
        command, (stdout, stderr, lock) = json.loads(lines.readline()), files
        channel.sendall(b"\n")  # the program begins
        for number, file in enumerate((stdout, stderr), start=1):
            os.dup2(file, number)
            os.close(file)
        with _as_new():
            _run(command)
        has_run, memory = True, memory or measure_memory()
        os.close(lock)  # which the program held until its end
        answer = {"core_seconds": measure_cores()}
        channel.sendall(json.dumps(answer).encode() + b"\n")


def _run(command: list[str]) -> None:
    """Runs PYTHON -m MODULE ARGUMENTS; returns only if its exit status is 0."""
    sys.orig_argv[:], sys.argv[:] = command, command[2:]
    try:
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise


@contextlib.contextmanager
def _as_new() -> Iterator[None]:
    """A context for a program that ends well; after it, the process is as it was before."""
    from absl import app, flags

    app.define_help_flags()  # which it does only once
    known = {*flags.FLAGS}
    environment, handlers = dict(os.environ), [signal.getsignal(number) for number in _SIGNALS]
    hooks = sys.excepthook, sys.unraisablehook
    yield
    for number, handler in zip(_SIGNALS, handlers, strict=True):
        signal.signal(number, handler)
    sys.excepthook, sys.unraisablehook = hooks
    os.environ.clear()
    os.environ.update(environment)
    for name in {*flags.FLAGS} - known:  # those of packages stay, since their modules do
        is_own = flags.FLAGS.find_module_defining_flag(name) not in sys.modules
        if is_own or name.startswith("config."):
            delattr(flags.FLAGS, name)
    sys.stdout.flush()
    sys.stderr.flush()
    with Path(os.devnull).open("wb") as nowhere:  # the files of the program may be moved now
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    gc.collect()  # parameters and corpora in reference cycles


def has_changed(began: float) -> bool:
    """Returns whether the file of an imported module is newer than this process, or is missing."""
    files = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    try:
        return any(Path(file).stat().st_mtime > began for file in files if file)
    except OSError:
        return True


def has_left_something() -> bool:
    """Returns whether a program has left variants of the user's, or threads at work."""
    from t2t.config.variants import list_plugins

    threads = [each for each in threading.enumerate() if not each.daemon]
    return bool(list_plugins()) or len(threads) > 1


def is_full(memory: int) -> bool:
    """Returns whether programs have left too much in memory since it had so many kilobytes."""
    return measure_memory() > memory + MOST_GROWTH or count_mappings() > MOST_MAPPINGS


def count_mappings() -> int:
    """Returns the mappings of this process's memory; 0 where nothing tells."""
    try:
        with Path("/proc/self/maps").open("rb") as lines:
            return sum(1 for _ in lines)
    except OSError:
        return 0


def measure_memory() -> int:
    """Returns the most memory that this process has had so far, in kilobytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most // 1024 if sys.platform == "darwin" else most


def measure_cores() -> float:
    """Returns the core-seconds that this process and its children have used so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    with socket.socket(fileno=os.dup(0)) as channel:
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        work(channel)
