"""Ctrl-C, SIGTERM, preemption: when training has to save and stop."""

import os
import signal
import types
from collections.abc import Callable

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


def _terminate(number: int, frame: types.FrameType | None) -> None:
    del frame
    signal.signal(number, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGTERM)
