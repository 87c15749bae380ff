"""Compiled programs in memory and on disk, found without tracing them.

JAX's own cache finds a program by its lowered text, so each start traces and lowers it before,
which takes longer than to load the program. Here the key is what the text depends on. A program
whose key is new is traced, and looked up by its text, too. docs/design.md says what a start gains.
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
# Programs of this process by the name of their file: a later run of the same model has its own
# `SavedPrograms`. Last used last.
_shared: OrderedDict[str, Any] = OrderedDict()
_bypassing = 0  # threads that compile without JAX's cache
_switching = threading.Lock()  # while one of them comes or goes


class SavedPrograms:
    """Compiles pure functions of arrays, each once per combination of shapes and options.

    `identity` is a hash of all else that the functions depend on: their code, and what a `closure`
    leaves out. With it, programs for one CPU device are kept in the folder of
    `enable_compilation_cache`, if they take as long to compile as those that JAX keeps, and all
    instances share them. With "" they are kept in memory alone. Memory holds the programs that were
    used last.
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
        options = options or {}
        text = name, module, closure, (*options.items(),), *_describe(arguments)
        key = *text, function.__code__  # a cell of a notebook may define it again
        program = self.loaded.get(key)
        if program is None:
            jitted = jax.jit(function, static_argnames=(*options,))
            # Threads load and compile different programs at the same time, and each one once.
            with waiting(), self._loading.setdefault(key, threading.Lock()):
                program = self.loaded.get(key) or self._load(jitted, text, arguments, options)
                self.loaded[key] = program
                self._loading.pop(key, None)
        _note_use(self.loaded, key)
        return program(*arguments)

    def keep(self, jitted: Any, closure: Hashable = ()) -> Any:
        """Returns a function as `jitted`, the result of `jax.jit`, whose programs are kept on disk.

        Without a place on disk it is `jitted` itself. Of its arguments only the last one may have
        other shapes at another call. `closure` is as in `run`.
        """
        if self._find_folder() is None:
            return jitted
        programs: dict[Any, Any] = {}
        name = jitted.__qualname__, jitted.__module__, closure

        @functools.wraps(jitted)
        def call(*arguments: Any) -> Any:
            shapes = (*(leaf.shape for leaf in jax.tree.leaves(arguments[-1])),)
            if shapes not in programs:
                programs[shapes] = self._load(jitted, (*name, *_describe(arguments)), arguments, {})
            return programs[shapes](*arguments)

        return call

    def _load(
        self,
        jitted: Any,
        key: tuple[Any, ...],
        arguments: tuple[Any, ...],
        options: dict[str, Hashable],
    ) -> Any:
        """Finds a program by its key, else by its text, or compiles and saves it."""
        folder = self._find_folder()
        file = folder and _name_file(folder, self._identity, key)
        if file and (found := _recall(file)):
            return found
        with explain_shardings():
            lowered = jitted.lower(*arguments, **options)
        if folder is None or file is None:
            return lowered.compile()
        # Most changes of code or config do not change the text.
        same = _name_file(folder, lowered.as_text(), lowered.in_tree, lowered.out_tree)
        program = _recall(same)
        if program is None:
            began = time.perf_counter()
            with _bypass_jax_cache():
                program = lowered.compile()
            shortest = jax.config.values["jax_persistent_cache_min_compile_time_secs"]
            if time.perf_counter() - began >= shortest:
                _write(same, program)
        _link(same, file)
        _remember(file, program)
        return program

    def _find_folder(self) -> Path | None:
        """Returns the folder of programs; None if they are not kept on disk."""
        folder = jax_settings.program_folder
        with _switching:
            is_used = _bypassing or jax.config.values["jax_enable_compilation_cache"]
        if folder is None or not is_used or not self._identity:
            return None
        # On GPUs and TPUs it was never run, and programs may depend on more, such as cuDNN.
        return folder if jax.device_count() == 1 and jax.default_backend() == "cpu" else None


def _name_file(folder: Path, *parts: Any) -> Path:
    """Returns the file of a program that these parts determine on this machine."""
    versions = jax.__version__, importlib.metadata.version("jaxlib")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processor = platform.machine(), *map(read_cpu, _CPU)
    compiler = versions, jax_settings.read_xla_flags(), processor, cores
    text = repr((parts, jax.sharding.get_mesh(), compiler))
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()}{jax_settings.PROGRAM}"


def _describe(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns what a program depends on beside its function: shapes, and settings of JAX."""
    leaves, structure = jax.tree.flatten(arguments)
    settings = tuple(each for each in jax.config.values.items() if "cache" not in each[0])
    return (structure, *map(jax.typeof, leaves)), settings


def _note_use(programs: OrderedDict[Any, Any], key: Hashable) -> None:
    """Forgets the program that was not used for the longest time, if there are too many."""
    with contextlib.suppress(KeyError):  # another thread has just forgotten this one
        programs.move_to_end(key)
    if len(programs) > _MOST:
        programs.popitem(last=False)


def _recall(file: Path) -> Any:
    """Returns the program that this process has read before, or reads it; None: there is none."""
    found = _shared.get(file.name) or _read(file)
    if found:
        _remember(file, found)
    return found


def _remember(file: Path, program: Any) -> None:
    _shared[file.name] = program
    _note_use(_shared, file.name)


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


def _link(file: Path, name: Path) -> None:
    """Gives a file, if it exists, a second name."""
    name.unlink(missing_ok=True)  # it was damaged
    try:
        name.hardlink_to(file)
    except FileNotFoundError:
        return
    except OSError:  # some file systems have no links
        with contextlib.suppress(OSError):
            write_file(name, file.read_bytes())


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
