"""Signals that come at a bad moment; how training stops is tested with the loop."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from t2t.training.checkpoint import restore_params, save_params
from t2t.training.signals import Interruption, hold_signals
from tests.moments import Moment, signal_at
from tests.training.toy_run import assert_same, make_state, plain, write_run

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


def test_ignored_signal_stays_ignored_and_hides_no_other() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    @hold_signals()
    def send_all() -> None:
        for number in NUMBERS:
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        send_all()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_leaves_signals_alone() -> None:
    found: list[object] = []

    def train() -> None:
        with hold_signals():
            found.append(signal.getsignal(signal.SIGINT))
        with Interruption(0) as interruption:
            found.extend([signal.getsignal(signal.SIGINT), interruption.reached(0)])

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler, signal.default_int_handler, False]


def interrupt(act: Callable[[], object], moment: Moment) -> None:
    """Ctrl-C when this comes to the moment."""
    signal_at(moment, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        act()


@pytest.mark.parametrize(
    "moment",
    [
        Moment("os.mkdir", r"saved\.\w+/vocab$"),
        Moment("os.rename", "checkpoints/10$"),
        Moment("open", "_METADATA$"),
        Moment("os.rename", r"saved\.\w+/config\.json$"),
        Moment("os.rename", "saved$"),
    ],
    ids=lambda moment: moment.path,
)
def test_interrupted_checkpoint_is_whole(tmp_path: Path, moment: Moment) -> None:
    workdir, target = write_run(tmp_path / "run", {10: None}), tmp_path / "saved"
    (workdir / "vocab").mkdir()
    (workdir / "vocab" / "joint.model").touch()
    params, _ = restore_params(workdir, "last")
    interrupt(lambda: save_params(workdir, target, params, 10), moment)
    assert_same(restore_params(target, "last")[0], params)


def test_interrupted_reading_ends_cleanly(tmp_path: Path) -> None:
    workdir = write_run(tmp_path / "run", {10: None})
    interrupt(lambda: restore_params(workdir, "last"), Moment("open", "_METADATA$"))
    assert_same(restore_params(workdir, "last")[0], plain(make_state(10)).params)
