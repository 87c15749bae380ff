"""Search of one batch in stages, each a compiled program.

Between stages the host decides whether to extend the capacity of the search or to shrink its batch.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from t2t.config.fields import DecodingConfig
from t2t.data.batch import PAD_ID, round_up_to_devices
from t2t.decoding.beam_search import (
    Constraints,
    Hypotheses,
    LengthPenalty,
    Search,
    continue_search,
    extend_search,
    is_unfinished,
    start_search,
    take_rows,
)
from t2t.decoding.sampling import Sampler, Stream
from t2t.model.parameters import Params, merge
from t2t.runtime.mesh import reshard, spec
from t2t.runtime.saved_programs import SavedPrograms

# (state, whether each sentence is unfinished, finished hypotheses for all length penalties)
StageResult = tuple[Search, Bool[Array, "B"], Hypotheses]
Task = TypeVar("Task")
Result = TypeVar("Result")

# Most outputs of short sources fit into it, so that fewer programs have to be compiled.
_LEAST_CAPACITY = 32
_SHRUNK_ROWS = 16  # of a batch whose unfinished sentences fit into so many
_WATCHED_STEPS = 4  # of a search that is watched, between two looks
_NUM_THREADS = 2  # three are no faster on two cores (benchmarks/LOG.md)


class Sources(NamedTuple):
    """A batch of sources, and what their hypotheses must satisfy."""

    ids: Any  # int B S: each row ends in EOS, then padding
    # int B: each sentence's limit in tokens, EOS included; 0 for a row without a sentence
    limits: Any
    constraints: Constraints | None = None
    stream: Stream | None = None  # if the search samples
    first: Any = None  # int B: the token that the first step takes; None: BOS


class CompileClock:
    """Counts the seconds in which a thread compiles, or waits for it, and none searches."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock = threading.Lock()
        self._searching = self._compiling = 0  # threads
        self._since = 0.0  # when one of them changed

    @contextmanager
    def count(self, *, searching: int, compiling: int = 0) -> Iterator[None]:
        """Adds to the threads that search, and to those that compile or wait, during the block."""
        self._change(searching, compiling)
        try:
            yield
        finally:
            self._change(-searching, -compiling)

    def _change(self, searching: int, compiling: int) -> None:
        with self._lock:
            now = time.perf_counter()
            if self._compiling and not self._searching:
                self.seconds += now - self._since
            self._since = now
            self._searching += searching
            self._compiling += compiling


