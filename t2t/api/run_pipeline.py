"""`run_pipeline`: runs the steps of a recipe that are not finished, and reports on all."""

import logging
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from t2t.config.fields import ConfigError
from t2t.pipelines.checks import check
from t2t.pipelines.pipeline_report import write_report
from t2t.pipelines.records import plan_steps
from t2t.pipelines.runner import Runner
from t2t.pipelines.steps import PLACEHOLDER, Pipeline, read_steps
from t2t.runtime.text_tables import format_table
from t2t.storage.atomic_files import explain_write_errors
from t2t.storage.locks import lock
from t2t.storage.paths import check_new_run_path, make_local_path, make_run_path

_log = logging.getLogger(__name__)


def open_pipeline(recipe: str, settings: Sequence[str], workdir: Path) -> Pipeline:
    """Reads the steps of a recipe, and sorts them; raises `ConfigError` if they are wrong."""
    local = make_local_path(workdir, "the folder of a pipeline is a local or shared one")
    make_run_path(local)
    check_new_run_path(local)
    if PLACEHOLDER.search(str(local)):
        raise ConfigError(f"--workdir={workdir} has braces, which stand for steps; choose another")
    return Pipeline(read_steps(recipe, settings), local)


def describe_plan(pipeline: Pipeline) -> str:
    """Says for each step whether it would run, and why; starts nothing."""
    works = plan_steps(pipeline)
    check(pipeline, works)
    rows = [
        (name, work.step.program, work.action, work.reason, ", ".join(work.step.needs))
        for name, work in works.items()
    ]
    return format_table(rows, ("step", "program", "to do", "why", "needs"))


def run_pipeline(pipeline: Pipeline, only: Sequence[str], workers: int) -> Runner:
    """Runs the steps that are not finished, or those in `only`; the result names those that failed.

    Raises:
        ConfigError: a step would fail, another process is at work, a step in `only` needs others
            that are not finished, or the records cannot be written.
    """
    works = plan_steps(pipeline)
    if unknown := [name for name in only if name not in works]:
        raise ConfigError(f"--only={unknown[0]} is no step; the steps are {', '.join(works)}")
    for name in only:
        needed = [each for each in works[name].step.needs if each not in only]
        if missing := [each for each in needed if works[each].action != "none"]:
            raise ConfigError(f"--only={name} needs {missing[0]}, which is not finished; run it")
    check(pipeline, works, only)
    refusal = (
        f"another pipeline is at work in {pipeline.workdir}, or a program of one that was killed; "
        "wait until it ends"
    )
    with lock(pipeline.workdir / "lock", refusal, ConfigError, shared=bool(only)):
        runner = Runner(pipeline, plan_steps(pipeline), workers)
        runner.work([*dict.fromkeys(only or works)])
    return runner


def report(pipeline: Pipeline) -> str:
    """Writes report.md, report.json and the figure, of the steps finished so far; returns it."""
    works = plan_steps(pipeline)
    with explain_write_errors(ConfigError, pipeline.workdir):
        return write_report(pipeline, works)


def submit(pipeline: Pipeline, command: str, arguments: Sequence[str]) -> None:
    """Submits a job for each step that is not finished.

    `command` is one such as "sbatch --gpus-per-node=1 launch/slurm.sh". Each job runs one step, by
    `--only`, when the jobs of the steps that it needs have ended well.

    Raises:
        ConfigError: a step would fail, or the command did.
    """
    try:
        program, *rest = shlex.split(command)
    except ValueError:
        raise ConfigError(
            f"--submit={command!r} is no command; write one such as 'sbatch launch/slurm.sh'"
        ) from None
    works = plan_steps(pipeline)
    check(pipeline, works)
    jobs: dict[str, str] = {}
    for name, work in works.items():
        if work.action == "none":
            continue
        before = ":".join(jobs[each] for each in work.step.needs if each in jobs)
        flags = ["--parsable", f"--job-name={name}"]
        flags += [f"--dependency=afterok:{before}", "--kill-on-invalid-dep=yes"] if before else []
        line = [program, *flags, *rest, "t2t.pipeline", *arguments, f"--only={name}"]
        try:
            jobs[name] = _submit_job(line)
        except ConfigError as error:
            there = ", ".join(f"{job} ({step})" for step, job in jobs.items())
            remedy = f"; cancel the jobs that are submitted: {there}" if jobs else ""
            raise ConfigError(f"--submit: {shlex.join(line)} {error}{remedy}") from None
        _log.info("%s: job %s", name, jobs[name])


def _submit_job(line: Sequence[str]) -> str:
    """Runs a command that submits a job; returns its id, which `sbatch --parsable` prints last."""
    try:
        done = subprocess.run(
            line, stdout=subprocess.PIPE, check=True, encoding="utf-8", errors="replace"
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"failed ({getattr(error, 'strerror', 'see above')})") from None
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if matched := re.fullmatch(r"(\d+)(;.*)?", last.strip()):  # ID, or ID;CLUSTER
        return matched[1]
    raise ConfigError(
        f"printed {last!r} and no job id, so no other job can wait for this one, which may run; "
        "use a command that prints what sbatch --parsable does"
    )
