"""Shared by the steps of `benchmarks.on_gpu`: flags, rows that are on disk at once, processes."""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contest import ROOT
from t2t.storage.atomic_files import write_file

NOT_REACHED = "not reached"
FAILED = "failed: "
NOT_FINITE = "NOT FINITE"


class Results:
    """The rows of a step: name -> {"text": for the table, further figures}.

    A row without figures was not measured: its text is `NOT_REACHED` or `FAILED`, and the reason.
    """

    def __init__(self, path: Path, names: Sequence[str]):
        """Reads the rows that an earlier call measured, and plans the others."""
        self.path = path
        before = read_rows(path)
        self.rows = {
            name: before[name] if is_measured(before.get(name)) else {"text": NOT_REACHED}
            for name in names
        }
        self._write()

    def list_missing(self) -> list[str]:
        """Returns the names of the rows that are not measured."""
        return [name for name, row in self.rows.items() if not is_measured(row)]

    def add(self, name: str, text: str, **figures: Any) -> None:
        """Adds a row; it is on the disk when this returns."""
        self.rows[name] = {"text": text, **figures}
        print(f"  {name}: {text}", flush=True)
        self._write()

    @contextlib.contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """An error inside of this context becomes the text of a row without figures.

        The step goes on.
        """
        try:
            yield
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            text = f"{FAILED}{type(error).__name__}: {lines[0]}"
            if is_measured(self.rows[name]):
                print(f"  {name}: {text}", flush=True)
            else:
                self.add(name, text)

    def _write(self) -> None:
        write_file(self.path, json.dumps(self.rows, indent=2) + "\n")


def is_measured(row: dict[str, Any] | None) -> bool:
    """Returns whether a row has figures."""
    return row is not None and len(row) > 1


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the rows of a step; none if it was never started."""
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


class Child:
    """A process that prints a line of JSON at its end; its other output goes to `log`."""

    def __init__(self, log: Path, module: str, *flags: str, environment: dict[str, str] = {}):  # noqa: B006
        """Starts `python -m MODULE FLAGS`."""
        self._log = log
        command = [sys.executable, "-m", module, *flags]
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **environment}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip

    def finish(self, given: str = "") -> dict[str, Any]:
        """Waits for its end and returns what it printed; `given` is its standard input.

        Raises:
            RuntimeError: it failed; the message is the last error of its log.
        """
        printed, _ = self.process.communicate(given)
        if self.process.returncode:
            raise RuntimeError(read_reason(self._log, self.process.returncode))
        found: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return found


def read_reason(log: Path, status: int) -> str:
    """Returns the last error in a log, else its last line, else the exit status."""
    text = log.read_text("utf-8", "replace").strip()
    errors = re.findall(r"^[\w.]*(?:Error|Exception)\b.*", text, re.MULTILINE)
    return (errors or text.splitlines() or [f"exit status {status}, see {log.name}"])[-1].strip()


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Creates a parser with the flags that all steps have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path, required=True, help="file of this step's rows")
    parser.add_argument("--seconds", type=float, default=600, help="time limit of this step")
    parser.add_argument("--dry_run", action="store_true", help="toy sizes")
    parser.add_argument("--checkout", default="", help="checkout of github.com/google/flax")
    return parser


def end_with_parent() -> None:
    """Ends this process and those that it started if the command that started it is killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(0, signal.SIGKILL)

    if os.getpgid(0) == os.getpid():  # started by benchmarks.on_gpu, in a group of its own
        threading.Thread(target=watch, daemon=True).start()
