"""Sends a process a signal at a chosen moment: when it is about to touch a certain file.

`python -m tests.moments SIGKILL os.rename 'checkpoints/10$' t2t.train --config=... --workdir=...`
runs a program that is killed just before it renames checkpoint 10 to its final name.
"""

import os
import re
import runpy
import signal
import sys
from typing import NamedTuple


class Moment(NamedTuple):
    """An audit event of Python (open, os.rename, os.mkdir, os.remove) on a path."""

    event: str
    path: str  # regular expression


def signal_at(moment: Moment, number: signal.Signals) -> None:
    """Makes this process send itself the signal once, right before the first such event."""
    waiting = [moment]

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if waiting and event == moment.event:
            paths = [os.fspath(x) for x in arguments if isinstance(x, str | os.PathLike)]
            if any(re.search(moment.path, str(path)) for path in paths):
                waiting.clear()
                os.kill(os.getpid(), number)

    sys.addaudithook(watch)


if __name__ == "__main__":
    name, event, path, program = sys.argv[1:5]
    signal_at(Moment(event, path), signal.Signals[name])
    sys.argv[1:5] = []
    runpy.run_module(program, run_name="__main__", alter_sys=True)
