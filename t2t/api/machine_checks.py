"""The checks of `t2t.doctor`: processes, devices, network and disk.

Modules that need more packages than JAX are imported where they are used, so that one that cannot
be imported is a finding of its check alone.
"""

import contextlib
import math
import os
import platform
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec

from t2t.api.package_checks import Finding, attempt
from t2t.config.fields import Config, MeshConfig
from t2t.runtime.distributed import broadcast_from_process_0, is_first, process_0_first
from t2t.runtime.jax_settings import has_gpu, has_tpu
from t2t.runtime.mesh import make_mesh, split_into_slices
from t2t.runtime.text_tables import show_bytes
from t2t.storage.atomic_files import (
    check_writable,
    drop_from_page_cache,
    explain_write_errors,
    make_folder,
    measure_free_space,
    write_file,
)
from t2t.storage.paths import describe_error, storage_errors
from t2t.training.run_directory import RunError

CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # of a container, in microseconds per period
_CORES = 4  # per process with an accelerator: the input pipeline, the compiler, checkpoints
_SKEW = 5  # seconds
_SLOW = 10  # MB/s of one process


def examine(workdir: Path | None, config: Config | None = None) -> Iterator[tuple[str, Finding]]:
    """Runs the checks of this process one by one; yields name and finding.

    The disk has to hold the config's checkpoints.
    """
    yield "process", attempt(find_process)
    yield "devices", attempt(find_devices)
    yield "devices per process", attempt(find_shares)
    yield "slices", attempt(find_slices)
    yield "cores", attempt(find_cores)
    yield "model.dtype=auto", attempt(find_dtype)
    yield "memory", attempt(find_memory)
    yield "collective", attempt(find_collective)
    yield "attention", attempt(find_attention)
    yield "clocks", attempt(find_clocks)
    if workdir:
        yield "disk", attempt(find_disk, workdir, config)
        yield "run directory", attempt(find_shared_directory, workdir)
        yield "bandwidth", attempt(find_bandwidth, workdir, config)


def find_process() -> Finding:
    """Checks that the processes of one launcher know of each other."""
    value = f"{jax.process_index()} of {jax.process_count()}, {platform.node()}"
    started = {
        "SLURM": os.environ.get("SLURM_NTASKS", "") if "SLURM_PROCID" in os.environ else "",
        "Open MPI": os.environ.get("OMPI_COMM_WORLD_SIZE", ""),
        "Cloud TPU": str(len(os.environ.get("TPU_WORKER_HOSTNAMES", "").split(","))),
    }
    for launcher, count in started.items():
        if count.isdigit() and int(count) > 1 and jax.process_count() == 1:
            problem = f"{launcher} started {count} processes, and each works alone"
            return Finding(value, f"{problem}: add --distributed")
    return Finding(value)


def find_devices() -> Finding:
    """Describes the devices and the default mesh; notices an accelerator that JAX does not use."""
    local, everywhere = jax.local_devices(), jax.devices()
    kinds, problem = sorted({device.device_kind for device in everywhere}), ""
    if len(kinds) > 1:
        problem = "several kinds of devices: the slowest sets the pace"
    elif local[0].platform == "cpu" and os.environ.get("JAX_PLATFORMS") != "cpu":
        if has_gpu():
            problem = (
                "this host has an NVIDIA driver, but JAX has no CUDA: pip install -e '.[cuda]'"
            )
        elif has_tpu():
            problem = "this host has a TPU, but JAX has no libtpu: pip install -e '.[tpu]'"
    mesh = dict(make_mesh(MeshConfig()).shape)
    value = f"{len(local)} here, {len(everywhere)} in all, {' and '.join(kinds)}, mesh {mesh}"
    return Finding(value, problem)


def find_shares() -> Finding:
    """Checks that all processes have equally many devices."""
    counts = Counter(device.process_index for device in jax.devices())
    most, fewest = max(counts.values()), min(counts.values())
    value = str(most) if most == fewest else f"{fewest} to {most}"
    if has_gpu() and (installed := len(list(Path("/dev").glob("nvidia[0-9]*")))):
        value += f", {installed} GPUs in this machine"
    problem = "the processes with fewest set the pace: give all equally many"
    return Finding(value, problem if most > fewest else "")


