"""Prints a run's config, history, progress and scores: `python -m t2t.show RUN ...`.

It reads only the run directory and uses no device.
"""

from collections.abc import Sequence

from t2t.runtime import program
from t2t.storage.paths import make_run_path


def main(operands: Sequence[str]) -> None:
    """Prints a description of each run."""
    from t2t.api.run_summary import describe_run

    for number, operand in enumerate(operands):
        print("\n" * bool(number) + describe_run(make_run_path(operand)))


if __name__ == "__main__":
    program.run(main, operands="RUN", alone="it only reads files")
