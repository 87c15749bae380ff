"""Lists the programs of t2t and starts one: `t2t train --config=configs/quickstart.py ...`.

`t2t NAME FLAG ...` becomes `python -m t2t.NAME FLAG ...` of this Python.
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
is looked up in the current folder first, then among those of t2t:
  {recipes}
"""


def list_programs() -> dict[str, str]:
    """One line about each program, by its name; none of them is imported."""
    return {
        path.stem: _read_summary(path)
        for path in sorted(_FOLDER.glob("*.py"))
        if not path.stem.startswith("_")
    }


def _read_summary(path: Path) -> str:
    """The first line of the docstring, without the command behind the colon."""
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return docstring.partition("\n")[0].partition(": `")[0].rstrip(".")


def describe_usage() -> str:
    """The text of `t2t --help`."""
    programs = list_programs()
    width = max(map(len, programs))
    lines = [f"  {name:{width}}  {summary}" for name, summary in programs.items()]
    return _USAGE.format(programs="\n".join(lines), recipes=RECIPES)


def main() -> NoReturn:
    """Becomes the program that the command line names; exits with status 2 if there is none."""
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
    # The same process: signals, status, module search path and ledger are those of `python -m`.
    os.execv(sys.executable, [sys.executable, "-m", f"t2t.{name}", *flags])


if __name__ == "__main__":
    main()
