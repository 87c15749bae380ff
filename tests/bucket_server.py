"""Starts the server of `tests/gcs_server.py`, and tells it when to kill a program."""

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

BUCKET = "runs-of-tests"


@contextlib.contextmanager
def serve_bucket(*flags: str) -> Iterator[dict[str, str]]:
    """Starts the server in a process of its own; yields the environment that leads to it."""
    command = [sys.executable, "-m", "tests.gcs_server", BUCKET, *flags]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            url = f"http://localhost:{process.stdout.readline().strip()}"
            yield {
                "STORAGE_EMULATOR_HOST": url,
                "TENSORSTORE_GCS_HTTP_URL": url,
                "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # else it asks Google by gRPC
                "SERVER_PID": str(process.pid),
            }
        finally:
            process.kill()


def die_at(pattern: str) -> None:
    """Makes the server kill this process at its first request that matches.

    The regular expression is searched in the method, the path, and the first bytes of the content,
    which have the names of objects that gcsfs writes or deletes.
    """
    moment = json.dumps({"pid": os.getpid(), "pattern": pattern}).encode()
    urllib.request.urlopen(f"{os.environ['STORAGE_EMULATOR_HOST']}/moment", moment).close()
