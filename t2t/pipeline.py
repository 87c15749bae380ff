"""Runs the steps of a recipe: `python -m t2t.pipeline --recipe=configs/pipelines/distil.py ...`.

    python -m t2t.pipeline --recipe=configs/pipelines/distil.py --workdir=DIR

A recipe lists programs of t2t with their flags: train a teacher, translate by it, train a student,
export and evaluate both. Each step has a folder in DIR. The same command continues after any end,
and runs again what has changed, with what depends on it. The results are written to DIR/report.md.
"""

import dataclasses
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from t2t.config.requests import Flag
from t2t.runtime import command_line
from t2t.workshop.requests import WorkshopRequest


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineRequest(WorkshopRequest):
    """The steps of a recipe, and which of them are run."""

    recipe: str  # the file of steps, such as configs/pipelines/distil.py
    workdir: Path  # the folder of the steps and of the report
    # NAME=VALUE: a setting of the recipe, such as seeds=0,1,2; repeat the flag for several
    settings: Annotated[tuple[str, ...], Flag("set", is_repeated=True)] = ()
    # run only these steps; what they need has to be finished
    only: tuple[str, ...] = ()

    def list_problems(self) -> Iterator[str]:
        """Yields what does not go together."""
        yield from super().list_problems()
        if self.only and (self.plan or self.report or self.submit):
            yield "--only runs steps; leave it out of --plan, --report and --submit"


def main(request: PipelineRequest) -> int:
    """Runs the pipeline as requested; returns the exit status."""
    from t2t.api.run_workshop import carry_out
    from t2t.runtime.child_programs import assign_resources
    from t2t.workshop.pipeline_report import write_report
    from t2t.workshop.recipe_steps import open_workshop

    assign_resources(0, request.workers, os.environ)
    workshop = open_workshop(request.recipe, request.settings, request.workdir)
    own = [f"--recipe={request.recipe}", f"--workdir={request.workdir}"]
    own += [f"--set={each}" for each in request.settings]
    return carry_out(
        request,
        workshop,
        functools.partial(write_report, workshop),
        only=request.only,
        jobs={name: [name] for name in workshop.steps},
        arguments={name: ["t2t.pipeline", *own, f"--only={name}"] for name in workshop.steps},
    )


if __name__ == "__main__":
    command_line.run(main, alone="each step is a program of its own (docs/students.md)")
