"""A stub of gcloud: a cloud whose hosts are folders, on which it really runs programs."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]

# A stub of gcloud. A TPU is a folder with its state, its flags, and a folder for each of two hosts
# per slice. Files in $STUBS control it: `quota` makes requests fail, `broken` the next copy,
# `later` is the state of a new TPU, and `unreachable` names a host that does not answer.
GCLOUD = """#!/usr/bin/env bash
set -u
echo "$@" >>"$STUBS/gcloud.log"
shift 2 # compute tpus
group=$1 verb=$2 name=${3%%:*}
tpu=$STUBS/tpus/$name
hosts() { ls -d "$tpu"/host-*; }
# With a machine goes all that runs on it.
power_off() {
    for pid in $(cat "$tpu"/host-*/t2t-run/pid 2>/dev/null); do
        group=$(ps -o pgid= -p "$pid") && kill -KILL -- "-${group// /}"
    done
}
case $verb in
describe)
    [[ -d $tpu ]] || { echo "ERROR: NOT_FOUND: Resource '$name' was not found" >&2; exit 1; }
    cat "$tpu/state"
    ;;
create)
    [[ ! -e $STUBS/quota ]] || { echo "ERROR: RESOURCE_EXHAUSTED: Quota limit" >&2; exit 1; }
    slices=$(grep -o 'node-count=[0-9]*' <<<"$*" | cut -d= -f2)
    for ((host = 0; host < 2 * ${slices:-1}; host++)); do mkdir -p "$tpu/host-$host"; done
    [[ $group == tpu-vm ]] && echo READY >"$tpu/state" || echo ACTIVE >"$tpu/state"
    [[ ! -e $STUBS/later ]] || cp "$STUBS/later" "$tpu/state"
    ;;
delete) power_off; rm -r "$tpu" ;;
scp)
    [[ ! -e $STUBS/broken ]] || { rm "$STUBS/broken"; echo "scp: connection lost" >&2; exit 1; }
    source=$3
    tpu=$STUBS/tpus/${4%%:*}
    for host in $(hosts); do cp "$source" "$host/${4#*:}"; done
    ;;
ssh)
    grep -q SUSPENDED "$tpu/state" && { echo "ssh: no route to host" >&2; exit 255; }
    for argument in "$@"; do
        [[ $argument == --command=* ]] && command=${argument#--command=}
    done
    status=0
    for host in $(hosts); do
        if grep -qs "$(basename "$host")" "$STUBS/unreachable"; then
            echo "ssh: connect to host port 22: Connection timed out" >&2
            status=255
        else
            (cd "$host" && HOME=$host T2T_HOST=$(basename "$host") bash -c "$command") || status=$?
        fi
    done
    exit "$status"
    ;;
esac
"""
# The Python of the hosts: pip does nothing, everything else is real.
PYTHON = """#!/usr/bin/env bash
case "$*" in
*"-m ensurepip"*) ;;
*"-m pip"*) echo "$@" >>"$STUBS/pip.log" ;;
*) exec "$REAL_PYTHON" "$@" ;;
esac
"""
# The scripts install with uv if this machine has it.
UV = '#!/bin/sh\necho "$@" >>"$STUBS/pip.log"\n'
# A program that waits for a file with its exit status, or for SIGTERM.
PROGRAM = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("started", *sys.argv[1:], flush=True)
while not (found := pathlib.Path.home() / "end").exists():
    time.sleep(0.05)
status = int(found.read_text())
found.unlink()
sys.exit(status)
"""


class Cloud:
    """A checkout with a program that does nothing, and a cloud in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.checkout = folder / "checkout"
        for name in ("pack.py", "gcloud.py", "tpu.py", "tpu_host.sh", "environment.sh"):
            (self.checkout / "launch").mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "launch" / name, self.checkout / "launch" / name)
        names = ["requirements.txt", "requirements-tpu.txt", "requirements-gcs.txt"]
        for name in (*names, "REVISION", ".gitattributes", ".gitignore"):
            shutil.copy(ROOT / name, self.checkout / name)
        (self.checkout / "t2t").mkdir()
        (self.checkout / "t2t" / "train.py").write_text(PROGRAM)
        stubs = {"gcloud": GCLOUD, "environment/bin/python": PYTHON, "uv": UV}
        for path, text in stubs.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
            (folder / path).chmod(0o755)
        self.git("init")
        self.git("add", ".")
        self.git("commit", "--message=First")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "T2T_"))}
        self.environment = inherited | {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "STUBS": str(folder),
            "REAL_PYTHON": sys.executable,
            "T2T_ENVIRONMENT": str(folder / "environment"),
            "T2T_CONSTRAINTS": "",
        }
        self.environment.pop("PYTHON", None)
        self.launchers: list[subprocess.Popen[str]] = []

    def git(self, *command: str) -> str:
        identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        git = ["git", "-C", str(self.checkout), *identity, *command]
        done = subprocess.run(git, check=True, capture_output=True, text=True, env=environment)
        return done.stdout.strip()

    def start(self, command: str, *flags: str) -> subprocess.Popen[str]:
        launcher = subprocess.Popen(
            [self.checkout / "launch" / "tpu.py", command, "pod", "--zone=here", *flags],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.launchers.append(launcher)
        return launcher

    def call(self, command: str, *flags: str) -> tuple[int, str]:
        return finish(self.start(command, *flags))

    def watch(self, *flags: str) -> subprocess.Popen[str]:
        kind = ["--type=v5litepod-8", "--poll=0.1", *flags]
        return self.start("watch", *kind, "--", "t2t.train", "--workdir=gs://bucket/a b")

    @property
    def tpu(self) -> Path:
        return self.folder / "tpus" / "pod"

    def wait_for(self, word: str, times: int, hosts: int = 2) -> None:
        """Waits until the logs of all hosts have the word so many times."""
        logs: list[str] = []
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            logs = [log.read_text() for log in self.tpu.glob("host-*/t2t-run/log")]
            if len(logs) == hosts and all(log.count(word) == times for log in logs):
                return
            time.sleep(0.05)
        raise AssertionError(logs)

    def end(self, status: int) -> None:
        """Ends the program on all hosts."""
        for host in self.tpu.glob("host-*"):
            draft = host / "draft"  # the program looks all the time: it must not see an empty file
            draft.write_text(str(status))
            draft.replace(host / "end")

    def kill(self) -> None:
        """Ends what runs on the hosts, as when their machines vanish."""
        for path in self.tpu.glob("host-*/t2t-run/pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)


def finish(launcher: subprocess.Popen[str]) -> tuple[int, str]:
    output, errors = launcher.communicate(timeout=180)
    return launcher.returncode, output + errors