class BatchSearch:
    """Searches batches of sources; compiles each stage once per shape.

    Several threads may search at the same time. The elapsed time minus the seconds of `clock` is
    the time spent searching.
    """

    def __init__(
        self,
        structure: Any,
        config: DecodingConfig,
        programs: SavedPrograms | None = None,
    ):
        """`structure` is the model without its parameters, as `abstract_model` returns it.

        The identity of `programs`, if they have one, covers the structure.
        """
        self._structure = structure
        self.programs = programs or SavedPrograms()
        self._beam_size, self._sampler = config.beam_size, None
        if config.strategy == "sampling":
            self._beam_size = 1
            self._sampler = Sampler(config.temperature, config.top_k, config.top_p)
        self.clock = CompileClock()

    def search(
        self,
        params: Params,
        sources: Sources,
        max_length: int,
        n_best: int,
        penalties: tuple[LengthPenalty, ...],
        watch: Callable[[Int[np.ndarray, "B W L"]], None] | None = None,
    ) -> Hypotheses:
        """Finds the `n_best` hypotheses of each source for each length penalty.

        Returns NumPy arrays with all sources, the same in every process. The dimension R has
        n_best * len(penalties) hypotheses: those for the first penalty, then for the second, etc.

        The search runs in stages, because the cost of a step grows with the capacity and with the
        batch size. The capacity starts at the padded source length, or 32, and doubles whenever it
        is full. A stage pauses as soon as the unfinished sentences fit into a smaller batch, in
        which they continue. The only host syncs are those between stages. `max_length` is an upper
        bound of the limits of the sources, and `n_best` at most the beam size, or 1 if the search
        samples.
        `watch` is called every few steps with the tokens of the alive hypotheses.
        """
        src = sources.ids
        shape = len(src), n_best * len(penalties)
        arrays: list[Any] = [
            np.full((*shape, max_length), PAD_ID, np.int32),
            np.zeros(shape, np.int32),
            np.full(shape, -np.inf, np.float32),
            np.full(shape, -np.inf, np.float32),
        ]
        found = Hypotheses(*arrays)
        capacity = min(max(src.shape[1], _LEAST_CAPACITY), max_length)
        placed = jax.tree.map(_place, sources)
        src_rows = np.arange(len(src))  # src_rows[i]: row of `src` that batch row i searches
        # The search pauses once so many sentences are unfinished. An array, not an int: another
        # value needs no other program.
        shrunk = round_up_to_devices(_SHRUNK_ROWS)
        smaller = np.int32(shrunk if shrunk < len(src) else 0)
        until = np.int32(_WATCHED_STEPS) if watch else None  # the length at which a stage pauses
        with self.clock.count(searching=1):
            search, *outputs = self._run(
                self._start, params, placed, smaller, penalties, until,
                n_best=n_best, capacity=capacity,
            )  # fmt: skip
            while True:
                unfinished, finished = jax.device_get(outputs)
                found.tokens[src_rows, :, :capacity] = finished.tokens
                for array, rows in zip(found[1:], finished[1:], strict=True):
                    array[src_rows] = rows
                if watch:
                    watch(jax.device_get(search.alive.tokens))
                if not unfinished.any():
                    return found
                if unfinished.sum() <= smaller:
                    # Unfinished rows first; finished ones fill the smaller batch.
                    kept = np.argsort(~unfinished, kind="stable")[:smaller]
                    search, src_rows = self._run(take_rows, search, kept), src_rows[kept]
                    smaller = np.int32(0)  # the batch shrinks only once
                elif until is None or until >= capacity:  # the search's capacity is full
                    capacity = min(2 * capacity, max_length)
                if until is not None:
                    until = np.int32(min(until + _WATCHED_STEPS, capacity))
                search, *outputs = self._run(
                    self._resume, params, search, smaller, penalties, until, capacity=capacity
                )  # fmt: skip

    def _run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Calls a pure function, compiled once per combination of argument shapes and options."""
        return self.programs.run(
            function,
            *arguments,
            options=options,
            closure=(self._beam_size, self._sampler),
            waiting=lambda: self.clock.count(searching=-1, compiling=1),
        )

    def _start(
        self,
        params: Params,
        sources: Sources,
        pause_at: Int[Array, ""],
        penalties: tuple[LengthPenalty, ...],
        until: Int[Array, ""] | None = None,
        *,
        n_best: int,
        capacity: int,
    ) -> StageResult:
        """Encodes the sources and runs the first stage."""
        model = merge(self._structure, params)
        src = sources.ids
        search = start_search(
            model.init_cache(src, self._beam_size, capacity),
            max_lengths=sources.limits,
            capacity=capacity,
            beam_size=self._beam_size,
            n_best=n_best,
            num_penalties=len(penalties),
            first=sources.first,
            constraints=sources.constraints,
            stream=sources.stream,
        )
        step, sampler = model.decode_step, self._sampler
        return _make_result(continue_search(step, search, penalties, pause_at, sampler, until))

    def _resume(
        self,
        params: Params,
        search: Search,
        pause_at: Int[Array, ""],
        penalties: tuple[LengthPenalty, ...],
        until: Int[Array, ""] | None = None,
        *,
        capacity: int,
    ) -> StageResult:
        """Extends the capacity to `capacity`, unless it is that already, and runs another stage."""
        model = merge(self._structure, params)
        search = extend_search(search, model.extend_cache(search.cache, capacity), capacity)
        step, sampler = model.decode_step, self._sampler
        return _make_result(continue_search(step, search, penalties, pause_at, sampler, until))


def search_concurrently(
    search: Callable[[Task], Result], tasks: Iterable[Task]
) -> Iterator[Result]:
    """Yields search(task) for each task in order, and runs two searches at a time.

    The small steps of a single search leave half of a CPU's cores idle, and each host sync leaves
    the device idle. On a mesh of several devices the searches run one after the other, because
    programs must start in the same order on every device.
    """
    mesh = jax.sharding.get_mesh()
    if mesh.size > 1:
        yield from map(search, tasks)
        return
    pool = ThreadPoolExecutor(_NUM_THREADS, initializer=jax.set_mesh, initargs=(mesh,))
    try:
        yield from pool.map(search, tasks)
    finally:
        pool.shutdown(cancel_futures=True)


def _place(x: np.ndarray) -> jax.Array:
    """Puts an array with one row per sentence, or a scalar, onto the mesh."""
    names = ("batch", *[None] * (x.ndim - 1)) if x.ndim else ()
    placed: jax.Array = jax.device_put(x, spec(*names))
    return placed


def _make_result(search: Search) -> StageResult:
    """Returns the state, and the parts of it that the host reads, replicated on every device."""
    joined = (jnp.concatenate(parts, axis=1) for parts in zip(*search.finished, strict=True))
    return search, *reshard((is_unfinished(search), Hypotheses(*joined)), None)
