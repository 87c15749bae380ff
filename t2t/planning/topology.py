"""Opens a topology such as `v5e:16x16`, `h100:8` or `cpu:8`: devices to compile for."""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Mapping

import jax
from jax.experimental import topologies

from t2t.config.fields import ConfigError
from t2t.planning.chips import CHIPS, Chip, Gpu, Tpu
from t2t.runtime.jax_settings import list_plugins

# Keeps libtpu from querying Google's cloud for the machine type and from locking out others.
_COMPILE_ONLY = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """The devices to compile for, all of one kind."""

    name: str
    chip: Chip
    devices: tuple[jax.Device, ...]


def open_topology(name: str, slices: int = 1) -> Topology:
    """Opens the topology of this name, or several TPU slices of it.

    Raises:
        ConfigError: the name is unknown, or its compiler is not installed.
    """
    found = re.fullmatch(r"(?P<chip>\w+):(?P<sizes>\d+(x\d+)*)", name)
    if found is None or found["chip"] not in CHIPS:
        raise ConfigError(
            f"--topology={name} is unknown; write v5e:16x16, v6e:4x4, v5p:4x4x4, v4:2x2x4, h100:8, "
            "h100:8x4 (4 hosts of 8), a100:8, h200:8, b200:8 or cpu:8"
        )
    chip, sizes = CHIPS[found["chip"]], [int(size) for size in found["sizes"].split("x")]
    if not all(sizes):
        raise ConfigError(f"--topology={name} has no devices; write sizes of 1 or more")
    if slices != 1 and not (isinstance(chip, Tpu) and chip.slice_bandwidth and slices > 1):
        raise ConfigError(
            f"--slices={slices}: several slices can be planned of v5e, v5p and v6e, whose data "
            "sheets state the bandwidth between slices; hosts of GPUs are a part of the name, as "
            "in --topology=h100:8x4"
        )
    match chip:
        case Tpu():
            devices = _open_tpu(name, chip, sizes, slices)
        case Gpu():
            devices = _open_gpu(name, chip, sizes)
            share = read_memory_share(os.environ)
            chip = dataclasses.replace(chip, memory_bytes=share * chip.memory_bytes)
        case _:
            devices = _open_cpu(name, math.prod(sizes))
    return Topology(f"{slices} x {name}" if slices > 1 else name, chip, tuple(devices))


def read_memory_share(environment: Mapping[str, str]) -> float:
    """The share of a GPU's memory that JAX takes when it starts.

    Raises:
        ConfigError: the variable that sets it has no such value.
    """
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        if text := environment.get(name):
            try:
                share = float(text)
            except ValueError:
                share = math.nan
            if not 0 < share <= 1:
                raise ConfigError(f"{name}={text} must be between 0 and 1")
            return share
    return 0.75


def _open_gpu(name: str, chip: Gpu, sizes: list[int]) -> list[jax.Device]:
    if not any(plugin.startswith("xla_cuda") for plugin in list_plugins()):
        raise ConfigError(
            f"--topology={name} needs NVIDIA's compiler, which is not installed (neither a GPU nor "
            "a driver is needed); pip install -e '.[cuda]', or use --topology=cpu:8"
        )
    if len(sizes) > 2:
        raise ConfigError(
            f"--topology={name}: write {chip.name}:GPUSxHOSTS, such as {chip.name}:8x4 for 4 hosts "
            "of 8 GPUs"
        )
    gpus, hosts = [*sizes, 1][:2]
    # With jax_platforms=cpu nothing initialises the driver of a GPU that this machine may have.
    described = topologies.get_topology_desc(
        platform="cuda", target_config=chip.target_config(), topology=f"1x{hosts}x{gpus}"
    )
    return list(described.devices)


def _open_tpu(name: str, chip: Tpu, sizes: list[int], slices: int) -> list[jax.Device]:
    if importlib.util.find_spec("libtpu") is None:
        raise ConfigError(
            f"--topology={name} needs the TPU compiler, libtpu, which is not installed (a TPU is "
            "not needed); pip install -e '.[tpu]', or use --topology=cpu:8"
        )
    for variable, value in _COMPILE_ONLY.items():
        os.environ.setdefault(variable, value)
    options: dict[str, object] = dict(chip.topology_options)
    if slices > 1:
        options["num_slices"] = slices
    if math.prod(sizes) < 4:  # fewer chips than a host has
        options["chips_per_host_bounds"] = (1, 1, 1)
    try:
        described = topologies.get_topology_desc(topology_name=name, platform="tpu", **options)
    except jax.errors.JaxRuntimeError as error:
        raise ConfigError(f"--topology={name}: {error}") from None
    return list(described.devices)


def _open_cpu(name: str, count: int) -> list[jax.Device]:
    """Returns fake CPU devices; JAX fixes their number when it initialises its backends."""
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):  # already initialised; there may be enough
            jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise ConfigError(
            f"--topology={name}: JAX has {len(devices)} CPU devices already; set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count} for the whole program"
        )
    return devices[:count]
