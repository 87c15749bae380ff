"""How JAX starts: its devices, its settings in the environment, and compiled programs on disk.

Only `enable_compilation_cache` imports JAX: the others are called before.
"""

import contextlib
import importlib.metadata
import importlib.util
import itertools
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from t2t.config.fields import ConfigError
from t2t.storage.atomic_files import check_writable, make_folder

_log = logging.getLogger(__name__)
# The folder of `enable_compilation_cache`, once that has been called; None also for a bucket.
program_folder: Path | None = None

_GPUS = ("nvidia*", "nvhost*", "dxg")  # in /dev: of a server, a Jetson, and Linux within Windows
_TPUS = ("accel[0-9]*", "vfio/[0-9]*")  # in /dev; newer TPUs are vfio/0, ...
_TRUE = ("y", "yes", "t", "true", "on", "1")  # as JAX reads its variables
_EXTRAS = {"cuda": "cuda", "gpu": "cuda", "tpu": "tpu"}  # by platform
_INVALID = re.compile(r"for (?:environment '(JAX_\w+)'|JAX flag (jax_\w+))")
# Settings that change the numbers that a key gives, with JAX's defaults.
_GENERATOR = {"JAX_DEFAULT_PRNG_IMPL": "threefry2x32", "JAX_THREEFRY_PARTITIONABLE": "1"}

CACHE_FOLDER = Path("~/.cache/t2t/xla")
CACHE_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
KEPT_DAYS = 30  # programs not used for this many days are removed
PROGRAM = ".t2t"  # ends the names of programs of `t2t.runtime.saved_programs`
SHORTEST_COMPILATION = 0.1  # seconds: programs that compile faster are not kept


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Returns whether this machine has an NVIDIA GPU or its driver."""
    found = any(any(devices.glob(pattern)) for pattern in _GPUS)
    return found or shutil.which("nvidia-smi") is not None


def has_tpu(devices: Path = Path("/dev")) -> bool:
    """Returns whether this machine has TPU chips."""
    return any(any(devices.glob(pattern)) for pattern in _TPUS)


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


def check_precision(enabled: bool | None = None) -> None:
    """Checks that JAX computes in 32 bits, without importing it.

    In 64 bits other initial parameters are drawn, and the loops of the search have two types.
    `enabled` is `jax.config.jax_enable_x64`; None: what JAX_ENABLE_X64 says.

    Raises:
        ConfigError: it computes in 64 bits.
    """
    value = os.environ.get("JAX_ENABLE_X64", "")
    if value.lower() in _TRUE if enabled is None else enabled:
        name = f"JAX_ENABLE_X64={value}" if value else "jax_enable_x64"
        raise ConfigError(f"{name}: t2t computes in 32 bits or fewer; unset it")


def read_generator(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of JAX's random generator, as variables of the environment."""
    found = {name: environment.get(name, default) for name, default in _GENERATOR.items()}
    return {name: "1" if value.lower() in _TRUE else value for name, value in found.items()}


def read_xla_flags() -> str:
    """Returns XLA_FLAGS, or the content of the file that it names.

    XLA takes it for the name of a file unless it begins with "-", and reads no flag from a file
    that begins with anything else.
    """
    text = os.environ.get("XLA_FLAGS", "")
    if not text or text.lstrip().startswith("-"):
        return text
    try:
        content = Path(text).read_text("utf-8", "replace")
    except OSError:
        return text  # XLA ends the process, with a message
    return content if content.lstrip().startswith("-") else ""


def find_xla_flag(name: str) -> str | None:
    """Returns the value of one of XLA's flags, "true" if it has none; None: it is not set."""
    found = re.findall(rf"(?<!\S)--{name}(?:=(\S*))?(?!\S)", read_xla_flags())
    return found[-1].strip("'\"") or "true" if found else None  # the last setting counts


def explain_jax_error(error: Exception) -> str | None:
    """Returns the message of an error that a variable of JAX causes; None: it is another one."""
    if isinstance(error, ValueError) and (found := _INVALID.search(str(error))):
        name = (found[1] or found[2]).upper()
        return f"{name}={os.environ.get(name)} is no value that JAX knows; unset it"
    chosen = os.environ.get("JAX_PLATFORMS", "")
    if isinstance(error, RuntimeError) and str(error).startswith("Unable to initialize backend"):
        reason = str(error).splitlines()[0].split(" (set JAX_PLATFORMS")[0].rstrip(".")
    elif chosen and isinstance(error, AssertionError) and not error.args and _lacks_devices():
        reason = "JAX finds no such device"
    else:
        return None
    if not chosen:
        return reason
    extras = {_EXTRAS[name] for name in chosen.split(",") if name in _EXTRAS}
    install = "".join(f"pip install -e '.[{name}]', or " for name in sorted(extras))
    return f"JAX_PLATFORMS={chosen}: {reason}; {install}unset JAX_PLATFORMS"


def _lacks_devices() -> bool:
    """Returns whether JAX fails to find any device: it does so with an assertion alone."""
    try:
        return "jax" in sys.modules and not sys.modules["jax"].devices()
    except AssertionError:
        return True


def enable_compilation_cache() -> None:
    """Enables JAX's persistent compilation cache, and `t2t.runtime.saved_programs` beside it.

    Call it before anything is compiled.

    If JAX_COMPILATION_CACHE_DIR is set, it names the folder (empty: no cache), all other settings
    are JAX's as well, and JAX's own programs are not removed. A folder that cannot be written is
    only a warning. If a process was killed while it wrote an entry, JAX compiles that program again
    and warns at each start until the entry is deleted.

    This function removes old programs itself: in JAX 0.10 `jax_compilation_cache_max_size` stops
    adding programs once an entry has no access time, which a killed process can leave behind, and
    it needs the package filelock.
    """
    global program_folder
    if "XLA_FLAGS" in os.environ:  # JAX's key has the text of the variable, not that of a file
        os.environ["XLA_FLAGS"] = read_xla_flags()
    if (given := os.environ.get(CACHE_VARIABLE)) is not None:
        program_folder = Path(given) if given and "://" not in given else None
        if program_folder:
            _remove_old(program_folder, f"*{PROGRAM}")
        return
    import jax

    folder = CACHE_FOLDER.expanduser()
    try:
        make_folder(folder)
        check_writable(folder)
        _remove_old(folder, "*-cache", f"*{PROGRAM}")
    except OSError as error:
        _log.warning(
            "%s cannot be written (%s), so each start compiles again; set %s to another folder",
            folder, error.strerror, CACHE_VARIABLE,
        )  # fmt: skip
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST_COMPILATION)
    program_folder = folder


def _remove_old(folder: Path, *patterns: str) -> None:
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for entry in itertools.chain.from_iterable(map(folder.glob, patterns)):
        with contextlib.suppress(FileNotFoundError):  # another process may do the same
            stat = entry.stat()
            if max(stat.st_atime, stat.st_mtime) < oldest:
                entry.unlink()
