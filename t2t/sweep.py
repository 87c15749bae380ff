"""Trains, evaluates and compares variants of a recipe.

    python -m t2t.sweep --sweep=configs/sweeps/table3.py --config=configs/base.py --workdir=DIR

The --sweep file lists the variants as rows of the final table; each row overrides fields of the
recipe. --config.FIELD=VALUE applies to all rows. The same command again continues a stopped sweep
and keeps its finished runs. The results are written to DIR/report.md and DIR/report.html.
"""

import dataclasses
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from t2t.config.config_flag import read_chosen, read_config, read_given, read_name
from t2t.config.field_types import PositiveInt
from t2t.config.fields import ConfigError
from t2t.config.measure_rules import choose_measure, needs_model
from t2t.config.measures import MEASURE_FIELD, PREDICTION_MEASURES
from t2t.config.recipes import find_recipe
from t2t.config.requests import Measure, Plugins, RunPath
from t2t.config.rules import check_effect
from t2t.config.variants import choices
from t2t.evaluation.requests import OneDirection
from t2t.runtime import command_line
from t2t.storage.paths import check_new_run_path

if TYPE_CHECKING:
    from t2t.sweeps.sweep_rows import SweepRun

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRequest(Plugins, OneDirection):
    """The rows of a sweep, and how they are run and compared."""

    workdir: RunPath  # the run directory
    config: str
    sweep: str  # the file of rows, such as configs/sweeps/table3.py
    # run only these rows, by name or group, such as A,B; base is always included
    only: tuple[str, ...] = ()
    workers: PositiveInt = 1  # number of runs at the same time
    # run only the run with this number, from 0: for a task of a job array
    index: int | None = None
    report: bool = False  # only write the report, of the runs finished so far
    # the split on which rows are compared; keep test for the row that you choose
    split: str = "validation"
    # the score by which rows are compared: NAMES, one that a plugin of the recipe registers, or
    # with --report one that t2t.add_scores stored; default: bleu, or bleu_lowercase if the base has
    # tokenizer.lowercase. Of text alone perplexity, the default, or accuracy
    measure: Measure | None = None
    # the checkpoint to score, as --checkpoint of t2t.evaluate, if a row names none
    checkpoint: str = "last"


def main(request: SweepRequest) -> int:
    """Runs or reports the sweep as requested; returns the exit status."""
    from t2t.data.corpus_sources import check_paths, open_split
    from t2t.data.directions import choose_direction
    from t2t.data.preparation import fill_tokenizer
    from t2t.runtime.child_programs import assign_resources
    from t2t.sweeps.scheduler import Programs, sweep
    from t2t.sweeps.sweep_directory import EvaluationProtocol, check_protocol
    from t2t.sweeps.sweep_rows import BASE, make_runs, read_rows, select

    workdir = request.workdir
    begun = sorted(workdir.glob(f"{BASE}-seed*"))  # whose numbers the other rows share
    base = read_config(workdir=begun[0] if begun else None, trains_alone=request.index is None)
    check_new_run_path(workdir)
    tokenizer = fill_tokenizer(base).tokenizer
    measure = choose_measure(
        request.measure,
        lowercase=tokenizer.lowercase,
        kind=tokenizer.kind,
        text_alone=base.data.is_text_alone,
        language=base.data.tgt_language,
    )
    rows = read_rows(Path(find_recipe(request.sweep)).expanduser(), base)
    runs, left_out = make_runs(base, select(rows, request.only), workdir)
    for name, reason in left_out.items():
        _log.info("row %s is left out: %s", name, reason)
    if not (workdir / "sweep.json").exists():
        check_effect([run.config for run in runs], read_given())
    runs = [dataclasses.replace(run, config=fill_tokenizer(run.config)) for run in runs]
    if request.report:
        print(_report(workdir, runs, measure if request.measure else ""))
        return 0
    if request.index is not None and not 0 <= request.index < len(runs):
        raise ConfigError(f"--index={request.index}: the runs are numbered 0 to {len(runs) - 1}")
    # Errors that runs would hit are raised before the first run.
    check_paths(base.data)
    open_split(choose_direction(base.data, request.direction), request.split)
    assign_resources(0, request.workers, os.environ)
    protocol = EvaluationProtocol(request.split, request.checkpoint, measure, request.direction)
    check_protocol(protocol, runs)
    programs = Programs(read_name(), read_given() | read_chosen(base), protocol)
    try:
        good = sweep(workdir, programs, runs, request.workers, request.index)
    except KeyboardInterrupt:
        _log.info("stopped and saved; run the same command to continue the sweep")
        raise
    if request.index is None:
        print(_report(workdir, runs, measure))
    return 0 if good else 1


def _report(workdir: Path, runs: "Sequence[SweepRun]", measure: str) -> str:
    """Writes the report of the runs finished so far, by the sweep's own measure if none is given.

    Returns the report.
    """
    from t2t.storage.atomic_files import explain_write_errors
    from t2t.sweeps.sweep_directory import check_protocol, list_recorded, read_protocol
    from t2t.sweeps.sweep_report import write_report
    from t2t.training.run_directory import RunError

    protocol = read_protocol(workdir)
    protocol = dataclasses.replace(protocol, measure=measure or protocol.measure)
    known = *choices(MEASURE_FIELD), *PREDICTION_MEASURES
    is_stored = protocol.measure not in known or needs_model(protocol.measure)
    if not is_stored:  # with the evaluations
        check_protocol(protocol, runs)
    with explain_write_errors(RunError, workdir):
        return write_report(workdir, list_recorded(workdir, runs), protocol.measure)


if __name__ == "__main__":
    command_line.run(
        main, alone="each run is a job of its own, --index of a job array (docs/sweeps.md)"
    )
