"""Compiled programs, kept on disk, so that a run that starts again compiles nothing."""

import logging
import os
import tempfile
import time
from pathlib import Path

import jax

_log = logging.getLogger(__name__)

FOLDER = Path("~/.cache/t2t/xla")
VARIABLE = "JAX_COMPILATION_CACHE_DIR"
KEPT_DAYS = 30  # a program that nobody asked for in so long is removed
SHORTEST = 0.1  # seconds: what compiles faster is not kept


def keep_compiled() -> None:
    """Switches JAX's persistent compilation cache on, before anything is compiled.

    JAX_COMPILATION_CACHE_DIR in the environment names another folder, and empty none; then the
    other settings are JAX's, too. That the folder cannot be written is said, and no more. What a
    kill cut short there JAX compiles anew, with a warning at each start until it is deleted.

    Old programs are removed here, not by `jax_compilation_cache_max_size`: in JAX 0.10 that stops
    keeping programs as soon as one lies there without a time of use, as a kill leaves it, and it
    needs the package filelock.
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
            "%s cannot be written (%s): each start compiles anew; %s may name another folder",
            folder, error.strerror, VARIABLE,
        )  # fmt: skip
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)


def _remove_old(folder: Path) -> None:
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for entry in folder.glob("*-cache"):
        stat = entry.stat()
        if max(stat.st_atime, stat.st_mtime) < oldest:
            entry.unlink(missing_ok=True)  # another process may do the same
