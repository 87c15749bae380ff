"""Signals to one of two real processes, which JAX tells to both or leaves alone."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

from t2t.runtime.command_line import INTERRUPTED

# Both are signalled before the loop, as in a resumed run that still prepares its data.
TRAINING = """
import signal, time
from t2t.config.requests import Hosts
from t2t.runtime import distributed, command_line
from t2t.training.signals import Interruption

def main(request: Hosts):
    distributed.join(**request.hosts, shares_signals=True)
    if distributed.is_first():
        signal.raise_signal(signal.SIGTERM)
    distributed.wait_for_all()
    time.sleep(3)  # JAX looks for signals once a second
    with Interruption(5000) as interruption:
        step = 5000
        while step < 5100 and not interruption.reached(step):
            step += 1
            time.sleep(0.1)
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
    time.sleep(60)

command_line.LEAVING = 1
command_line.run(main)
"""


def start(code: str) -> list[subprocess.Popen[str]]:
    """Starts two processes that find each other."""
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        meeting = [f"--coordinator=localhost:{unused.getsockname()[1]}", "--num_processes=2"]
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, *meeting, f"--process_id={number}"],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]


def test_sigterm_before_the_loop_of_a_resumed_run_stops_all_processes() -> None:
    processes = start(TRAINING)
    try:
        found = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert found == ["5000\n"] * 2


def test_sigterm_ends_a_program_that_does_not_train() -> None:
    processes = start(EVALUATION)
    try:
        _, message = processes[0].communicate(timeout=50)
        assert (processes[0].returncode, message) == (INTERRUPTED, "interrupted\n")
        processes[1].communicate(timeout=120)
        assert processes[1].returncode == -signal.SIGABRT  # it has lost the other one
    finally:
        for process in processes:
            process.kill()
