"""Programs that run as child processes, each with its share of the cores and GPUs."""

import contextlib
import ctypes
import importlib.util
import itertools
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from t2t.config.fields import ConfigError
from t2t.runtime.jax_settings import has_tpu

CPUS = Path("/sys/devices/system/cpu")
PARENT = "T2T_PARENT"  # variable with the process whose end ends a program
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def start_program(
    command: Sequence[str],
    worker: int,
    workers: int,
    stdout: IO[bytes],
    stderr: IO[bytes],
    lock: int | None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Starts the program of one of several workers.

    `lock` is the file descriptor of a lock, which the program inherits and holds until it ends.
    The program gets SIGTERM if this process is killed (on Linux; see `end_with_parent`).
    """
    cores, environment = assign_resources(worker, workers, os.environ)
    with _pinned_to(cores):
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            # Unbuffered streams keep the order of stdout and stderr.
            env=environment | {"PYTHONUNBUFFERED": "1", PARENT: str(os.getpid())},
            pass_fds=[] if lock is None else [lock],
            process_group=0,  # so that Ctrl-C signals only the parent
        )


def end_with_parent() -> bool:
    """Makes this process get SIGTERM when its parent ends, if the parent has asked for it.

    Only on Linux. A function that runs between fork and exec could do it, but not in a parent with
    threads, which those of JAX are. Returns False if the parent has ended already.
    """
    parent = os.environ.pop(PARENT, "")
    if parent:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    return parent in ("", str(os.getppid()))


def find_reason(status: int, output: bytes) -> str:
    """Returns the signal that killed a process, else its last exception or last line.

    Status 1 is that of an exception. Behind others, such as a refusal, threads may have raised one.
    """
    if status < 0:
        names = {each.value: each.name for each in signal.Signals}
        return f"killed by {names.get(-status, f'signal {-status}')}"  # real-time ones have no name
    text = output.decode(errors="replace")
    lines = [line.strip() for line in re.split(r"[\r\n]", text) if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return ((status == 1 and raised) or lines or [f"exit status {status}"])[-1]


def assign_resources(
    worker: int, workers: int, environment: Mapping[str, str]
) -> tuple[set[int], dict[str, str]]:
    """Returns Linux's CPUs (empty: all) and the environment of one of several workers.

    Workers share no NVIDIA GPU, and no core unless there are fewer cores than workers.

    Raises:
        ConfigError: there are fewer GPUs than workers, or several workers would use a TPU.
    """
    if workers == 1:
        return set(), dict(environment)
    if uses_tpu(environment):
        raise ConfigError(
            f"--workers={workers}: every process claims all TPU chips of this machine, so the "
            "second one fails; use --workers=1, or JAX_PLATFORMS=cpu to train on the CPU"
        )
    gpus = find_gpus(environment)
    if gpus and len(gpus) < workers:
        raise ConfigError(f"--workers={workers} is more than the {len(gpus)} GPUs; use fewer")
    mine = {"CUDA_VISIBLE_DEVICES": ",".join(gpus[worker::workers])} if gpus else {}
    cores = list_cores()
    if len(cores) < workers:
        cores = [[thread] for core in cores for thread in core]
    return {*itertools.chain(*cores[worker::workers])}, {**environment, **mine}


def list_cores() -> list[list[int]]:
    """Lists the cores that this process may use, each with its hardware threads.

    Linux calls each thread a CPU. Without such a list, each is a core; elsewhere there are none.
    """
    cores: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else ():
        siblings = CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        name = siblings.read_text("utf-8") if siblings.exists() else f"{cpu}"
        cores.setdefault(name, []).append(cpu)
    return [*cores.values()]


def find_gpus(environment: Mapping[str, str]) -> list[str]:
    """Returns the GPUs that JAX would use, without initialising JAX."""
    if (environment.get("JAX_PLATFORMS") or "cuda").split(",")[0] not in ("cuda", "gpu"):
        return []
    if "CUDA_VISIBLE_DEVICES" in environment:  # CUDA ignores what follows a negative number
        names = environment["CUDA_VISIBLE_DEVICES"].split(",")
        return [*itertools.takewhile(lambda name: name and not name.startswith("-"), names)]
    return [str(n) for n, _ in enumerate(Path("/proc/driver/nvidia/gpus").glob("*"))]


def uses_tpu(environment: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Returns whether JAX would use a TPU, without initialising JAX.

    JAX_PLATFORMS decides if it is set. Otherwise JAX uses a TPU if libtpu is installed and there
    are chips.
    """
    if platforms := environment.get("JAX_PLATFORMS"):
        return "tpu" in platforms.split(",")
    return has_tpu(devices) and importlib.util.find_spec("libtpu") is not None


@contextlib.contextmanager
def _pinned_to(cores: set[int]) -> Iterator[None]:
    """Restricts child processes that are started inside the block to these cores."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
