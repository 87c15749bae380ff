"""Signals at a bad moment, and to one of two processes; test_loop.py shows how training stops."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from t2t.runtime.command_line import INTERRUPTED, LOST
from t2t.runtime.signals import catch_signals, hold_signals
from t2t.training.checkpoint import restore_params, save_params
from tests.moments import Moment, signal_at
from tests.programs import start_two
from tests.training.toy_run import assert_same, make_state, write_run

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
    """An ignored signal stays ignored, and hides no other."""
    (other,) = {*NUMBERS} - {number}
    signal.signal(other, signal.SIG_IGN)
    done = []

    @hold_signals()
    def act() -> None:
        for sent in (other, number, number):
            os.kill(os.getpid(), sent)
        done.append("all")

    with pytest.raises(KeyboardInterrupt):
        act()
    assert done == ["all"]
    assert signal.getsignal(number) is signal.default_int_handler
    assert signal.getsignal(other) is signal.SIG_IGN


def test_each_signal_that_was_held_has_its_effect() -> None:
    """As without holding: the first one asks training to stop, and Ctrl-C then stops at once."""

    @hold_signals()
    def act(*numbers: signal.Signals) -> None:
        for number in numbers:
            os.kill(os.getpid(), number)

    with catch_signals(0) as is_interrupted:
        act(signal.SIGTERM, signal.SIGTERM)
        assert is_interrupted(0)
    with catch_signals(0), pytest.raises(KeyboardInterrupt):
        act(signal.SIGTERM, signal.SIGINT)


def test_handler_that_is_not_of_python_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python cannot set it again."""
    foreign, get = signal.SIGINT, signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda n: None if n == foreign else get(n))
    with hold_signals(), catch_signals(0) as is_interrupted:
        assert get(foreign) is signal.default_int_handler
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_interrupted(0)
    assert get(foreign) is signal.default_int_handler


def test_signal_that_comes_during_a_message_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python refuses a second write to a stream within the first."""

    def write(message: str) -> None:
        raise RuntimeError(f"reentrant call inside <_io.BufferedWriter name='<stderr>'>: {message}")

    monkeypatch.setattr(logging.getLogger("t2t.runtime.signals"), "info", write)
    with catch_signals(0) as is_interrupted:
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_interrupted(0)


def test_another_thread_leaves_signals_alone() -> None:
    found: list[object] = []

    def train() -> None:
        with hold_signals():
            found.append(signal.getsignal(signal.SIGINT))
        with catch_signals(0) as is_interrupted:
            found.extend([signal.getsignal(signal.SIGINT), is_interrupted(0)])

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler, signal.default_int_handler, False]


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
def test_interrupted_copy_of_a_run_is_whole(tmp_path: Path, moment: Moment) -> None:
    workdir, target = write_run(tmp_path / "run", {10: None}), tmp_path / "new" / "saved"
    names = ("vocab/joint.model", "plugins/some_package/parts.py")
    for name in names:
        (workdir / name).parent.mkdir(parents=True)
        (workdir / name).write_text(name)
    params, _ = restore_params(workdir, "last")
    signal_at(moment, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        save_params(workdir, target, params, 10)
    assert_same(restore_params(target, "last")[0], params)
    for name in ("config.json", *names):
        assert (target / name).read_bytes() == (workdir / name).read_bytes()


def test_interrupted_reading_ends_cleanly(tmp_path: Path) -> None:
    workdir = write_run(tmp_path / "run", {10: None})
    signal_at(Moment("open", "_METADATA$"), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        restore_params(workdir, "last")
    assert_same(restore_params(workdir, "last")[0], make_state(10).params)


# Both are signalled before the loop, as in a resumed run that still prepares its data.
TRAINING = """
import signal, time
from t2t.config.requests import Hosts
from t2t.runtime import distributed, command_line
from t2t.runtime.signals import catch_signals

def main(request: Hosts):
    distributed.join(**request.hosts, shares_signals=True)
    if distributed.is_first():
        signal.raise_signal(signal.SIGTERM)
    distributed.wait_for_all()
    time.sleep(3)  # JAX looks for signals once a second
    with catch_signals(5000) as is_interrupted:
        step = 5000
        while step < 6000 and not is_interrupted(step):
            step += 1
            time.sleep(0.1)
            distributed.wait_for_all()  # as in training, no process is ahead of the others
    print(step)

command_line.run(main)
"""

EVALUATION = """
import signal, time
from t2t.config.requests import Hosts
from t2t.runtime import distributed, command_line

def main(request: Hosts):
    distributed.join(**request.hosts)
    distributed.wait_for_all()
    if distributed.is_first():
        signal.raise_signal(signal.SIGTERM)
    time.sleep(600)

command_line.LEAVING = 1
command_line.run(main)
"""


def test_sigterm_before_the_loop_of_a_resumed_run_stops_all_processes() -> None:
    with start_two(TRAINING) as processes:
        first, second = (process.communicate(timeout=300)[0] for process in processes)
    assert first == second
    assert 5000 <= int(first) < 6000  # 5000, unless JAX has not looked in three seconds


def test_sigterm_ends_a_program_that_does_not_train() -> None:
    with start_two(EVALUATION) as (first, other):
        _, message = first.communicate(timeout=300)
        assert (first.returncode, message) == (INTERRUPTED, "interrupted\n")
        other.communicate(timeout=300)  # it has lost the other one
        assert other.returncode in (-signal.SIGABRT, LOST)