def find_slices() -> Finding:
    """Compares the number of TPU slices that JAX sees with the one that the launcher states."""
    found, stated = str(len(split_into_slices(jax.devices()))), os.getenv("MEGASCALE_NUM_SLICES")
    problem = (
        f"MEGASCALE_NUM_SLICES={stated}: the slices do not know of each other; start the program "
        "on all hosts of all slices with --distributed"
    )
    return Finding(found, "" if stated in (None, found) else problem)


def find_cores() -> Finding:
    """Counts the cores of this process: its affinity, and the limit of its container."""
    cores = float(len(os.sched_getaffinity(0)))
    if CPU_LIMIT.is_file():
        quota, _, period = CPU_LIMIT.read_text("utf-8").partition(" ")
        cores = min(cores, int(quota) / int(period)) if quota.isdigit() else cores
    needed = 1 if jax.default_backend() == "cpu" else _CORES
    problem = (
        f"too few beside an accelerator: give each process {_CORES} or more "
        "(sbatch --cpus-per-task=8; Kubernetes: resources.requests.cpu)"
    )
    return Finding(f"{cores:g} for this process", problem if cores < needed else "")


def find_dtype() -> Finding:
    """Names the dtype with which `model.dtype=auto` trains a new run."""
    if jax.default_backend() != "cpu":
        return Finding("bfloat16")
    from t2t.training.resume import trains_in_mixed

    return Finding("mixed" if trains_in_mixed() else "float32")


def find_memory() -> Finding:
    """Measures the memory of a device and of the host."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    device = f"{limit / 1e9:.1f} GB per device, " if limit is not None else ""
    return Finding(f"{device}{host:.1f} GB and {os.cpu_count()} cores on the host")


def find_collective() -> Finding:
    """Sums one number per device over all devices; the time does not include compilation."""
    mesh = make_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        numbers = jax.device_put(np.arange(1, mesh.size + 1), PartitionSpec("data"))
        add = jax.jit(jnp.sum).lower(numbers).compile()
        add(numbers).block_until_ready()
        started = time.perf_counter()
        total = int(add(numbers))
        seconds = time.perf_counter() - started
    expected = mesh.size * (mesh.size + 1) // 2
    value = f"a sum over {mesh.size} devices in {1000 * seconds:.2f} ms"
    problem = "" if total == expected else f"the sum is {total} instead of {expected}"
    return Finding(value, problem)


def find_attention() -> Finding:
    """Differentiates attention over a row of 64 positions, half of them padding that sees no key.

    It does so for an encoder's mask and for a causal one, which cuDNN computes by another kernel.
    Logits are -128: such gradients were not finite on an H100 (t2t/ops/cudnn_attention.py).
    """
    from t2t.model.kv_cache import KeyValue
    from t2t.ops import select_kernels

    ones = jnp.ones((1, 64, 1, 64), jnp.bfloat16)
    real = jnp.arange(64) < 32
    mask = (real[:, None] & real)[None, None]

    def sum_heads(query: jax.Array, memory: KeyValue, causal: bool) -> jax.Array:
        if causal:
            heads = select_kernels.fast_causal_attention(query, memory, jnp.tril(mask))
        else:
            heads = select_kernels.fast_attention(query, memory, mask)
        return heads[:, :32].astype(jnp.float32).sum()

    differentiate = jax.jit(jax.grad(sum_heads, (0, 1)), static_argnums=2)
    problems = []
    for causal in (False, True):
        kind = "causal: " * causal
        try:
            gradients = differentiate(ones, KeyValue(-16 * ones, ones), causal)
            if not all(jnp.isfinite(one).all() for one in jax.tree.leaves(gradients)):
                problems.append(f"{kind}they are not finite")
        except Exception as error:  # of a compiler or cuDNN: a finding
            problems.append(kind + str(error).strip().partition("\n")[0])
    remedy = ": train with --config.model.kernels=textbook, and report it"
    problem = f"{', '.join(problems)}{remedy}" if problems else ""
    return Finding("gradients over 64 positions", problem)


def find_clocks() -> Finding:
    """Compares the clocks of all processes."""
    multihost_utils.sync_global_devices("clocks")
    # In milliseconds, without the days: they fit into the 32 bits that JAX sends.
    now = np.asarray(int(1000 * time.time()) % 2**30, np.int32)
    shown = np.asarray(multihost_utils.process_allgather(now)).ravel().tolist()
    differences = [(one - shown[0] + 2**29) % 2**30 - 2**29 for one in shown]
    skew = (max(differences) - min(differences)) / 1000
    problem = "" if skew < _SKEW else "the clocks differ: switch on NTP or chrony on all machines"
    return Finding(f"{skew:.1f} s apart", problem)


def find_disk(workdir: Path, config: Config | None = None) -> Finding:
    """Checks that the run directory is writable and has space for the config's checkpoints."""
    try:
        with explain_write_errors(RunError, workdir):
            make_folder(workdir)
            check_writable(workdir)
    except RunError as error:
        return Finding(str(workdir), str(error))
    free = measure_free_space(workdir)
    amount = "a bucket has no limit" if free == math.inf else f"{show_bytes(free, 3)} free"
    value, problem = f"{amount} in {workdir}", ""
    if config:
        from t2t.training.disk_space import (
            describe_checkpoints,
            estimate_checkpoint,
            find_missing_space,
        )

        size = estimate_checkpoint(config)
        missing = find_missing_space(workdir, config, size)
        fits = "does not fit" if missing else "fits"
        value += f"; --config keeps {describe_checkpoints(config, size)}: {fits}"
        problem = (
            f"{show_bytes(missing, 3)} too few: free some space, lower checkpoints.keep_last,"
            " or choose another --workdir; training stops when the disk is full"
        )
        problem *= bool(missing)
    return Finding(value, problem)


