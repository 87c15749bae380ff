"""Multi-process runs: start-up, and work that process 0 does before the others.

All processes run the same program in step and share the run directory and the cache. Process 0
writes metrics, scores and messages; each process writes its own shards of a checkpoint.
"""

import contextlib
import itertools
import logging
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping

import jax
import numpy as np
from jax._src.distributed import global_state  # JAX has no public barrier without devices
from jax.experimental import multihost_utils

from t2t.config.fields import ConfigError

COORDINATOR_TIMEOUT = 300.0  # seconds until process 0 has to answer, as JAX waits
LONGEST_WAIT = 24 * 3600  # seconds, for the slowest process: it may tokenise a large corpus
_barriers = itertools.count()


def join(
    distributed: bool,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    shares_signals: bool = False,
) -> None:
    """Connects to the other processes; call it before anything uses a device.

    JAX finds each argument that is None by itself under SLURM, Open MPI and GKE and on TPU pods.

    Args:
        distributed: Whether there are other processes; if not, the function does nothing.
        coordinator: HOST:PORT on which process 0 waits for the others.
        num_processes: Number of processes on all hosts.
        process_id: Number of this process, from 0.
        shares_signals: Whether JAX tells a SIGTERM to all processes, which then have to ask for it
            (`t2t.runtime.signals.catch_signals`); otherwise it ends this process.

    Raises:
        ConfigError: no launcher started this process, or SLURM shows it other GPUs than JAX
            expects.
        CoordinatorError: process 0 does not answer.
    """
    if not distributed:
        return
    check_visible_gpus(os.environ)
    if coordinator and process_id:
        wait_for_coordinator(coordinator, COORDINATOR_TIMEOUT)
    jax.config.update("jax_enable_preemption_service", shares_signals)
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id)
    except ValueError as error:
        if "defined" not in str(error):  # "... must be defined": JAX found no launcher
            raise
        raise ConfigError(
            "--distributed: no launcher started this process; start it with srun or sbatch, with "
            "Open MPI, or on GKE or a TPU pod, give --coordinator, --num_processes and "
            "--process_id, or leave --distributed out"
        ) from None
    if not is_first():
        logging.getLogger().setLevel(logging.WARNING)


class CoordinatorError(RuntimeError):
    """Process 0 does not answer; the message names its address."""


def wait_for_coordinator(address: str, seconds: float) -> None:
    """Waits until process 0 listens: JAX would end this process with a dump of its stacks.

    Raises:
        CoordinatorError: it does not listen after so many seconds.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise CoordinatorError(
                    f"--coordinator={address} does not answer after {seconds:.0f} s: {error}; is "
                    "process 0 running there, and may hosts reach its port?"
                ) from RuntimeError("UNAVAILABLE")  # so that launchers try again
        time.sleep(0.5)


def check_visible_gpus(environment: Mapping[str, str]) -> None:
    """Checks that a task of SLURM sees one GPU for each task of its node.

    JAX takes the GPU whose number among the visible ones is that of the task on its node. It fails
    where each task sees only its own (`--gpus-per-task`), and leaves GPUs idle where there are
    fewer tasks.

    Raises:
        ConfigError: the numbers differ, and JAX_LOCAL_DEVICE_IDS does not say which GPUs to take.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    tasks = count_tasks(environment)
    if not visible or tasks is None or environment.get("JAX_LOCAL_DEVICE_IDS"):
        return
    if len(visible.split(",")) != tasks:
        raise ConfigError(
            f"this task sees the GPUs {visible}, but its node has {tasks} tasks, and JAX takes the "
            "GPU with the number of the task: let tasks see all GPUs of the job, with srun "
            "--gpu-bind=none, or set JAX_LOCAL_DEVICE_IDS to the GPUs of this task"
        )


def count_tasks(environment: Mapping[str, str]) -> int | None:
    """Returns the number of SLURM's tasks on this node; None if SLURM did not start this one."""
    text, node = environment.get("SLURM_STEP_TASKS_PER_NODE"), environment.get("SLURM_NODEID")
    if not text or not node:
        return None
    counts = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):  # 8(x2),4
        counts += [int(tasks)] * int(times or 1)
    return counts[int(node)]


def is_first() -> bool:
    """Returns whether this is process 0, which writes files and messages."""
    return jax.process_index() == 0


@contextlib.contextmanager
def process_0_first() -> Iterator[None]:
    """A context that process 0 enters first; the others follow, and find the files that it wrote.

    If process 0 raises a ValueError or RuntimeError, as all errors of t2t are, the others go on and
    raise the same one themselves. After any other exception they end, since process 0 is lost.
    """
    if not is_first():
        wait_for_all()
        yield
        return
    try:
        yield
    except (ValueError, RuntimeError):
        wait_for_all()
        raise
    wait_for_all()


def wait_for_all() -> None:
    """Waits until all processes have called this function as often as this process has.

    It waits in JAX's coordination service, which notices within 100 seconds if a process is lost. A
    collective would occupy the devices, and some of their runtimes give up on one that takes
    minutes.
    """
    if jax.process_count() == 1:
        return
    client = global_state.client
    assert client is not None
    client.wait_at_barrier(f"t2t {next(_barriers)}", timeout_in_ms=1000 * LONGEST_WAIT)


def broadcast_from_process_0(fact: bool) -> bool:
    """Returns process 0's `fact` on all processes.

    Processes that look for a file at different times may disagree on whether it exists.
    """
    return bool(multihost_utils.broadcast_one_to_all(np.asarray(fact)))
