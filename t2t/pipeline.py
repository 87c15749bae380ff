"""Runs the steps of a recipe: `python -m t2t.pipeline --recipe=configs/pipelines/distil.py ...`.

    python -m t2t.pipeline --recipe=configs/pipelines/distil.py --workdir=DIR

A recipe lists programs of t2t with their flags: train a teacher, translate by it, train a student,
export and evaluate both. Each step has a folder in DIR. The same command continues after any end,
and runs again what has changed, with what depends on it. The results are written to DIR/report.md.
"""

import dataclasses
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from t2t.config.field_types import PositiveInt
from t2t.config.requests import Flag, Request
from t2t.runtime import command_line

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineRequest(Request):
    """The steps of a recipe, and which of them are run."""

    recipe: str  # the file of steps, such as configs/pipelines/distil.py
    workdir: Path  # the folder of the steps and of the report
    # NAME=VALUE: a setting of the recipe, such as seeds=0,1,2; repeat the flag for several
    settings: Annotated[tuple[str, ...], Flag("set", is_repeated=True)] = ()
    plan: bool = False  # only print what would run, and why
    report: bool = False  # only write the report, of the steps finished so far
    # run only these steps; what they need has to be finished
    only: tuple[str, ...] = ()
    workers: PositiveInt = 1  # number of steps at the same time
    # a command of SLURM, such as 'sbatch --gpus-per-node=1 launch/slurm.sh': submit a job for each
    # step instead of running it here
    submit: str = ""

    def list_problems(self) -> Iterator[str]:
        """Yields what does not go together."""
        yield from super().list_problems()
        modes = ("plan", "report", "only", "submit")
        if len(given := [name for name in modes if getattr(self, name)]) > 1:
            yield f"{' and '.join(f'--{name}' for name in given)}: give one of them"


def main(request: PipelineRequest) -> int:
    """Runs the pipeline as requested; returns the exit status."""
    from t2t.api import run_pipeline as api
    from t2t.runtime.child_programs import assign_resources

    assign_resources(0, request.workers, os.environ)
    pipeline = api.open_pipeline(request.recipe, request.settings, request.workdir)
    if request.plan:
        print(api.describe_plan(pipeline))
        return 0
    if request.submit:
        own = [f"--recipe={request.recipe}", f"--workdir={request.workdir}"]
        api.submit(pipeline, request.submit, [*own, *(f"--set={x}" for x in request.settings)])
        return 0
    status, failures = 0, dict[str, str]()
    if not request.report:
        try:
            done = api.run_pipeline(pipeline, request.only, request.workers)
        except KeyboardInterrupt:
            _log.info("stopped and saved; the same command continues")
            raise
        failures = {} if done.was_stopped else done.failures
        status = command_line.INTERRUPTED if done.was_stopped else int(bool(failures))
    if not request.only:
        print(api.report(pipeline), flush=True)
        for name, reason in failures.items():  # again, below the report
            _log.info("step %s failed: %s", name, reason)
    return status


if __name__ == "__main__":
    command_line.run(main, alone="each step is a program of its own (docs/students.md)")
