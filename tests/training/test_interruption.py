"""Signals that come at a bad moment; how training stops is tested with the loop."""

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from t2t.training.checkpoint import restore_params, save_params
from t2t.training.interruption import hold_signals
from tests.training.toy_run import assert_same, write_run

NUMBERS = signal.SIGINT, signal.SIGTERM


@pytest.fixture(autouse=True)
def interrupting() -> Iterator[None]:
    """Both raise `KeyboardInterrupt`, as in the binaries."""
    previous = {n: signal.signal(n, signal.default_int_handler) for n in NUMBERS}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_signal_comes_after_what_is_held(number: signal.Signals) -> None:
    done = []

    @hold_signals()
    def act() -> None:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        done.append("all")

    with pytest.raises(KeyboardInterrupt):
        act()
    assert done == ["all"]
    assert [signal.getsignal(n) for n in NUMBERS] == [signal.default_int_handler] * 2


def test_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with hold_signals():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_holds_nothing() -> None:
    found = []

    def look() -> None:
        with hold_signals():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def interrupt(act: Callable[[], object], within: float) -> None:
    """Ctrl-C while this acts, or before or after it."""
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, within))
        act()
        time.sleep(within)
    except KeyboardInterrupt:
        return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_interrupted_checkpoint_is_whole(tmp_path: Path) -> None:
    workdir, target = write_run(tmp_path / "run", {10: None}), tmp_path / "saved"
    (workdir / "vocab").mkdir()
    params, _ = restore_params(workdir, "last")
    for _ in range(20):
        shutil.rmtree(target, ignore_errors=True)
        interrupt(lambda: save_params(workdir, target, params, 10), within=0.1)
        if target.exists():
            assert_same(restore_params(target, "last")[0], params)
        interrupt(lambda: restore_params(workdir, "last"), within=0.05)
