"""The search of one batch: a few compiled programs, and what the host does between them."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from t2t.config.fields import DecodingConfig
from t2t.data.batch import PAD_ID
from t2t.decoding.beam_search import (
    Hypotheses,
    Search,
    continue_search,
    extend_search,
    is_growing,
    start_search,
    take_rows,
)
from t2t.decoding.length_batching import shrink_batch_size
from t2t.model.build import merge
from t2t.model.interface import Params
from t2t.runtime.mesh import spec

Stage = tuple[Search, Bool[Array, "B"], Hypotheses]  # with what is growing and what is finished
Task = TypeVar("Task")
Result = TypeVar("Result")

_AT_ONCE = 2  # three are no faster on two cores (benchmarks/LOG.md)


class BatchSearch:
    """Searches batches with the parameters that it is given; compiles once for each shape.

    Several threads may search, but none begins a stage while one compiles: times can be told apart.
    """

    def __init__(self, structure: Any, config: DecodingConfig):
        """`structure`: of the model."""
        self._structure = structure
        self._beam_size = config.beam_size
        self._compiled: dict[tuple[Any, ...], Any] = {}
        self._compiling = threading.Lock()
        self.compile_seconds = 0.0  # so far

    def search(
        self,
        params: Params,
        src: Int[np.ndarray, "B S"],
        limits: Int[np.ndarray, "B"],
        max_length: int,
        n_best: int,
        alphas: tuple[float, ...],
    ) -> Hypotheses:
        """Hypotheses as NumPy arrays, whole in every process; no limit exceeds `max_length`.

        The search goes in stages, since the cost of a step grows with the capacity, in tokens and
        in sentences. The first stage has a capacity of as many tokens as the source has; once that
        is full, it doubles. Once at most `min_alive` sentences are unfinished, they go on in a
        smaller batch. There is a host sync between stages, and nowhere else.
        """
        shape = len(src), n_best * len(alphas)
        nothing: list[Any] = [
            np.full((*shape, max_length), PAD_ID, np.int32),
            np.zeros(shape, np.int32),
            np.full(shape, -np.inf, np.float32),
            np.full(shape, -np.inf, np.float32),
        ]
        found = Hypotheses(*nothing)
        capacity = min(src.shape[1], max_length)
        placed = jax.device_put(src, spec("batch", None)), jax.device_put(limits, spec("batch"))
        owners = np.arange(len(src))  # whose row it is
        min_alive = np.int32(shrink_batch_size(len(src)))
        search, *seen = self._run(
            self._begin, params, *placed, min_alive, n_best=n_best, alphas=alphas, capacity=capacity
        )
        while True:
            growing, finished = jax.device_get(seen)
            found.tokens[owners, :, :capacity] = finished.tokens
            for whole, part in zip(found[1:], finished[1:], strict=True):
                whole[owners] = part
            if not growing.any():
                return found
            if growing.sum() <= min_alive:
                left = np.argsort(~growing, kind="stable")[:min_alive]
                search, owners = self._run(take_rows, search, left), owners[left]
                min_alive = np.int32(0)
            else:
                capacity = min(2 * capacity, max_length)
            search, *seen = self._run(
                self._go_on, params, search, min_alive, alphas=alphas, capacity=capacity
            )

    def _run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """The result of a pure function, which is compiled once for all arguments of a shape."""
        shapes = (jax.typeof(x) for x in jax.tree.leaves(arguments))
        key = function.__name__, *options.values(), *shapes
        with self._compiling:
            if key not in self._compiled:
                started, names = time.perf_counter(), tuple(options)
                lowered = jax.jit(function, static_argnames=names).lower(*arguments, **options)
                self._compiled[key] = lowered.compile()
                self.compile_seconds += time.perf_counter() - started
        return self._compiled[key](*arguments)

    def _begin(
        self,
        params: Params,
        src: Int[Array, "B S"],
        limits: Int[Array, "B"],
        min_alive: Int[Array, ""],
        *,
        n_best: int,
        alphas: tuple[float, ...],
        capacity: int,
    ) -> Stage:
        """Encodes, and searches up to the capacity."""
        model = merge(self._structure, params)
        cache = model.init_cache(model.encode(src), src, self._beam_size, capacity)
        search = start_search(
            cache,
            max_lengths=limits,
            capacity=capacity,
            beam_size=self._beam_size,
            n_best=n_best,
            num_alphas=len(alphas),
        )
        return _show(continue_search(model.decode_step, search, alphas, min_alive))

    def _go_on(
        self,
        params: Params,
        search: Search,
        min_alive: Int[Array, ""],
        *,
        alphas: tuple[float, ...],
        capacity: int,
    ) -> Stage:
        """Continues the search with a larger capacity."""
        model = merge(self._structure, params)
        search = extend_search(search, model.extend_cache(search.cache, capacity), capacity)
        return _show(continue_search(model.decode_step, search, alphas, min_alive))


def search_side_by_side(
    search: Callable[[Task], Result], tasks: Iterable[Task]
) -> Iterator[Result]:
    """What `search` gives for each task, in their order, two at a time.

    The many small steps of one search leave half of a CPU's cores idle, and a host sync leaves each
    device idle. Programs of several devices have to start in one order on all of them: there the
    searches come one after the other.
    """
    mesh = jax.sharding.get_mesh()
    if mesh.size > 1:
        yield from map(search, tasks)
        return
    pool = ThreadPoolExecutor(_AT_ONCE, initializer=jax.set_mesh, initargs=(mesh,))
    try:
        yield from pool.map(search, tasks)
    finally:
        pool.shutdown(cancel_futures=True)


def _show(search: Search) -> Stage:
    """The search, and the part of it that the host reads, whole on each device."""
    joined = (jnp.concatenate(parts, axis=1) for parts in zip(*search.finished, strict=True))
    shown = is_growing(search), Hypotheses(*joined)
    everywhere = spec(None)
    if everywhere is not None:
        shown = jax.tree.map(lambda x: jax.sharding.reshard(x, everywhere), shown)
    return search, *shown
