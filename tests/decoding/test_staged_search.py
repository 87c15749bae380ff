"""How searches run beside each other; what they find is tested with the translator."""

import threading
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from t2t.config.fields import MeshConfig
from t2t.decoding import staged_search
from t2t.decoding.staged_search import search_concurrently
from t2t.runtime.mesh import make_mesh


def test_two_searches_are_under_way_and_results_keep_their_order() -> None:
    both, order = threading.Barrier(2), iter([0.05, 0.0, 0.0, 0.05])

    def search(task: int) -> tuple[int, int]:
        both.wait(timeout=600)
        threading.Event().wait(next(order))
        return task, threading.get_ident()

    found = list(search_concurrently(search, range(4)))
    assert [task for task, _ in found] == [0, 1, 2, 3]
    assert len({thread for _, thread in found}) == 2


def test_mesh_is_that_of_the_searches_and_several_devices_search_in_one_order() -> None:
    def search(task: int) -> tuple[Any, int]:
        del task
        return jax.sharding.get_mesh(), threading.get_ident()

    for count in (1, 2):
        mesh = make_mesh(MeshConfig(data=count), jax.devices()[:count])
        with jax.set_mesh(mesh):
            meshes, threads = zip(*search_concurrently(search, range(3)), strict=True)
        assert meshes == (mesh,) * 3
        assert count == 1 or {*threads} == {threading.get_ident()}


def test_error_of_a_search_ends_all() -> None:
    begun = []

    def search(task: int) -> None:
        begun.append(task)
        threading.Event().wait(0.01)
        if task == 1:
            raise ValueError("task 1")

    with pytest.raises(ValueError, match="task 1"):
        list(search_concurrently(search, range(1000)))
    assert len(begun) < 1000


def test_only_time_without_any_search_counts_as_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 21.0, 22.0])
    monkeypatch.setattr(staged_search, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    clock, compiling = staged_search.CompileClock(), {"searching": -1, "compiling": 1}
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(clock.count(searching=1))
        second.enter_context(clock.count(searching=1))
        first.enter_context(clock.count(**compiling))  # at 3: while the second one searches
        second.enter_context(clock.count(**compiling))  # at 6: waits
        second.close()  # searches again at 10, and ends at 15
    assert clock.seconds == pytest.approx((10 - 6) + (21 - 15))
