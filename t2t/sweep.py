"""Trains, evaluates and compares variants of a recipe.

    python -m t2t.sweep --sweep=configs/sweeps/table3.py --config=configs/base.py --workdir=DIR

The --sweep file lists the variants as rows of the final table; each row overrides fields of the
recipe. --config.FIELD=VALUE applies to all rows. The same command again continues a stopped sweep,
keeps its finished runs, and runs those again that have changed. The results are written to
DIR/report.md and DIR/report.html.
"""

import dataclasses
import functools
import logging
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from t2t.config.config_flag import read_chosen, read_config, read_given, read_name
from t2t.config.field_types import PositiveInt, Probability, Rule
from t2t.config.fields import Config, ConfigError
from t2t.config.measure_rules import choose_measure, needs_model
from t2t.config.measures import MEASURE_FIELD, PREDICTION_MEASURES
from t2t.config.recipes import find_recipe
from t2t.config.requests import Flag, Measure, Plugins, RunPath
from t2t.config.rules import check_effect
from t2t.config.variants import choices
from t2t.evaluation.requests import OneTask
from t2t.runtime import command_line
from t2t.workshop.requests import WorkshopRequest

if TYPE_CHECKING:
    from t2t.sweeps.sweep_rows import SweepRun
    from t2t.sweeps.tuning import Trial

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRequest(Plugins, OneTask, WorkshopRequest):
    """The rows of a sweep, and how they are run and compared."""

    workdir: RunPath  # the run directory
    config: str
    sweep: str  # the file of rows, such as configs/sweeps/table3.py
    # run only these rows, by name or group, such as A,B; base is always included
    only: tuple[str, ...] = ()
    # run each row with this many seeds, from the base's seed on; default: the seeds of the row
    seeds: PositiveInt | None = None
    # run only the job with this number, from 0: for a task of a job array. Each run is a job
    index: int | None = None
    # the split on which rows are compared; keep test for the row that you choose
    split: str = "validation"
    # the score by which rows are compared: NAMES, one that a plugin of the recipe registers, or
    # with --report one that t2t.add_scores stored; default: bleu, or bleu_lowercase if the base has
    # tokenizer.lowercase. Of text alone perplexity, the default, or accuracy
    measure: Measure | None = None
    # tasks by which rows are judged, too, each in a section of the report; all: every other one.
    # Their measure is --measure, or that of text alone
    other_tasks: tuple[str, ...] = ()
    # the checkpoint to score, as --checkpoint of t2t.evaluate, if a row names none
    checkpoint: str = "last"
    # FIELD=VALUES: train each row first with each of these values of a field, and its seeds with
    # the best, such as training.learning_rate=x0.5,x1,x2 (x: times the row's own value). Trials are
    # chosen by one half of the split, and rows compared by the other
    tune: tuple[str, ...] = ()
    # train trials for this share of the steps
    tune_steps: Annotated[
        float, Flag(needs="tune"), Rule("lie in (0, 1]", lambda value: 0 < value <= 1)
    ] = 1.0
    # choose trials by the log-probability of the references, which tells apart what a measure
    # cannot, such as models too small to translate; default: by --measure
    tune_by_loss: bool = False
    # after this share of the steps, such as 0.33, stop rows that are clearly worse than base
    gates: Probability = 0.0

    def list_problems(self) -> Iterator[str]:
        """Yields what does not go together."""
        yield from super().list_problems()
        if self.gates and self.other_tasks:
            yield "--gates stops rows by one task alone; leave out --other_tasks, or --gates"
        if self.index is not None and (self.plan or self.report or self.submit):
            yield "--index runs one run; leave it out of --plan, --report and --submit"


def main(request: SweepRequest) -> int:
    """Runs, plans, submits or reports the sweep as requested; returns the exit status."""
    from t2t.api.run_workshop import carry_out
    from t2t.runtime.child_programs import assign_resources
    from t2t.sweeps.sweep_report import write_report
    from t2t.sweeps.sweep_rows import BASE
    from t2t.sweeps.sweep_steps import (
        EvaluationProtocol,
        SweepPlan,
        check_gates,
        check_scoring,
        read_measure,
    )
    from t2t.workshop.steps import Workshop
    from t2t.workshop.submit import list_arguments

    workdir = request.workdir
    begun = sorted(workdir.glob(f"{BASE}-seed*"))  # whose numbers the other rows share
    base = read_config(workdir=begun[0] if begun else None, trains_alone=request.index is None)
    runs = _make_runs(request, base)
    if not begun:
        check_effect([run.config for run in runs], read_given())
    measure = _choose_measure(base, request.task, request.measure)
    begun_with = (
        _choose_measure(base, request.task, read_measure(workdir)) if request.report else measure
    )
    others = _list_others(request, base)
    protocol = EvaluationProtocol(
        request.split, request.checkpoint, begun_with, request.task, others
    )
    known = *choices(MEASURE_FIELD), *PREDICTION_MEASURES
    if not request.report or (measure in known and not needs_model(measure)):
        # Others are stored with the evaluations.
        for task, name in {request.task: measure, **others}.items():
            check_scoring(dataclasses.replace(protocol, task=task, measure=name), runs)
    if request.gates:
        check_gates(protocol, runs)
    overrides = read_given() | read_chosen(base)
    trials = _list_trials(request, base, runs)
    if not request.report:  # errors that runs would hit are raised before the first run
        _check_text(request, base, others, is_halved=bool(trials))
        assign_resources(0, request.workers, os.environ)
    if request.tune_by_loss and not trials:
        raise ConfigError("--tune_by_loss: no row has trials; give --tune, or leave it out")
    plan = SweepPlan(read_name(), overrides, protocol, trials, request.gates, request.tune_by_loss)
    planned = plan.list_jobs(runs)
    jobs = {name: [each.name for each in job.steps] for name, job in planned.items()}
    if request.index is not None and not 0 <= request.index < len(jobs):
        raise ConfigError(f"--index={request.index}: the jobs are numbered 0 to {len(jobs) - 1}")
    workshop = Workshop([each for job in planned.values() for each in job.steps], workdir)
    again = list_arguments(sys.argv[1:], leave_out=("submit", "workers"))
    return carry_out(
        request,
        workshop,
        functools.partial(write_report, workshop, runs, measure, plan),
        only=[] if request.index is None else [*jobs.values()][request.index],
        jobs=jobs,
        arguments={
            name: ["t2t.sweep", *again, f"--index={number}"] for number, name in enumerate(jobs)
        },
    )


