"""Times a program of t2t: `python -m benchmarks.contestants.run_program t2t.translate FLAG ...`.

Prints how often it would run in a minute, by the clock and by its CPU time. It reads one line. NEW
in a flag is a new folder.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

LINE = "A girl climbs.\n"


def main() -> None:
    """Runs the program, whose output is dropped."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", *(each.replace("NEW", folder) for each in sys.argv[1:])]
        began = time.perf_counter()
        subprocess.run(command, input=LINE, text=True, check=True, stdout=subprocess.DEVNULL)
        seconds, used = time.perf_counter() - began, os.times()
    cpu = used.children_user + used.children_system
    print(json.dumps({"per_minute": 60 / seconds, "per_cpu_minute": 60 / cpu}))


if __name__ == "__main__":
    main()
