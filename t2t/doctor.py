"""What each process sees, and what is wrong with it: `python -m t2t.doctor [--workdir=RUN]`.

To be run as training will be, with the same launcher and environment. With --config=RECIPE, as
training takes it, the disk has to hold the checkpoints of that recipe. Exit status 1: something is
wrong.
"""

import contextlib
import importlib.metadata
import os
import platform
import re
import runpy
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec

from t2t.config.fields import Config, MeshConfig
from t2t.config.flags import define_config, read_config
from t2t.config.recipes import RECIPES
from t2t.model.flops import count_parameters
from t2t.runtime import program
from t2t.runtime.compilation_cache import enable_compilation_cache
from t2t.runtime.distributed import is_first, join, process_0_first
from t2t.runtime.mesh import make_mesh
from t2t.training.disk_space import measure_space

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint")
CONSTRAINTS = Path(__file__).parents[1] / "launch" / "constraints"  # the versions that were tested


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    seen: str
    problem: str = ""  # and its remedy


def examine(workdir: Path | None, config: Config | None = None) -> Iterator[Finding]:
    """All findings of this process, each as soon as it is there."""
    yield find_versions()
    yield find_untested_versions()
    yield Finding("process", f"{jax.process_index()} of {jax.process_count()}, {platform.node()}")
    yield find_devices()
    yield find_memory()
    yield find_flags()
    yield find_collective()
    yield find_compilation_cache()
    if workdir:
        yield find_disk(workdir, config)
        yield find_shared(workdir)


def find_versions() -> Finding:
    """Of Python and of the packages that decide what is computed."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    seen = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Finding("versions", f"Python {platform.python_version()}, {seen}")


def find_untested_versions() -> Finding:
    """Packages in a version with which the tests did not run on this Python.

    They are no problem as such: requirements.txt allows ranges.
    """
    what, python = "untested versions", f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not CONSTRAINTS.is_dir():
        return Finding(what, "unknown: launch/constraints/ is in the checkout alone")
    tested: dict[str, set[str]] = {}
    for path in CONSTRAINTS.glob(f"{python}*.txt"):
        for name, version in re.findall(r"^(\S+)==(\S+)", path.read_text(), re.MULTILINE):
            tested.setdefault(name, set()).add(version)
    if not tested:
        return Finding(what, f"all: {python} is none of those in launch/constraints/")
    untested = []
    for name, versions in tested.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            if (installed := importlib.metadata.version(name)) not in versions:
                untested.append(f"{name} {installed} instead of {' or '.join(sorted(versions))}")
    if not untested:
        return Finding(what, "none")
    remedy = f"pip install -r requirements.txt -c launch/constraints/{python}.txt"
    return Finding(what, f"{', '.join(untested)}; tested ones: {remedy}")


def find_devices() -> Finding:
    """Those of this process among all, and the mesh that they make by default."""
    local, everywhere = jax.local_devices(), jax.devices()
    kinds = sorted({device.device_kind for device in everywhere})
    mesh = dict(make_mesh(MeshConfig()).shape)
    seen = f"{len(local)} here, {len(everywhere)} in all, {' and '.join(kinds)}, mesh {mesh}"
    if len(kinds) > 1:
        return Finding("devices", seen, "devices of several kinds: the slowest sets the pace")
    if local[0].platform == "cpu" and (hidden := find_hidden_accelerator()):
        return Finding("devices", seen, hidden)
    return Finding("devices", seen)


def find_hidden_accelerator() -> str:
    """What is wrong where JAX takes the CPU although there is something faster; else nothing."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return ""
    if shutil.which("nvidia-smi"):
        return "there is an NVIDIA driver, but JAX has no CUDA: install requirements-cuda.txt"
    if Path("/dev/accel0").exists() or Path("/dev/vfio/0").exists():
        return "there is a TPU, but JAX has no libtpu: install requirements-tpu.txt"
    return ""


