"""Sends a process a signal at a chosen moment: when it is about to touch a certain file.

`python -m tests.moments SIGKILL os.rename 'checkpoints/10$' t2t.train --config=... --workdir=...`
runs a program that is killed just before it renames checkpoint 10 to its final name.
"""

import os
import re
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple


class Moment(NamedTuple):
    """An audit event of Python (open, os.rename, os.mkdir, os.remove) on a path."""

    event: str
    path: str  # regular expression


def signal_at(moment: Moment, number: signal.Signals, *, to_parent: bool = False) -> None:
    """Makes this process send itself the signal once, right before the first such event.

    With `to_parent` the process that has started this one gets it, and this one waits for its end.
    """
    waiting, parent = [moment], os.getppid()

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if waiting and event == moment.event:
            paths = [os.fspath(x) for x in arguments if isinstance(x, str | os.PathLike)]
            if any(re.search(moment.path, str(path)) for path in paths):
                waiting.clear()
                if not to_parent:
                    os.kill(os.getpid(), number)
                while to_parent and os.getppid() == parent:
                    os.kill(parent, number)
                    time.sleep(0.01)

    sys.addaudithook(watch)


def kill_parent_at(moment: Moment, recipe: Path) -> None:
    """Makes a program that reads the recipe kill the sweep or pipeline that has started it."""
    with recipe.open("a") as file:
        file.write(
            "\n\nimport signal\nfrom tests.moments import Moment, signal_at\n"
            f"signal_at({moment!r}, signal.SIGKILL, to_parent=True)\n"
        )


if __name__ == "__main__":
    name, event, path, program = sys.argv[1:5]
    signal_at(Moment(event, path), signal.Signals[name])
    sys.argv[1:5] = []
    runpy.run_module(program, run_name="__main__", alter_sys=True)
