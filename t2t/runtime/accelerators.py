"""Accelerators of this machine, looked for without initialising JAX."""

import importlib.metadata
import importlib.util
import os
import shutil
from pathlib import Path

_GPUS = ("nvidia*", "nvhost*", "dxg")  # in /dev: of a server, a Jetson, and Linux within Windows
_TPUS = ("accel[0-9]*", "vfio/[0-9]*")  # in /dev; newer TPUs are vfio/0, ...


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Returns whether this machine has an NVIDIA GPU or its driver."""
    return _any(devices, _GPUS) or shutil.which("nvidia-smi") is not None


def has_tpu(devices: Path = Path("/dev")) -> bool:
    """Returns whether this machine has TPU chips."""
    return _any(devices, _TPUS)


def list_plugins() -> list[str]:
    """Names of JAX's plugins that are installed, such as xla_cuda12; libtpu is none of them."""
    return [plugin.name for plugin in importlib.metadata.entry_points(group="jax_plugins")]


def skip_absent_accelerators() -> None:
    """Makes JAX take the CPU if packages for GPUs or TPUs are installed but no such device is here.

    It sets a variable that JAX reads when it is imported, so call it before.

    JAX tries all that is installed, and each package without its device prints an error. JAX is
    left alone if the user chose platforms, if there is a device of either kind, so that it can
    report what is wrong with it, and if a package for other devices is installed.
    """
    if "JAX_PLATFORMS" in os.environ or "JAX_FORCE_TPU_INIT" in os.environ:
        return
    plugins = list_plugins()
    unknown = [name for name in plugins if not name.startswith("xla_cuda")]
    useless = bool(plugins) or importlib.util.find_spec("libtpu") is not None
    if unknown or not useless or has_gpu() or has_tpu():
        return
    os.environ["JAX_PLATFORMS"] = "cpu"


def _any(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(any(folder.glob(pattern)) for pattern in patterns)
