"""`examine`: checks of devices, packages, network and disk."""

import contextlib
import importlib.metadata
import math
import os
import platform
import re
import runpy
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec

from t2t.config.fields import Config, MeshConfig
from t2t.config.recipes import PACKAGE, RECIPES
from t2t.model.flops import count_parameters
from t2t.runtime.accelerators import has_gpu, has_tpu
from t2t.runtime.cluster_checks import (
    Finding,
    find_clocks,
    find_cores,
    find_process,
    find_shares,
    find_slices,
    list_settings,
)
from t2t.runtime.distributed import broadcast_from_process_0, is_first, process_0_first
from t2t.runtime.mesh import make_mesh
from t2t.runtime.units import show_bytes
from t2t.storage.atomic_files import (
    check_writable,
    drop_from_page_cache,
    explain_write_errors,
    make_folder,
    write_file,
)
from t2t.storage.paths import describe_error, is_storage_error
from t2t.training.disk_space import count_bytes_per_parameter, measure_space
from t2t.training.run_directory import RunError

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint")
_SLOW = 10  # MB/s of one process
CONSTRAINTS = PACKAGE.parent / "scripts" / "constraints"  # tested package versions


def examine(workdir: Path | None, config: Config | None = None) -> Iterator[Finding]:
    """Runs the checks of this process one by one."""
    yield find_versions()
    yield find_untested_versions()
    yield find_process()
    yield find_devices()
    yield find_shares(jax.devices())
    yield find_slices(jax.devices())
    yield find_cores()
    yield find_memory()
    yield find_flags()
    yield find_collective()
    yield find_clocks()
    yield find_compilation_cache()
    if workdir:
        yield find_disk(workdir, config)
        yield find_shared_directory(workdir)
        yield find_bandwidth(workdir, config or read_recipe("base"))


def find_versions() -> Finding:
    """The versions of Python and of the packages that decide what is computed."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Finding("versions", f"Python {platform.python_version()}, {listed}")


def find_untested_versions() -> Finding:
    """Installed packages in a version that the tests did not run with on this Python.

    They are not a problem in themselves: requirements.txt allows ranges.
    """
    title, python = "untested versions", f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not CONSTRAINTS.is_dir():
        return Finding(title, "unknown: scripts/constraints/ exists only in the checkout")
    tested: dict[str, set[str]] = {}
    for path in CONSTRAINTS.glob(f"{python}*.txt"):
        for name, version in re.findall(r"^(\S+)==(\S+)", path.read_text("utf-8"), re.MULTILINE):
            tested.setdefault(name, set()).add(version)
    if not tested:
        return Finding(title, f"all: scripts/constraints/ has no file for {python}")
    untested = []
    for name, versions in tested.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            if (installed := importlib.metadata.version(name)) not in versions:
                untested.append(f"{name} {installed} instead of {' or '.join(sorted(versions))}")
    if not untested:
        return Finding(title, "none")
    remedy = f"pip install -r requirements.txt -c scripts/constraints/{python}.txt"
    return Finding(title, f"{', '.join(untested)}; to install tested ones: {remedy}")


def find_devices() -> Finding:
    """The devices of this process and of all processes, and the default mesh."""
    local, everywhere = jax.local_devices(), jax.devices()
    kinds = sorted({device.device_kind for device in everywhere})
    mesh = dict(make_mesh(MeshConfig()).shape)
    value = f"{len(local)} here, {len(everywhere)} in all, {' and '.join(kinds)}, mesh {mesh}"
    if len(kinds) > 1:
        return Finding("devices", value, "several kinds of devices: the slowest sets the pace")
    if local[0].platform == "cpu" and (hidden := find_hidden_accelerator()):
        return Finding("devices", value, hidden)
    return Finding("devices", value)


def find_hidden_accelerator() -> str:
    """Describes an accelerator that JAX does not use; empty if there is none."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return ""
    if has_gpu():
        return "this host has an NVIDIA driver, but JAX has no CUDA: pip install -e '.[cuda]'"
    if has_tpu():
        return "this host has a TPU, but JAX has no libtpu: pip install -e '.[tpu]'"
    return ""