def _make_runs(request: SweepRequest, base: Config) -> "list[SweepRun]":
    """Returns the runs of the rows that are asked for."""
    from t2t.data.preparation import fill_tokenizer
    from t2t.sweeps.sweep_rows import make_runs, read_rows, select

    rows = read_rows(Path(find_recipe(request.sweep)).expanduser(), base)
    if request.seeds:
        rows = [dataclasses.replace(row, seeds=range(request.seeds)) for row in rows]
    tuned = {row.name for row in rows if row.tune or request.tune}
    rows = [row if row.tuned_by in tuned else dataclasses.replace(row, tuned_by="") for row in rows]
    runs, left_out = make_runs(base, select(rows, request.only), request.workdir)
    for name, reason in left_out.items():
        _log.info("row %s is left out: %s", name, reason)
    return [dataclasses.replace(run, config=fill_tokenizer(run.config)) for run in runs]


def _list_trials(
    request: SweepRequest, base: Config, runs: "Sequence[SweepRun]"
) -> "dict[str, list[Trial]]":
    """Returns the trials of each row that is tuned, by its name."""
    from t2t.sweeps.tuning import check_tuned_by, list_trials, read_tuning

    tuning = read_tuning(request.tune)
    found = {}
    for run in {run.row.name: run for run in reversed(runs)}.values():
        own_tuning = run.row.tune or ({} if run.row.tuned_by else tuning)
        row = dataclasses.replace(run.row, tune=own_tuning)
        own = dataclasses.replace(run.config, seed=base.seed)
        if trials := list_trials(base, row, own, request.workdir, request.tune_steps):
            found[row.name] = trials
    check_tuned_by(runs, found)
    return found


def _choose_measure(base: Config, task: str, given: str | None) -> str:
    """Returns the measure by which rows are compared: the given one, or that of the text."""
    from t2t.data.directions import choose_task
    from t2t.data.preparation import fill_tokenizer

    tokenizer, data = fill_tokenizer(base).tokenizer, choose_task(base.data, task)
    return choose_measure(
        given,
        lowercase=tokenizer.lowercase,
        kind=tokenizer.kind,
        text_alone=data.is_text_alone,
        language=data.tgt_language,
    )


def _list_others(request: SweepRequest, base: Config) -> dict[str, str]:
    """Returns the other tasks by which rows are judged, and the measure of each.

    Raises:
        ConfigError: a task is not one of the base's, or is named twice.
    """
    from t2t.data.directions import choose_task, list_tasks

    if not request.other_tasks:
        return {}
    main = choose_task(base.data, request.task)
    names = [each.task for each in list_tasks(base.data) if each.task != main.task]
    if request.other_tasks != ("all",):
        names = [*request.other_tasks]
    if main.task in names or len({*names}) < len(names):
        raise ConfigError(
            f"--other_tasks={','.join(names)}: name each task once, and not {main.task}, by which "
            "rows are ranked"
        )
    if not names:
        raise ConfigError("--other_tasks=all: the base has one task; leave it out")
    found = {}
    for name in names:
        task = choose_task(base.data, name, "--other_tasks")
        is_alike = task.is_text_alone == main.is_text_alone
        found[name] = _choose_measure(base, name, request.measure if is_alike else None)
    return found


def _check_text(
    request: SweepRequest, base: Config, others: Collection[str], *, is_halved: bool
) -> None:
    """Raises `ConfigError` or `DataError` if the text that all runs read is not there.

    With trials the split must be large enough for two halves, that of each task.
    """
    from t2t.data.corpus_sources import check_paths, open_split
    from t2t.data.directions import choose_task
    from t2t.evaluation.measure import TestSet
    from t2t.evaluation.trials import halve

    check_paths(base.data)
    for task in (request.task, *others):
        corpus = open_split(choose_task(base.data, task), request.split)
        if is_halved:
            texts = [pair[corpus.sides[0]] for pair in corpus]
            halve(TestSet(texts, [texts], name=request.split))


if __name__ == "__main__":
    command_line.run(
        main, alone="each run is a job of its own, --index of a job array (docs/sweeps.md)"
    )
