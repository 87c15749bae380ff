"""Checks of processes, cores, clocks and slices, which `t2t.doctor` runs in every process."""

import os
import platform
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from t2t.runtime.accelerators import has_gpu
from t2t.runtime.mesh import split_into_slices

_CORES = 4  # per process with an accelerator: the input pipeline, the compiler, checkpoints
_SKEW = 5  # seconds


class Finding(NamedTuple):
    """The result of one check."""

    name: str
    value: str
    problem: str = ""  # with its remedy; empty: none


def find_process(environment: Mapping[str, str] = os.environ) -> Finding:
    """The number of this process; checks that processes of one launcher know of each other."""
    value = f"{jax.process_index()} of {jax.process_count()}, {platform.node()}"
    started = {
        "SLURM": environment.get("SLURM_NTASKS", "") if "SLURM_PROCID" in environment else "",
        "Open MPI": environment.get("OMPI_COMM_WORLD_SIZE", ""),
        "Cloud TPU": str(len(environment.get("TPU_WORKER_HOSTNAMES", "").split(","))),
    }
    for launcher, count in started.items():
        if count.isdigit() and int(count) > 1 and jax.process_count() == 1:
            problem = f"{launcher} started {count} processes, and each works alone"
            return Finding("process", value, f"{problem}: add --distributed")
    return Finding("process", value)


def find_shares(devices: Sequence[jax.Device]) -> Finding:
    """The devices of each process, which should have equally many."""
    counts = Counter(device.process_index for device in devices)
    most, fewest = max(counts.values()), min(counts.values())
    value = str(most) if most == fewest else f"{fewest} to {most}"
    if has_gpu() and (installed := len(list(Path("/dev").glob("nvidia[0-9]*")))):
        value += f", {installed} GPUs in this machine"
    problem = (
        "" if most == fewest else "the processes with fewest set the pace: give all equally many"
    )
    return Finding("devices per process", value, problem)


def find_cores(available: int | None = None) -> Finding:
    """The cores that this process may use: its affinity, and the limit of its container."""
    cores = float(len(os.sched_getaffinity(0)) if available is None else available)
    limit = Path("/sys/fs/cgroup/cpu.max")
    if available is None and limit.is_file():
        quota, _, period = limit.read_text("utf-8").partition(" ")
        cores = min(cores, int(quota) / int(period)) if quota.isdigit() else cores
    needed = 1 if jax.default_backend() == "cpu" else _CORES
    problem = (
        f"too few beside an accelerator: give each process {_CORES} or more "
        "(sbatch --cpus-per-task=8; Kubernetes: resources.requests.cpu)"
    )
    return Finding("cores", f"{cores:g} for this process", problem if cores < needed else "")


def find_clocks() -> Finding:
    """The difference of the clocks of all processes; saved scores and logs compare times."""
    multihost_utils.sync_global_devices("clocks")
    # Milliseconds without the days, which fit into the 32 bits that JAX sends.
    now = np.asarray(int(1000 * time.time()) % 2**30, np.int32)
    times = np.asarray(multihost_utils.process_allgather(now)).ravel()
    return judge_clocks(times.tolist())


def judge_clocks(milliseconds: Sequence[int]) -> Finding:
    """Compares clocks that were read at the same time."""
    first = milliseconds[0]
    differences = [(one - first + 2**29) % 2**30 - 2**29 for one in milliseconds]
    skew = (max(differences) - min(differences)) / 1000
    problem = "" if skew < _SKEW else "the clocks differ: switch on NTP or chrony on all machines"
    return Finding("clocks", f"{skew:.1f} s apart", problem)


def find_slices(
    devices: Sequence[jax.Device], environment: Mapping[str, str] = os.environ
) -> Finding:
    """The TPU slices that JAX sees, and the number that the launcher states."""
    found, stated = len(split_into_slices(devices)), environment.get("MEGASCALE_NUM_SLICES")
    problem = (
        f"MEGASCALE_NUM_SLICES={stated}: the slices do not know of each other; start the program "
        "on all hosts of all slices with --distributed"
    )
    return Finding("slices", str(found), "" if stated in (None, str(found)) else problem)


def list_settings(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The variables that change what the runtime, NCCL and libtpu do."""
    names = r"XLA_FLAGS|LIBTPU_INIT_ARGS|GLIBC_TUNABLES|JAX_LOCAL_DEVICE_IDS|(NCCL|MEGASCALE)_.*"
    return [
        f"{name}={value}"
        for name, value in sorted(environment.items())
        if value and re.fullmatch(names, name)
    ]
