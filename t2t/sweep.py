"""Trains and compares the rows of a sweep.

    python -m t2t.sweep --sweep=configs/sweeps/table3.py --config=configs/base.py --workdir=DIR

Each row is an override of the recipe, and --config.FIELD=VALUE one of all rows. The same command
again continues; what is finished stays. It ends in DIR/report.md and DIR/report.html.
"""

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from t2t.config.fields import ConfigError
from t2t.config.flags import define_config, read_config, read_recipe
from t2t.config.recipes import find_recipe
from t2t.data.corpus_sources import open_split
from t2t.evaluation.scores import MEASURES
from t2t.runtime import program
from t2t.sweeps.scheduler import Programs, Scheduler, share_machine
from t2t.sweeps.sweep_directory import (
    EvaluationProtocol,
    find_failure,
    list_begun,
    lock_sweep,
    open_sweep,
)
from t2t.sweeps.sweep_progress import Progress
from t2t.sweeps.sweep_report import write_report
from t2t.sweeps.sweep_rows import Run, make_runs, read_rows, select

_log = logging.getLogger(__name__)


def sweep(programs: Programs, runs: Sequence[Run], workers: int, index: int | None) -> bool:
    """Brings all runs, or the one at `index`, to their evaluation; whether none of them failed."""
    workdir = programs.workdir
    chosen = runs if index is None else [runs[index]]
    with lock_sweep(workdir, shared=index is not None) as lock:
        open_sweep(workdir, runs, programs.protocol)
        with contextlib.closing(Progress(workdir, chosen, programs.protocol.measure)) as progress:
            Scheduler(programs, workers, lock, progress).work(chosen)
    return not any(find_failure(workdir, run).exists() for run in chosen)


def main() -> int:
    """Does what the flags say; the exit status."""
    values = flags.FLAGS
    base, workdir = read_config(), program.read_workdir()
    rows = read_rows(Path(find_recipe(values.sweep)).expanduser(), base)
    runs, idle = make_runs(base, select(rows, values.only))
    if idle:
        _log.info("left out, for the base is like them: %s", ", ".join(idle))
    if values.report:
        print(write_report(workdir, list_begun(workdir, runs), values.measure))
        return 0
    if values.index is not None and not 0 <= values.index < len(runs):
        raise ConfigError(f"--index={values.index}: there are the runs 0 to {len(runs) - 1}")
    # What would stop every run is found out before the first.
    open_split(base.data, values.split)
    share_machine(0, values.workers, os.environ)
    protocol = EvaluationProtocol(values.split, values.checkpoint, values.measure)
    programs = Programs(workdir, *read_recipe(), protocol)
    good = sweep(programs, runs, values.workers, values.index)
    if values.index is None:
        print(write_report(workdir, list_begun(workdir, runs), values.measure))
    return 0 if good else 1


if __name__ == "__main__":
    define_config()
    program.define_workdir()
    flags.DEFINE_string("sweep", None, "The rows, as configs/sweeps/table3.py.", required=True)
    flags.DEFINE_list("only", [], "Some rows, by name or group, as A,B; base is always there.")
    flags.DEFINE_integer("workers", 1, "So many runs side by side.", lower_bound=1)
    flags.DEFINE_integer("index", None, "One run alone, by its number: a task of an array.")
    flags.DEFINE_bool("report", False, "The report alone, of what is there.")
    flags.DEFINE_string(
        "split", "validation", "The split on which rows are compared; keep test for what is chosen."
    )
    flags.DEFINE_enum("measure", "bleu", MEASURES, "The score by which rows are judged.")
    flags.DEFINE_string("checkpoint", "last", "Which is scored, as t2t.evaluate takes it.")
    program.run(main)
