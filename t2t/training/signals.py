"""Ctrl-C, SIGTERM, preemption: when training has to save and stop, and what they must not break."""

import contextlib
import os
import signal
import threading
import types
from collections.abc import Callable, Iterator

import jax
from jax.experimental import multihost_utils


class Interruption:
    """The first SIGINT (Ctrl-C) or SIGTERM, to this process or another; a second is not held up."""

    def __enter__(self) -> "Interruption":
        self._received = False
        handlers: dict[signal.Signals, Callable[[int, types.FrameType | None], None]]
        if jax.process_count() == 1:
            handlers = {signal.SIGINT: self._receive, signal.SIGTERM: self._receive}
        else:  # JAX listens to SIGTERM, and has all processes agree on a step
            handlers = {signal.SIGINT: _terminate}
        self._previous = {number: signal.signal(number, handlers[number]) for number in handlers}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def reached(self, step: int) -> bool:
        """Whether to stop before this step, in all processes alike; to be asked at every step."""
        if jax.process_count() == 1:
            return self._received
        return bool(multihost_utils.reached_preemption_sync_point(step))

    def _receive(self, number: int, frame: types.FrameType | None) -> None:
        del number, frame
        self._received = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """SIGINT and SIGTERM come at the end of this: interrupted, Orbax may abort or wait for ever.

    They come to the main thread alone; in any other there is nothing to hold.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    numbers = signal.SIGINT, signal.SIGTERM
    previous = {n: signal.signal(n, lambda number, _: received.append(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def _terminate(number: int, frame: types.FrameType | None) -> None:
    del frame
    signal.signal(number, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGTERM)