def find_shared_directory(workdir: Path) -> Finding:
    """Checks that this process can read a file that process 0 wrote in the run directory."""
    word = multihost_utils.broadcast_one_to_all(jnp.asarray(secrets.randbits(31)))
    path, found = workdir / ".doctor", ""
    # find_disk reports a directory that is not writable.
    with process_0_first(), contextlib.suppress(OSError):
        if is_first():
            path.write_text(str(word), "utf-8")
        found = path.read_text("utf-8")
    multihost_utils.sync_global_devices("all have looked")
    if is_first() and found:
        path.unlink()
    if not broadcast_from_process_0(bool(found)):
        return Finding("not written by process 0, so not compared")
    if found == str(word):
        return Finding("shared by all processes")
    problem = f"process 0 has another {workdir}: use a shared file system"
    return Finding("", problem)


def find_bandwidth(workdir: Path, config: Config | None = None, size: int = 2**25) -> Finding:
    """Writes and reads a file in the run directory, in all processes at once, as checkpoints are.

    What was written is dropped from the page cache before it is read, where the system can do so.
    """
    path, content = workdir / f".doctor-{jax.process_index()}", secrets.token_bytes(size)
    multihost_utils.sync_global_devices("bandwidth")
    started = time.perf_counter()
    try:
        write_file(path, content)
        drop_from_page_cache(path)
        written = time.perf_counter()
        same = path.read_bytes() == content
        read = time.perf_counter()
        path.unlink()
    except storage_errors() as error:
        return Finding(f"unknown: {describe_error(error)}")  # see "disk"
    writing, reading = (size / 1e6 / max(x, 1e-6) for x in (written - started, read - written))
    value = f"writes {writing:.0f} MB/s, reads {reading:.0f} MB/s in each process"
    if config:
        from t2t.training.disk_space import estimate_checkpoint

        needed = estimate_checkpoint(config)
        seconds = needed / 1e6 / writing / jax.process_count()
        value += (
            f": a checkpoint of {show_bytes(needed, 3)} takes {seconds:.1f} s, while training goes "
            "on"
        )
    problem = "" if same else "what was read is not what was written: the file system is broken"
    if same and writing < _SLOW:
        problem = f"less than {_SLOW} MB/s: choose another disk, or raise checkpoints.every"
    return Finding(value, problem)
