"""Compiled programs in memory and on disk, found without tracing them.

JAX's own cache finds a program by its lowered text, so each start traces and lowers it before: for
a search that takes longer than to load the program. Here the key is what the text depends on.
"""

import contextlib
import hashlib
import importlib.metadata
import logging
import os
import pickle
import platform
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from t2t.config.variants import explain_shardings
from t2t.runtime.jax_settings import find_program_folder
from t2t.runtime.machine_speed import read_cpu
from t2t.storage.atomic_files import write_file

_log = logging.getLogger(__name__)
_CPU = ("model name", "flags", "Features")  # what Linux says of a CPU on x86 and ARM


class SavedPrograms:
    """Compiles pure functions of arrays, each once per combination of shapes and options.

    `identity` is a hash of all else that the functions depend on: their code and what they close
    over. With it, programs for one device are kept in the folder of `enable_compilation_cache`, as
    long and under the same conditions as JAX's. With "" they are kept in memory alone.
    """

    def __init__(self, identity: str = ""):
        self._identity = identity
        self.loaded: dict[tuple[Any, ...], Any] = {}  # programs in memory
        self._compiling = threading.Lock()

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
        types = (*map(jax.typeof, leaves),)
        key = function.__qualname__, closure, (*options.items(),), structure, types
        if key not in self.loaded:
            with waiting(), self._compiling:
                if key not in self.loaded:  # no other thread has compiled it meanwhile
                    self.loaded[key] = self._load(key) or self._compile(
                        key, function, arguments, options
                    )
        return self.loaded[key](*arguments)

    def _load(self, key: tuple[Any, ...]) -> Any:
        """Reads a program from disk; returns None if there is none that can be read."""
        file = self._find_file(key)
        if file is None or not file.exists():
            return None
        try:
            # The folder is this user's own, as that of JAX's cache.
            found = serialize_executable.deserialize_and_load(*pickle.loads(file.read_bytes()))
        except Exception as error:  # which ones a damaged program raises is not documented
            _log.warning("%s cannot be loaded (%s) and is compiled again", file, error)
            return None
        with contextlib.suppress(OSError):
            os.utime(file)  # programs that are used are kept
        return found

    def _compile(
        self,
        key: tuple[Any, ...],
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Hashable],
    ) -> Any:
        with explain_shardings():
            lowered = jax.jit(function, static_argnames=(*options,)).lower(*arguments, **options)
        file = self._find_file(key)
        with _bypass_jax_cache() if file else contextlib.nullcontext():
            compiled = lowered.compile()
        if file:
            try:
                write_file(file, pickle.dumps(serialize_executable.serialize(compiled)))
            except (OSError, ValueError, RuntimeError) as error:
                _log.warning("%s is compiled again at the next start: %s", file, error)
        return compiled

    def _find_file(self, key: tuple[Any, ...]) -> Path | None:
        folder = find_program_folder()
        if folder is None or not self._identity or jax.device_count() > 1:
            return None
        parts = self._identity, key, _describe_compiler()
        return folder / f"t2t-{hashlib.sha256(repr(parts).encode()).hexdigest()}-cache"


@contextlib.contextmanager
def _bypass_jax_cache() -> Iterator[None]:
    """Compiles anew during the block: XLA loses parts of a program that is loaded and saved again.

    What another thread compiles meanwhile is not cached either.
    """
    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _describe_compiler() -> tuple[Any, ...]:
    """Returns what a program depends on besides the functions: versions, settings, devices."""
    [device] = jax.devices()
    processor = platform.processor(), *map(read_cpu, _CPU)  # whose own instructions are used
    libraries = jax.__version__, importlib.metadata.version("jaxlib")
    settings = sorted(each for each in jax.config.values.items() if "cache" not in each[0])
    return (
        libraries, device.client.platform_version, device.device_kind,
        processor, os.environ.get("XLA_FLAGS"), os.environ.get("LIBTPU_INIT_ARGS"),
        jax.sharding.get_mesh(), settings,
    )  # fmt: skip