def find_memory() -> Finding:
    """The memory of the first local device, if its backend reports it, and of the host."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    stats = jax.local_devices()[0].memory_stats() or {}
    device = f"{stats['bytes_limit'] / 1e9:.1f} GB per device, " if "bytes_limit" in stats else ""
    return Finding("memory", f"{device}{host / 1e9:.1f} GB and {os.cpu_count()} cores on the host")


def find_flags() -> Finding:
    """The runtime flags that are set in the environment (README, "Flags of the runtime")."""
    given = list_settings()
    if jax.default_backend() == "cpu" and "hugetlb" not in os.environ.get("GLIBC_TUNABLES", ""):
        given.append("with GLIBC_TUNABLES=glibc.malloc.hugetlb=1 training is faster under Linux")
    return Finding("runtime flags", ", ".join(given) or "none")


def find_collective() -> Finding:
    """Sums one number per device over all devices; checks the sum and measures the time.

    The time does not include compilation.
    """
    mesh = make_mesh(MeshConfig())
    count = mesh.size
    with jax.set_mesh(mesh):
        numbers = jax.device_put(np.arange(1, count + 1), PartitionSpec("data"))
        add = jax.jit(jnp.sum).lower(numbers).compile()
        add(numbers).block_until_ready()
        started = time.perf_counter()
        total = int(add(numbers))
        seconds = time.perf_counter() - started
    expected = count * (count + 1) // 2
    value = f"a sum over {count} devices in {1000 * seconds:.2f} ms"
    problem = "" if total == expected else f"the sum is {total} instead of {expected}"
    return Finding("collective", value, problem)


def find_compilation_cache() -> Finding:
    """Compiles one program twice and checks that the second time reads JAX's compilation cache."""
    folder = jax.config.values["jax_compilation_cache_dir"]
    if not folder:
        remedy = "set JAX_COMPILATION_CACHE_DIR to a folder, so that later starts compile nothing"
        return Finding("compilation cache", f"off; {remedy}")
    if not is_first():
        return Finding("compilation cache", f"{folder}, which process 0 writes")
    hits = 0

    def count(event: str, **_: str | int) -> None:
        nonlocal hits
        hits += event == "/jax/compilation_cache/cache_hits"

    number = secrets.randbits(20)  # a program that is not in the cache yet
    jax.monitoring.register_event_listener(count)
    options = {
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: jax.config.values[name] for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    for _ in range(2):  # a new function each time, so that JAX compiles the same program again
        jax.jit(lambda x: x + number)(jnp.zeros(()))
    for name, value in before.items():
        jax.config.update(name, value)
    jax.monitoring.unregister_event_listener(count)
    problem = "" if hits else f"a compiled program was not found again in {folder}: is it writable?"
    return Finding("compilation cache", folder, problem)


def find_disk(workdir: Path, config: Config | None = None) -> Finding:
    """Checks that the run directory is writable and has space for the config's checkpoints.

    Without a config, the sizes of the recipes base and big are shown, and base must fit.
    """
    try:
        with explain_write_errors(RunError, workdir):
            make_folder(workdir)
            check_writable(workdir)
    except RunError as error:
        return Finding("disk", str(workdir), str(error))
    names = (
        {"--config": config} if config else {name: read_recipe(name) for name in ("base", "big")}
    )
    spaces = {}
    for name, recipe in names.items():
        vocab_size = recipe.tokenizer.vocab_size
        size = count_parameters(recipe.model, vocab_size, vocab_size)
        spaces[name] = measure_space(workdir, recipe, size)
    first = next(iter(spaces.values()))
    free = (
        "a bucket has no limit" if first.free == math.inf else f"{show_bytes(first.free, 3)} free"
    )
    values = [f"{free} in {workdir}"]
    values += [
        f"{name} keeps {space.describe()}: {'does not fit' if space.missing else 'fits'}"
        for name, space in spaces.items()
    ]
    problem = (
        f"{show_bytes(first.missing, 3)} too few: free some space, lower checkpoints.keep_last, or "
        "choose another --workdir; training stops when the disk is full"
    )
    return Finding("disk", "; ".join(values), problem if first.missing else "")


def find_bandwidth(workdir: Path, config: Config, size: int = 2**25) -> Finding:
    """Writes and reads a file in the run directory, in all processes at once, as checkpoints are.

    What was written is dropped from the page cache before it is read, where the system can do so.
    """
    path = workdir / f".doctor-{jax.process_index()}"
    content = secrets.token_bytes(size)
    multihost_utils.sync_global_devices("bandwidth")
    started = time.perf_counter()
    try:
        write_file(path, content)
        drop_from_page_cache(path)
        written = time.perf_counter()
        same = path.read_bytes() == content
        read = time.perf_counter()
        path.unlink()
    except Exception as error:
        if not is_storage_error(error):
            raise
        return Finding("bandwidth", f"unknown: {describe_error(error)}")  # see "disk"
    rates = [size / 1e6 / max(took, 1e-6) for took in (written - started, read - written)]
    vocab_size = config.tokenizer.vocab_size
    size = count_parameters(config.model, vocab_size, vocab_size)
    needed = count_bytes_per_parameter(config) * size
    seconds = needed / 1e6 / rates[0] / jax.process_count()
    value = (
        f"writes {rates[0]:.0f} MB/s, reads {rates[1]:.0f} MB/s in each process: a checkpoint of "
        f"{show_bytes(needed, 3)} takes {seconds:.1f} s, while training goes on"
    )
    problem = "" if same else "what was read is not what was written: the file system is broken"
    if same and rates[0] < _SLOW:
        problem = f"less than {_SLOW} MB/s: choose another disk, or raise checkpoints.every"
    return Finding("bandwidth", value, problem)


def read_recipe(name: str) -> Config:
    """Reads a recipe that comes with t2t."""
    config = runpy.run_path(str(RECIPES / f"{name}.py"))["get_config"]()
    assert isinstance(config, Config)
    return config


def find_shared_directory(workdir: Path) -> Finding:
    """Checks that this process can read a file that process 0 wrote in the run directory."""
    word = multihost_utils.broadcast_one_to_all(jnp.asarray(secrets.randbits(31)))
    path = workdir / ".doctor"

    def look() -> str:
        with contextlib.suppress(OSError):  # find_disk reports a directory that is not writable
            if is_first():
                path.write_text(str(word), "utf-8")
            return path.read_text("utf-8")
        return ""

    found = process_0_first(look)
    multihost_utils.sync_global_devices("all have looked")
    if is_first() and found:
        path.unlink()
    if not broadcast_from_process_0(bool(found)):
        return Finding("run directory", "not written by process 0, so not compared")
    problem = (
        "" if found == str(word) else f"process 0 has another {workdir}: use a shared file system"
    )
    return Finding("run directory", "shared by all processes" if not problem else "", problem)
