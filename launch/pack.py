#!/usr/bin/env python3
"""Packs the working tree as it is, with its revision: `launch/pack.py > ../tree.tar.gz`.

The archive has all files that git tracks or does not ignore, with their uncommitted changes. In it
the file REVISION holds the commit and the changed files, so that runs record them where there is
no git. launch/tpu.py copies the archive to TPU hosts; an image is built from it, too:

    launch/pack.py | docker build --file=launch/Dockerfile --build-arg=DEVICES=tpu --tag=IMAGE -
"""

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]


class PackError(RuntimeError):
    """The checkout cannot be packed; the message says why."""


def pack(target: IO[bytes]) -> dict[str, object]:
    """Writes the archive to `target`; returns the content of REVISION.

    Raises:
        PackError: this is no git checkout.
    """
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    revision: dict[str, object] = {
        "revision": git("rev-parse", "HEAD").strip(),
        # As t2t.training.provenance lists them: only these folders affect results.
        "changed": [
            line.strip()
            for line in git("status", "--porcelain", "--", "t2t", "configs").splitlines()
        ],
    }
    with tarfile.open(fileobj=target, mode="w|gz") as archive:
        for name in sorted(set(listed.split("\0")) - {"", "REVISION"}):
            if name.endswith("/"):
                print(f"{name} is a git repository of its own: left out", file=sys.stderr)
            elif (ROOT / name).exists() or (ROOT / name).is_symlink():  # not if it was deleted
                archive.add(ROOT / name, name, recursive=False)
        content = json.dumps(revision).encode()
        entry = tarfile.TarInfo("REVISION")
        entry.size, entry.mode = len(content), 0o644
        archive.addfile(entry, io.BytesIO(content))
    return revision


def git(*arguments: str) -> str:
    """Returns the output of a git command in this checkout."""
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        raise PackError("git is not installed; it lists the files to pack") from None
    except subprocess.CalledProcessError as error:
        raise PackError(
            f"{ROOT} is no git checkout with a commit: {error.stderr.strip()}"
        ) from None


def main() -> int:
    """Packs to standard output; returns the exit status."""
    try:
        revision = pack(sys.stdout.buffer)
    except PackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(revision), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