def find_memory() -> Finding:
    """Of each device, where it tells, and of the host."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    stats = jax.local_devices()[0].memory_stats() or {}
    device = f"{stats['bytes_limit'] / 1e9:.1f} GB a device, " if "bytes_limit" in stats else ""
    return Finding("memory", f"{device}{host / 1e9:.1f} GB and {os.cpu_count()} cores on the host")


def find_flags() -> Finding:
    """What the runtime is told by the environment (README, "Flags of the runtime")."""
    names = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "GLIBC_TUNABLES")
    given = [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]
    if jax.default_backend() == "cpu" and "hugetlb" not in os.environ.get("GLIBC_TUNABLES", ""):
        given.append("with GLIBC_TUNABLES=glibc.malloc.hugetlb=1 training is faster under Linux")
    return Finding("runtime flags", ", ".join(given) or "none")


def find_collective() -> Finding:
    """A sum over one number from each device, and how long it takes when it is compiled."""
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
    seen = f"a sum over {count} devices in {1000 * seconds:.2f} ms"
    problem = "" if total == expected else f"it gave {total} instead of {expected}"
    return Finding("collective", seen, problem)


def find_compilation_cache() -> Finding:
    """Whether a program that was compiled before is found again."""
    folder = jax.config.values["jax_compilation_cache_dir"]
    if not folder:
        remedy = "set JAX_COMPILATION_CACHE_DIR to a folder, and later starts compile nothing"
        return Finding("compilation cache", f"off; {remedy}")
    hits = 0

    def count(event: str, **_: str | int) -> None:
        nonlocal hits
        hits += event == "/jax/compilation_cache/cache_hits"

    number = secrets.randbits(20)  # a program that nobody compiled before
    jax.monitoring.register_event_listener(count)
    options = {
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: jax.config.values[name] for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    for _ in range(2):  # another function each time, but the same program
        jax.jit(lambda x: x + number)(jnp.zeros(()))
    for name, value in before.items():
        jax.config.update(name, value)
    jax.monitoring.unregister_event_listener(count)
    problem = "" if hits else f"nothing is found again in {folder}: is it writable?"
    return Finding("compilation cache", folder, problem)


def find_disk(workdir: Path, config: Config | None = None) -> Finding:
    """Space in the run directory for a config's checkpoints, and whether one may write there.

    Without a config those of base and big are looked at, and base has to fit.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        probe = workdir / f".doctor-{jax.process_index()}"
        probe.write_text("probe")
        probe.unlink()
    except OSError as error:
        return Finding("disk", str(workdir), f"cannot be written: {error.strerror}")
    names = (
        {"--config": config} if config else {name: read_recipe(name) for name in ("base", "big")}
    )
    spaces = {}
    for name, recipe in names.items():
        vocab_size = recipe.tokenizer.vocab_size
        size = count_parameters(recipe.model, vocab_size, vocab_size)
        spaces[name] = measure_space(workdir, recipe, size)
    first = next(iter(spaces.values()))
    seen = [f"{first.free / 1e9:.1f} GB free in {workdir}"]
    seen += [
        f"{name} keeps {space.describe()}: {'does not fit' if space.missing else 'fits'}"
        for name, space in spaces.items()
    ]
    problem = (
        f"{first.missing / 1e9:.1f} GB too few: free some space, lower checkpoints.keep_last, or "
        "choose another --workdir; training stops when the disk is full"
    )
    return Finding("disk", "; ".join(seen), problem if first.missing else "")


def read_recipe(name: str) -> Config:
    """A recipe of t2t's own."""
    config = runpy.run_path(str(RECIPES / f"{name}.py"))["get_config"]()
    assert isinstance(config, Config)
    return config


def find_shared(workdir: Path) -> Finding:
    """Whether what process 0 writes is seen here."""
    word = multihost_utils.broadcast_one_to_all(jnp.asarray(secrets.randbits(31)))
    path = workdir / ".doctor"

    def look() -> str:
        with contextlib.suppress(OSError):  # that it cannot be written is said elsewhere
            if is_first():
                path.write_text(str(word))
            return path.read_text()
        return ""

    found = process_0_first(look)
    multihost_utils.sync_global_devices("all have looked")
    if is_first() and found:
        path.unlink()
    problem = (
        "" if found == str(word) else f"{workdir} is not the one of process 0: use a shared disk"
    )
    return Finding("run directory", "shared by all processes" if not problem else "", problem)


def main(show: Callable[[str], None] = print) -> int:
    """Prints the findings of this process; the exit status."""
    enable_compilation_cache()
    join(**program.read_hosts())
    workdir = flags.FLAGS.workdir
    config = read_config() if flags.FLAGS["config"].value else None
    healthy = True
    for finding in examine(Path(workdir).expanduser() if workdir else None, config):
        healthy &= not finding.problem
        wrong = f"  WRONG: {finding.problem}" if finding.problem else ""
        show(f"{finding.what}: {finding.seen}{wrong}")
    return 0 if healthy else 1


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "A run directory, to see whether it can be written.")
    define_config(required=False)
    program.define_hosts()
    program.run(main)
