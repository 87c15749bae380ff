"""Asks the trainings of systems that are clearly worse than the first one to stop.

    python -m t2t.stop_worse --output=look --systems=base-0/evaluations/look.json \
        --systems=small-0/evaluations/look.json,small-1/evaluations/look.json

The others are compared with the first --systems by what all have been scored before the end of
training (t2t.sweep --gates does so). It writes OUTPUT/look.json.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

from t2t.config.field_types import WRITTEN
from t2t.config.requests import Flag, Measure, Plugins
from t2t.runtime import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class StopWorseRequest(Plugins):
    """Systems with their seeds, and how they are judged."""

    # the evaluations of a system's seeds, files in their runs, joined by commas; repeat the flag
    # for each system. One without an evaluation has failed
    systems: Annotated[tuple[str, ...], Flag(is_repeated=True)]
    measure: Measure | None = None  # default: bleu, or the one that fits the text
    tuned: bool = False  # judge by the half of the sentences on which no trial was chosen
    output: Annotated[Path, WRITTEN]  # a folder


def main(request: StopWorseRequest) -> None:
    """Asks trainings to stop, and prints which and why."""
    from t2t.api.stop_worse import stop
    from t2t.config.variants import import_plugins

    import_plugins(request.plugins)  # that register measures
    print(stop(request.systems, request.measure, request.output, tuned=request.tuned))


if __name__ == "__main__":
    command_line.run(main)
