"""Signals: a training step or a shard of files ends and is saved; what must be whole is held."""

import contextlib
import logging
import os
import signal
import threading
import types
from collections.abc import Callable, Iterator, Mapping

import jax
from jax.experimental import multihost_utils

_log = logging.getLogger(__name__)

_Handler = Callable[[int, types.FrameType | None], None]


@contextlib.contextmanager
def _handle(handlers: Mapping[signal.Signals, _Handler]) -> Iterator[None]:
    """A context that handles those of these signals that are not ignored.

    Python runs handlers in the main thread, which alone may set them; others get none. A handler
    that is not Python's (`getsignal` gives None) could not be set again, and so stays.
    """
    is_main = threading.current_thread() is threading.main_thread()
    previous = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if is_main and signal.getsignal(number) not in (signal.SIG_IGN, None)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def catch_signals(start: int) -> Iterator[Callable[[int], bool]]:
    """A context in which the first SIGINT (Ctrl-C) or SIGTERM only asks the work to stop.

    It yields a function of a step, from `start` on, that returns whether to stop before it; every
    process must call it at every step. The step or the compilation that is running ends first.
    After that a SIGINT has its usual effect, and a SIGTERM none: launchers may send several. An
    ignored signal stays ignored. With several processes, a signal to one stops all. In another
    thread than the main one signals are left alone.
    """
    is_received, is_alone = False, jax.process_count() == 1
    usual = signal.getsignal(signal.SIGINT)

    def receive(number: int, frame: types.FrameType | None) -> None:
        nonlocal is_received
        del number, frame
        is_first, is_received = not is_received, True
        if usual is not None:
            signal.signal(signal.SIGINT, usual)
        if is_first:
            with contextlib.suppress(RuntimeError):  # it interrupted a write to the same stream
                _log.info("stopping when the work so far is saved; Ctrl-C now stops at once")

    def is_interrupted(step: int) -> bool:
        nonlocal is_received
        if not (is_alone or is_received):
            # JAX stops only at the number after the last one that any process has asked about.
            # After a SIGTERM before the loop that is 1, which therefore stands for `start`.
            number = step - start + 1
            is_received = bool(multihost_utils.reached_preemption_sync_point(number))
        return is_received

    # With several processes JAX handles SIGTERM: it makes all agree on a step at which to stop.
    alone: dict[signal.Signals, _Handler] = {signal.SIGINT: receive, signal.SIGTERM: receive}
    with _handle(alone if is_alone else {signal.SIGINT: _terminate}):
        yield is_interrupted


def _terminate(number: int, frame: types.FrameType | None) -> None:
    """Turns a SIGINT into a SIGTERM, which JAX announces to all processes.

    The next SIGINT has its default effect, `KeyboardInterrupt`.
    """
    del frame
    signal.signal(number, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """A context that delays SIGINT and SIGTERM until its end; then each has its effect, in order.

    Orbax may abort or wait forever if a signal interrupts it. An ignored signal stays ignored. With
    several processes SIGTERM is left to JAX (`catch_signals`).
    """
    received: list[int] = []
    numbers = [signal.SIGINT, signal.SIGTERM][: 1 if jax.process_count() > 1 else 2]
    try:
        with _handle(dict.fromkeys(numbers, lambda number, _: received.append(number))):
            yield
    finally:
        for number in received:
            signal.raise_signal(number)
