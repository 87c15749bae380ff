"""Lists the programs of t2t and starts one: `t2t train --config=configs/quickstart.py ...`.

`t2t NAME FLAG ...` runs `python -m t2t.NAME FLAG ...` with the same Python.
"""

import ast
import difflib
import os
import sys
from pathlib import Path
from typing import NoReturn

from t2t.config.recipes import RECIPES

_FOLDER = Path(__file__).parent
_USAGE = """Usage: t2t PROGRAM [FLAG ...]

{programs}

`t2t PROGRAM --help` lists the flags of a program. A recipe such as --config=configs/quickstart.py
is looked up in the current folder first, then among the recipes of t2t in:
  {recipes}
"""


def list_programs() -> dict[str, str]:
    """Returns a one-line summary of each program, keyed by its name, without importing any."""
    return {
        path.stem: _read_summary(path)
        for path in sorted(_FOLDER.glob("*.py"))
        if not path.stem.startswith("_")
    }


def _read_summary(path: Path) -> str:
    """Returns the docstring's first line, without the command that follows the colon."""
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return docstring.partition("\n")[0].partition(": `")[0].rstrip(".")


def describe_usage() -> str:
    """Returns the text of `t2t --help`."""
    programs = list_programs()
    width = max(map(len, programs))
    lines = [f"  {name:{width}}  {summary}" for name, summary in programs.items()]
    return _USAGE.format(programs="\n".join(lines), recipes=RECIPES)


def main() -> NoReturn:
    """Replaces this process by the named program; exits with status 2 if it does not exist."""
    if len(sys.argv) == 1 or sys.argv[1] in ("--help", "-h", "help"):
        print(describe_usage(), end="")
        sys.exit(0)
    _, name, *flags = sys.argv
    programs = list_programs()
    if name not in programs:
        nearest = difflib.get_close_matches(name.replace("-", "_"), programs)
        advice = f"perhaps {' or '.join(nearest)}" if nearest else "`t2t --help` lists them"
        print(f"t2t {name}: no such program; {advice}", file=sys.stderr)
        sys.exit(2)
    # exec, not a child process: signals, exit status, sys.path and the recorded command are those
    # of `python -m`.
    os.execv(sys.executable, [sys.executable, "-m", f"t2t.{name}", *flags])


if __name__ == "__main__":
    main()
