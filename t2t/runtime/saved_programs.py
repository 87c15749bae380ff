"""Compiled programs in memory and on disk, found without tracing them.

JAX's own cache finds a program by its lowered text, so each start traces and lowers it before: for
a search that takes longer than to load the program. Here the key is what the text depends on.
docs/design.md says what a start gains.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import logging
import os
import pickle
import platform
import sys
import threading
import time
from collections import OrderedDict
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
_MOST = 256  # programs in memory: a translation needs a few, an evaluation some dozens
_bypassing = 0  # threads that compile without JAX's cache
_switching = threading.Lock()  # while one of them comes or goes


class SavedPrograms:
    """Compiles pure functions of arrays, each once per combination of shapes and options.

    `identity` is a hash of all else that the functions depend on: their code, and what a `closure`
    leaves out. With it, programs for one CPU device are kept in the folder of
    `enable_compilation_cache`, if they take as long to compile as those that JAX keeps. With ""
    they are kept in memory alone. Memory holds the programs that were used last.
    """

    def __init__(self, identity: str = ""):
        self._identity = identity
        self.loaded: OrderedDict[tuple[Any, ...], Any] = OrderedDict()  # last used last
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

        `options` are static. `closure` is what a method or an inner function closes over, apart
        from what `identity` covers: () if that is all. The texts of both are part of the key on
        disk. While a thread compiles, loads, or waits for another one, it is in the context that
        `waiting` makes.

        Raises:
            ValueError: there is no `closure`, and `function` is not what its module has under its
                name, so that two functions of this name could be taken for one.
        """
        module, name = function.__module__, function.__qualname__
        if closure is None and getattr(sys.modules.get(module), name, None) is not function:
            raise ValueError(
                f"{module}.{name} is a method or an inner function; say by `closure` what it "
                "closes over, or the next function of this name would be taken for it"
            )
        leaves, structure = jax.tree.flatten(arguments)
        options = options or {}
        settings = tuple(each for each in jax.config.values.items() if "cache" not in each[0])
        shapes = structure, *map(jax.typeof, leaves)
        text = name, module, closure, (*options.items(),), shapes, settings
        key = *text, function.__code__  # a cell of a notebook may define it again
        program = self.loaded.get(key)
        if program is None:
            # Threads load and compile different programs at the same time, and each one once.
            with waiting(), self._loading.setdefault(key, threading.Lock()):
                program = self.loaded.get(key) or self._load(function, text, arguments, options)
                self.loaded[key] = program
                self._loading.pop(key, None)
        self._note_use(key)
        return program(*arguments)

    def _note_use(self, key: tuple[Any, ...]) -> None:
        """Forgets the program that was not used for the longest time, if there are too many."""
        with contextlib.suppress(KeyError):  # another thread has just forgotten this one
            self.loaded.move_to_end(key)
        if len(self.loaded) > _MOST:
            self.loaded.popitem(last=False)

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
        with _switching:
            is_used = _bypassing or jax.config.values["jax_enable_compilation_cache"]
        if folder is None or not is_used or not self._identity:
            return None
        # On GPUs and TPUs it was never run, and programs may depend on more, such as cuDNN.
        if jax.device_count() > 1 or jax.default_backend() != "cpu":
            return None
        versions = jax.__version__, importlib.metadata.version("jaxlib")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        processor = platform.machine(), *map(read_cpu, _CPU)
        compiler = versions, jax_settings.read_xla_flags(), processor, cores
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

    What other threads compile meanwhile is not cached either. Several threads may be in the block.
    """
    _count_bypassing(1)
    try:
        yield
    finally:
        _count_bypassing(-1)


def _count_bypassing(change: int) -> None:
    """Switches JAX's cache off for the first thread that bypasses it, and on after the last."""
    global _bypassing
    with _switching:
        _bypassing += change
        if _bypassing == max(change, 0):
            jax.config.update("jax_enable_compilation_cache", not _bypassing)
            compilation_cache.reset_cache()
