"""Several processes, one program: how they find each other, and what one does before the others.

All processes run the same program in step and share the run directory and the cache. Process 0
writes metrics, scores and messages; of a checkpoint each process writes its own shards.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

T = TypeVar("T")

# A process that is silent for so long is given up, and the others end with a message.
HEARTBEAT_TIMEOUT = 30  # seconds


def join(
    distributed: bool,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> None:
    """Joins the other processes, before anything else touches a device.

    Args:
        distributed: there are others; if not, nothing is done.
        coordinator: HOST:PORT on which process 0 waits for the others. This and what follows is
            found by JAX where it is None: under SLURM, Open MPI, GKE, and on TPU pods.
        num_processes: of the program, on all hosts.
        process_id: of this one, counted from 0.
    """
    if not distributed:
        return
    jax.distributed.initialize(
        coordinator, num_processes, process_id, heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT
    )
    if not is_first():
        logging.getLogger().setLevel(logging.WARNING)


def is_first() -> bool:
    """Whether this process is the one that writes and speaks."""
    return jax.process_index() == 0


def first_alone(work: Callable[[], T]) -> T:
    """`work` in process 0; when it is done there, in all others, who find its files.

    Where it fails in process 0 that process ends, and the others with it.
    """
    if not is_first():
        multihost_utils.sync_global_devices("first alone")
    result = work()
    if is_first():
        multihost_utils.sync_global_devices("first alone")
    return result


def first_decides(fact: bool) -> bool:
    """Process 0's `fact` on all processes: a file may appear between two that look for it."""
    return bool(multihost_utils.broadcast_one_to_all(np.asarray(fact)))
