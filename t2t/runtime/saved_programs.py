"""Compiled programs in memory and on disk, found without tracing them.

JAX's own cache finds a program by its lowered text, so each start traces and lowers it before: for
a search that takes longer than to load the program. Here the key is what the text depends on.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import logging
import os
import pickle
import platform
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from t2t.config.variants import explain_shardings
from t2t.runtime import jax_settings
from t2t.runtime.machine_speed import read_cpu
from t2t.storage.atomic_files import write_file

_log = logging.getLogger(__name__)

_CPU = ("model name", "flags", "Features")  # what Linux says of a CPU on x86 and ARM
_compiling = threading.Lock()  # of a program that bypasses JAX's cache


class SavedPrograms:
    """Compiles pure functions of arrays, each once per combination of shapes and options.

    `identity` is a hash of all else that the functions depend on: their code and what they close
    over. With it, programs for one CPU device are kept in the folder of `enable_compilation_cache`,
    if they take as long to compile as those that JAX keeps. With "" they are kept in memory alone.
    """

    def __init__(self, identity: str = ""):
        self._identity = identity
        self.loaded: dict[tuple[Any, ...], Any] = {}  # programs in memory
        self._loading: dict[tuple[Any, ...], threading.Lock] = {}

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        options: dict[str, Hashable] | None = None,
        closure: Hashable = None,
        waiting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> Any:
        """Calls function(*arguments, **options).

        `options` are static, and `closure` is what the function closes over that `identity` does
        not cover; their texts are part of the key on disk. While a thread compiles, loads, or waits
        for another one, it is in the context that `waiting` makes.
        """
        leaves, structure = jax.tree.flatten(arguments)
        options = options or {}
        settings = tuple(each for each in jax.config.values.items() if "cache" not in each[0])
        shapes = structure, *map(jax.typeof, leaves)
        key = function.__qualname__, closure, (*options.items(),), shapes, settings
        if key not in self.loaded:
            # Threads load and compile different programs at the same time, and each one once.
            with waiting(), self._loading.setdefault(key, threading.Lock()):
                if key not in self.loaded:
                    self.loaded[key] = self._load(function, key, arguments, options)
        return self.loaded[key](*arguments)

    def _load(
        self,
        function: Callable[..., Any],
        key: tuple[Any, ...],
        arguments: tuple[Any, ...],
        options: dict[str, Hashable],
    ) -> Any:
        """Reads a program from disk, or compiles and saves it."""
        file = self._find_file(key)
        if file and (found := _read(file)):
            return found
        with explain_shardings():
            lowered = jax.jit(function, static_argnames=(*options,)).lower(*arguments, **options)
        if file is None:
            return lowered.compile()
        began = time.perf_counter()
        with _bypass_jax_cache():
            compiled = lowered.compile()
        shortest = jax.config.values["jax_persistent_cache_min_compile_time_secs"]
        if time.perf_counter() - began >= shortest:
            _write(file, compiled)
        return compiled

    def _find_file(self, key: tuple[Any, ...]) -> Path | None:
        folder = jax_settings.program_folder
        # On GPUs and TPUs it was never run, and programs may depend on more, such as cuDNN.
        with _compiling:  # another thread, which has switched the cache off meanwhile
            is_used = jax.config.values["jax_enable_compilation_cache"] and self._identity
        if folder is None or not is_used or jax.device_count() > 1:
            return None
        if jax.default_backend() != "cpu":
            return None
        versions = jax.__version__, importlib.metadata.version("jaxlib")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        processor = platform.machine(), *map(read_cpu, _CPU)
        compiler = versions, os.environ.get("XLA_FLAGS"), processor, cores
        parts = self._identity, key, jax.sharding.get_mesh(), compiler
        return folder / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}{jax_settings.PROGRAM}"


def _read(file: Path) -> Any:
    """Reads a program; returns None if there is none, or it is damaged."""
    try:
        found = serialize_executable.deserialize_and_load(*pickle.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except Exception as error:  # which ones a damaged program raises is not documented
        _warn(f"{file} cannot be loaded ({error}) and is compiled again")
        return None
    with contextlib.suppress(OSError):
        os.utime(file)  # programs that are used are kept
    return found


def _write(file: Path, compiled: Any) -> None:
    try:
        write_file(file, pickle.dumps(serialize_executable.serialize(compiled)))
    except (OSError, ValueError, RuntimeError) as error:
        _warn(f"{file.parent}: programs cannot be saved there and are compiled again ({error})")


@functools.cache
def _warn(message: str) -> None:
    """Warns once."""
    _log.warning("%s", message)


@contextlib.contextmanager
def _bypass_jax_cache() -> Iterator[None]:
    """Compiles anew during the block: XLA loses parts of a program that is loaded and saved again.

    What another thread compiles meanwhile is not cached either.
    """
    with _compiling:
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()
        try:
            yield
        finally:
            jax.config.update("jax_enable_compilation_cache", True)
            compilation_cache.reset_cache()
