#!/usr/bin/env python3
"""Runs t2t programs on Cloud TPUs, and starts them again after a preemption.

    launch/tpu.py watch NAME --zone=ZONE --type=v5litepod-16 --spot -- t2t.train --config=...

`watch` does everything: it requests the TPU and waits for it, copies the working tree, makes the
environment, starts the program on all hosts, and starts it again after a preemption or the loss of
a host, until it has ended. The program does not need it to go on: stop `watch` whenever you like,
and give the same command again. Its steps are commands, too:

    create NAME --zone=ZONE --type=TYPE   requests the TPU
    start NAME --zone=ZONE -- MODULE ...  ships the working tree and starts a program on all hosts
    status | follow | stop | delete NAME --zone=ZONE

The TPU is a queued resource, which may have several slices (--slices); --vm makes a plain TPU VM.
Needs Python 3.11, git, and gcloud with a project and an account.
"""

import argparse
import collections
import contextlib
import dataclasses
import itertools
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gcloud import ABSENT, LaunchError, Tpu

INTERRUPTED = 75  # t2t.runtime.program.INTERRUPTED: stopped and saved by a signal
# Exit statuses that end a run for good: done, wrong flags or data, and a request in stop.json.
FINAL = (0, 2, 76)
HOST = "bash t2t/launch/tpu_host.sh"
ABSENT_HOST = "echo t2t-host ${T2T_HOST:-$(hostname)} absent"
PACK = Path(__file__).with_name("pack.py")
# Replaces the files of the archive that came before; what else lies there stays.
UNPACK = r"""if [ -e t2t ] && [ ! -e t2t-run/files ]; then
    echo "$HOME/t2t was not made by launch/tpu.py, which would replace its files; move it away"
    exit 1
fi
mkdir -p t2t t2t-run && touch t2t-run/files &&
(cd t2t && xargs -d '\n' rm -f -- <../t2t-run/files) &&
tar -tzf t2t.tar.gz --quoting-style=literal >t2t-run/files && tar -xzf t2t.tar.gz -C t2t"""

# gcloud's states; all others pass by themselves. Of queued resources:
# docs.cloud.google.com/tpu/docs/queued-resources; of VMs: State of a Node in the TPU API.
READY = ("ACTIVE", "READY")
GONE = ("SUSPENDED", "PREEMPTED", "TERMINATED")  # to be deleted and requested again
FAILED, STOPPED = "FAILED", "STOPPED"


class RequestError(LaunchError):
    """There is no TPU, and waiting does not help."""


def ask_status(program: Sequence[str] = ()) -> str:
    """The command by which each host reports how the program is, or whatever it runs."""
    report = shlex.join(("status", *program))
    return f"if [ -e t2t/launch ]; then {HOST} {report}; else {ABSENT_HOST}; fi"


def start(tpu: Tpu, program: Sequence[str]) -> None:
    """Ships the working tree, makes the environments, and starts the program on all hosts.

    Nothing is started if one host cannot be prepared, and all are stopped if one does not start:
    the others would wait for it.

    Raises:
        LaunchError: a step failed, or a program is running, whose code this would replace.
    """
    if "running" in tpu.run(ask_status()).values():
        raise LaunchError(f"a program is running on {tpu.name}; stop it first")
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "t2t.tar.gz"
        with archive.open("wb") as file:
            packed = subprocess.run(
                [sys.executable, PACK], stdout=file, stderr=subprocess.PIPE, text=True
            )
        if packed.returncode:
            raise LaunchError(packed.stderr.strip().removeprefix("error: "))
        say(f"copying the working tree, {packed.stderr.strip()}")
        tpu.copy(archive, "t2t.tar.gz")
    hosts = tpu.run(f"{UNPACK} && {HOST} install")
    say(f"{len(hosts)} hosts are ready; starting {program[0]}")
    try:
        tpu.run(f"{HOST} start {shlex.join(program)}")
    except LaunchError:
        with contextlib.suppress(LaunchError):
            tpu.run(f"{HOST} halt_program")
        raise


