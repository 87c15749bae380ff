"""Keeps compiled programs on disk, so that a restarted run compiles nothing."""

import contextlib
import logging
import os
import tempfile
import time
from pathlib import Path

import jax

_log = logging.getLogger(__name__)

FOLDER = Path("~/.cache/t2t/xla")
VARIABLE = "JAX_COMPILATION_CACHE_DIR"
KEPT_DAYS = 30  # programs not used for this many days are removed
SHORTEST = 0.1  # seconds: programs that compile faster are not kept


def enable_compilation_cache() -> None:
    """Enables JAX's persistent compilation cache; call it before anything is compiled.

    If JAX_COMPILATION_CACHE_DIR is set, it names the folder (empty: no cache), and all other
    settings are JAX's as well. A folder that cannot be written is only a warning. If a process was
    killed while it wrote an entry, JAX compiles that program again and warns at each start until
    the entry is deleted.

    This function removes old programs itself: in JAX 0.10 `jax_compilation_cache_max_size` stops
    adding programs once an entry has no access time, which a killed process can leave behind, and
    it needs the package filelock.
    """
    if VARIABLE in os.environ:
        return
    folder = FOLDER.expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        _remove_old(folder)
    except OSError as error:
        _log.warning(
            "%s cannot be written (%s), so each start compiles again; set %s to another folder",
            folder, error.strerror, VARIABLE,
        )  # fmt: skip
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)


def _remove_old(folder: Path) -> None:
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for entry in folder.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another process may do the same
            stat = entry.stat()
            if max(stat.st_atime, stat.st_mtime) < oldest:
                entry.unlink()
