"""A Cloud TPU by its name, and gcloud's commands for it; launch/tpu.py uses it."""

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

IMAGES = {  # docs.cloud.google.com/tpu/docs/runtimes, by the beginning of --type
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
PATIENCE = 1800  # seconds for one call of gcloud: an installation, or a program that saves
ABSENT = "ABSENT"  # the state of a TPU that gcloud does not know


class LaunchError(RuntimeError):
    """A step failed; the message says which and, where known, what to do."""


@dataclasses.dataclass(frozen=True)
class Tpu:
    """A TPU by its name, and gcloud's commands for it."""

    name: str
    zone: str
    vm: bool  # a plain TPU VM, no queued resource

    def create(
        self, kind: str, slices: int, spot: bool, image: str | None, more: Sequence[str]
    ) -> None:
        """Requests the TPU; returns when Google has taken the request."""
        image = image or IMAGES.get(kind.split("-")[0], "tpu-ubuntu2204-base")
        flags = [f"--accelerator-type={kind}", *(["--spot"] if spot else []), *more]
        if self.vm:
            flags += [f"--version={image}"]
        else:
            nodes = f"--node-count={slices}" if slices > 1 else f"--node-id={self.name}"
            flags += [f"--runtime-version={image}", nodes, "--async"]
        self._call("create", self.name, *flags)

    def find_state(self) -> str:
        """Asks for the state.

        Raises:
            LaunchError: gcloud failed for another reason than that there is no such TPU.
        """
        path = "state" if self.vm else "state.state"
        done = self._gcloud("describe", self.name, f"--format=value({path})")
        if done.returncode:
            if re.search("NOT_FOUND|not found", done.stderr):
                return ABSENT
            raise LaunchError(f"gcloud describe: {done.stderr.strip()}")
        return done.stdout.strip()

    def delete(self) -> None:
        """Deletes the TPU and waits until it is gone."""
        self._call("delete", self.name, *([] if self.vm else ["--force"]))

    def run(self, command: str) -> dict[str, str]:
        """Runs a command on all hosts; returns what each of them reports.

        Raises:
            LaunchError: it failed on a host, or a host does not answer.
        """
        done = self._gcloud("ssh", self.name, *self._everywhere(), f"--command={command}")
        found = dict(re.findall(r"^t2t-host (\S+) (.+?)\s*$", done.stdout, re.MULTILINE))
        if done.returncode:
            told = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise LaunchError(
                f"{command!r} failed on a host, or one does not answer; "
                f"answered: {', '.join(sorted(found)) or 'none'}\n{told}"
            )
        return found

    def copy(self, file: Path, target: str) -> None:
        """Copies a file to all hosts."""
        self._call("scp", str(file), f"{self.name}:{target}", *self._everywhere())

    def show(self, slice_number: int, worker: int, command: str) -> int:
        """Runs a command on one host, and shows its output until it is interrupted."""
        node = [] if self.vm else [f"--node={slice_number}"]
        ssh = self._command("ssh", self.name, f"--worker={worker}", *node)
        return subprocess.call([*ssh, f"--command={command}"])

    def _everywhere(self) -> list[str]:
        return ["--worker=all"] if self.vm else ["--worker=all", "--node=all"]

    def _command(self, verb: str, *arguments: str) -> list[str]:
        group = "tpu-vm" if self.vm else "queued-resources"
        if not shutil.which("gcloud"):
            raise LaunchError("gcloud is not installed: https://cloud.google.com/sdk")
        zone = f"--zone={self.zone}"
        return ["gcloud", "compute", "tpus", group, verb, *arguments, zone, "--quiet"]

    def _gcloud(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = self._command(verb, *arguments)
        try:
            return subprocess.run(
                command,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            raise LaunchError(f"gcloud {verb} did not end within {PATIENCE} s") from None

    def _call(self, verb: str, *arguments: str) -> None:
        done = self._gcloud(verb, *arguments)
        if done.returncode:
            raise LaunchError(f"gcloud {verb}: {done.stderr.strip()}")