@dataclasses.dataclass
class Watch:
    """Keeps a program running until it has ended."""

    tpu: Tpu
    options: argparse.Namespace
    seen: bool = False  # the TPU was there, or was requested
    ready: bool = False  # the TPU was there
    restarts: int = 0  # of the program, and after failed requests; without those by preemption
    told: str = ""

    def keep(self) -> int:
        """Looks after the program until it has ended; returns its exit status.

        After a step of the launcher has failed it waits, longer each time, and tries again: most
        such failures are a preemption that gcloud does not show yet, or the network of this
        machine. What fails before the TPU is there will not get better.
        """
        failures = 0
        while True:
            try:
                end = self.look()
                failures = 0
            except LaunchError as error:
                failures += 1
                is_final = isinstance(error, RequestError) or not self.seen
                if is_final or failures > self.options.max_restarts:
                    raise
                end = None
                say(f"{error}\ntrying again")
            if end is not None:
                return end
            time.sleep(self.options.poll * min(2**failures, 20))

    def look(self) -> int | None:
        """Does what is due; returns the program's exit status if it has ended for good."""
        state = self.tpu.find_state()
        if state == FAILED:
            if not self.ready or self.restarts == self.options.max_restarts:
                raise RequestError(
                    f"the request for {self.tpu.name} has failed; `gcloud compute tpus "
                    "queued-resources describe` says why; delete it, then try again"
                )
            self.restarts += 1
        if state == STOPPED:
            raise RequestError(
                f"{self.tpu.name} was stopped; `gcloud compute tpus tpu-vm start` starts it again"
            )
        if state in (*GONE, FAILED):
            say(f"{self.tpu.name} is gone, since it was preempted or failed; requesting it again")
            self.tpu.delete()
            state = ABSENT
        if state == ABSENT:
            create(self.tpu, self.options)
        self.seen = True
        self.ready |= state in READY
        return self.look_at_hosts() if state in READY else None

    def look_at_hosts(self) -> int | None:
        """Starts the program where it does not run; returns as `look`."""
        statuses = self.tpu.run(ask_status(self.options.program))
        if (told := describe(statuses)) != self.told:
            say(f"hosts: {told}")
            self.told = told
        end = judge(statuses)
        if end is None and "running" in statuses.values():
            return None
        if end is not None:
            stopped = "stopped" in statuses.values()
            is_last = end != INTERRUPTED and self.restarts == self.options.max_restarts
            if stopped or end in FINAL or is_last:
                return end
            self.restarts += end != INTERRUPTED
            say(f"the program ended with status {end}; starting it again")
            if "running" in statuses.values():
                self.tpu.run(f"{HOST} halt_program")
        start(self.tpu, self.options.program)
        return None


def judge(statuses: dict[str, str]) -> int | None:
    """The status with which the program ended on all hosts; None while it runs or has not started.

    A host that was restarted, or whose process died, ends the program: the others wait for it.
    """
    values = collections.Counter(statuses.values())
    if values["stopped"]:
        return INTERRUPTED if not values["running"] else None
    if values["running"] == len(statuses) or values["absent"] == len(statuses):
        return None
    codes = [int(value.split()[1]) for value in values if value.startswith("exited")]
    if values["running"] and not (values["lost"] or values["absent"]):
        return None  # the others end within two minutes
    # A host's own error explains more than the abort (134) of those that lost it.
    return min((code for code in codes if code not in (0, 134)), default=max(codes, default=1))


def describe(statuses: dict[str, str]) -> str:
    """Counts the hosts in each state, as in `3 running, 1 lost`."""
    counts = collections.Counter(statuses.values())
    return ", ".join(f"{count} {value}" for value, count in sorted(counts.items()))


def say(text: str) -> None:
    """Prints a line with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def create(tpu: Tpu, options: argparse.Namespace) -> None:
    """Requests the TPU as the options say."""
    if not options.type:
        raise LaunchError("--type is missing, such as --type=v5litepod-16")
    say(f"requesting {options.slices} x {options.type}{' (spot)' * options.spot} as {tpu.name}")
    tpu.create(options.type, options.slices, options.spot, options.image, options.gcloud_flag)


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; the program to run stands behind `--`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = ("watch", "create", "start", "status", "follow", "stop", "delete")
    parser.add_argument("command", choices=commands)
    parser.add_argument("name", help="name of the TPU")
    parser.add_argument("--zone", required=True)
    parser.add_argument("--type", help="accelerator type of a slice, such as v5litepod-16")
    parser.add_argument("--slices", type=int, default=1, help="number of slices")
    parser.add_argument("--spot", action="store_true", help="cheaper; may be preempted")
    parser.add_argument("--vm", action="store_true", help="a plain TPU VM, no queued resource")
    parser.add_argument("--image", help="software version; by default the one for the type")
    parser.add_argument(
        "--gcloud-flag", action="append", default=[], help="another flag of gcloud's `create`"
    )
    parser.add_argument("--poll", type=float, default=30, help="seconds between looks in `watch`")
    parser.add_argument("--max-restarts", type=int, default=10, help="besides preemptions")
    parser.add_argument("--slice", type=int, default=0, help="the slice to follow")
    parser.add_argument("--worker", type=int, default=0, help="the host of the slice to follow")
    own = itertools.takewhile(lambda argument: argument != "--", arguments)
    options = parser.parse_args(list(own))
    options.program = list(itertools.dropwhile(lambda argument: argument != "--", arguments))[1:]
    if options.vm and options.slices > 1:
        parser.error("several slices need a queued resource: leave out --vm")
    needs = options.command in ("watch", "start")
    if needs != bool(options.program):
        parser.error("watch and start, and only they, take a program: -- t2t.train --config=...")
    if needs and not options.program[0].startswith("t2t."):
        parser.error(f"{options.program[0]} is no module of t2t, such as t2t.train")
    return options


def main() -> int:
    """Runs the command; returns the exit status."""
    options = read_options(sys.argv[1:])
    tpu = Tpu(options.name, options.zone, options.vm)
    try:
        match options.command:
            case "watch":
                return Watch(tpu, options).keep()
            case "create":
                create(tpu, options)
            case "start":
                start(tpu, options.program)
            case "status":
                print(tpu.find_state())
                print("\n".join(" ".join(one) for one in sorted(tpu.run(ask_status()).items())))
            case "follow":
                return tpu.show(options.slice, options.worker, f"{HOST} follow")
            case "stop":
                print(describe(tpu.run(f"{HOST} stop")))
            case "delete":
                tpu.delete()
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("the program goes on; the same command watches it again", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
