"""Signals: training ends its step, saves and stops; what must be whole is not interrupted."""

import contextlib
import os
import signal
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax.experimental import multihost_utils

_Handler = Callable[[int, types.FrameType | None], None]


def _replace(handlers: Mapping[signal.Signals, _Handler]) -> dict[signal.Signals, Any]:
    """Handles signals that are not ignored, and returns their handlers until now.

    Python runs handlers in the main thread, which alone may set them; others get none.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) is not signal.SIG_IGN
    }


class Interruption:
    """A context in which the first SIGINT (Ctrl-C) or SIGTERM only makes `reached` return True.

    The step or the compilation that is running ends first. After that a SIGINT has its usual
    effect, and a SIGTERM none: launchers may send several. An ignored signal stays ignored. With
    several processes, a signal to one stops all. In another thread than the main one signals are
    left alone.
    """

    def __init__(self, start: int):
        """`start` is the first step about which `reached` will be asked."""
        self._start = start

    def __enter__(self) -> "Interruption":
        self._received = False
        handlers: dict[signal.Signals, _Handler]
        if jax.process_count() == 1:
            handlers = {signal.SIGINT: self._receive, signal.SIGTERM: self._receive}
        else:  # JAX handles SIGTERM: it makes all processes agree on a step at which to stop
            handlers = {signal.SIGINT: _terminate}
        self._previous = _replace(handlers)
        # JAX stops only at the step after the last one that any process has asked about. After a
        # SIGTERM before the loop that is step 1, so this asks about all steps before `start`.
        for step in range(self._start):
            self.reached(step)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def reached(self, step: int) -> bool:
        """Returns whether to stop before this step; every process must ask at every step."""
        if jax.process_count() > 1 and not self._received:
            self._received = bool(multihost_utils.reached_preemption_sync_point(step))
        return self._received

    def _receive(self, number: int, frame: types.FrameType | None) -> None:
        del number, frame
        self._received = True
        if signal.SIGINT in self._previous:
            signal.signal(signal.SIGINT, self._previous[signal.SIGINT])


def _terminate(number: int, frame: types.FrameType | None) -> None:
    """Turns a SIGINT into a SIGTERM, which JAX announces to all processes.

    The next SIGINT has its default effect, `KeyboardInterrupt`.
    """
    del frame
    signal.signal(number, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """A context that delays SIGINT and SIGTERM until its end.

    Orbax may abort or wait forever if a signal interrupts it. An ignored signal stays ignored. With
    several processes SIGTERM is left to JAX (`Interruption`).
    """
    received: list[int] = []
    numbers = [signal.SIGINT, signal.SIGTERM][: 1 if jax.process_count() > 1 else 2]
    previous = _replace(dict.fromkeys(numbers, lambda number, _: received.append(number)))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])
