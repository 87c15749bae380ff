#!/usr/bin/env python3
"""Runs a program in several processes on this machine.

    launch/local.py --processes=2 --devices=2 -- python -m t2t.train --config=... --workdir=...

Each process gets the flags to find the others. Ctrl-C, SIGTERM and the end of the terminal reach
all of them as SIGTERM. If one fails, the others get three minutes to stop by themselves before they
are killed; the launcher exits with the status of the one that failed.
"""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from typing import IO

# Seconds from the first failure until the other processes are killed, of which JAX may need 100 to
# notice a lost process.
PATIENCE = 180


def main() -> int:
    """Starts the processes and waits for them; returns the first status that is not 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, required=True, help="number of processes")
    parser.add_argument("--devices", type=int, help="fake CPU devices per process")
    parser.add_argument("command", nargs="+", help="the command of a t2t program, after --")
    arguments = parser.parse_args()
    if shutil.which(arguments.command[0]) is None:
        parser.error(f"{arguments.command[0]} is no program on the PATH")
    if arguments.processes < 1:
        parser.error(f"--processes={arguments.processes} must be at least 1")
    environment = dict(os.environ)
    if arguments.devices:
        flag = f"--xla_force_host_platform_device_count={arguments.devices}"
        environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flag}
    meeting = [f"--coordinator=localhost:{find_port()}", f"--num_processes={arguments.processes}"]
    processes = []
    for number in range(arguments.processes):
        command = [*arguments.command, *meeting, f"--process_id={number}"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, env=environment, stdout=pipe, stderr=pipe, start_new_session=True
        )
        processes.append(process)
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            assert source
            threading.Thread(target=copy_lines, args=(number, source, target.buffer)).start()

    def pass_on(received: int, frame: types.FrameType | None) -> None:
        del received, frame
        for process in processes:
            process.send_signal(signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, pass_on)
    return wait(processes)


def find_port() -> int:
    """Returns a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def copy_lines(number: int, source: IO[bytes], target: IO[bytes]) -> None:
    """Copies lines, each with the number of its process in front."""
    for line in source:
        # On a full disk lines are lost, but the process does not wait for somebody to read them.
        with contextlib.suppress(OSError):
            target.write(b"[%d] %s" % (number, line))
            target.flush()


def wait(processes: list[subprocess.Popen[bytes]]) -> int:
    """Waits for all processes; kills the others some time after the first failure."""
    failed, deadline = 0, float("inf")
    while None in (statuses := [process.poll() for process in processes]):
        time.sleep(0.1)
        if not failed and any(statuses):
            failed = next(filter(None, statuses))
            deadline = time.monotonic() + PATIENCE
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
    for number, process in enumerate(processes):
        if process.returncode:
            print(f"[{number}] exited {_count(process.returncode)}", file=sys.stderr)
    failed = failed or next(filter(None, (process.returncode for process in processes)), 0)
    return _count(failed)


def _count(status: int) -> int:
    """A signal is counted as shells do: 137 for SIGKILL."""
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
