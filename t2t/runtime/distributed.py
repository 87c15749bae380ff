"""Multi-process runs: start-up, and work that process 0 does before the others.

All processes run the same program in step and share the run directory and the cache. Process 0
writes metrics, scores and messages; each process writes its own shards of a checkpoint.
"""

import itertools
import logging
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax._src.distributed import global_state  # JAX has no public barrier without devices
from jax.experimental import multihost_utils

T = TypeVar("T")

# A process that sends no heartbeat for this long counts as lost, and the others end with an error.
HEARTBEAT_TIMEOUT = 30  # seconds
LONGEST_WAIT = 24 * 3600  # seconds, for the slowest process: it may tokenise a large corpus
_barriers = itertools.count()


def join(
    distributed: bool,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> None:
    """Connects to the other processes; call it before anything uses a device.

    JAX finds each argument that is None by itself under SLURM, Open MPI and GKE and on TPU pods.

    Args:
        distributed: Whether there are other processes; if not, the function does nothing.
        coordinator: HOST:PORT on which process 0 waits for the others.
        num_processes: Number of processes on all hosts.
        process_id: Number of this process, from 0.
    """
    if not distributed:
        return
    jax.distributed.initialize(
        coordinator, num_processes, process_id, heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT
    )
    if not is_first():
        logging.getLogger().setLevel(logging.WARNING)


def is_first() -> bool:
    """Returns whether this is process 0, which writes files and messages."""
    return jax.process_index() == 0


def process_0_first(work: Callable[[], T]) -> T:
    """Runs `work` in process 0 first, then in all others, which find the files that it wrote.

    If it raises in process 0, that process ends, and so do the others.
    """
    if not is_first():
        wait_for_all()
    result = work()
    if is_first():
        wait_for_all()
    return result


def wait_for_all() -> None:
    """Waits until all processes have called this function as often as this process has.

    It waits in JAX's coordination service, which notices within `HEARTBEAT_TIMEOUT` seconds if a
    process is lost. A collective would occupy the devices, and some of their runtimes give up on
    one that takes minutes.
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
