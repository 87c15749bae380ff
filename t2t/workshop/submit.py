"""Submits steps to a queue such as SLURM's, as jobs that wait for each other."""

import logging
import re
import shlex
import subprocess
from collections.abc import Collection, Mapping, Sequence

from t2t.config.fields import ConfigError
from t2t.workshop.records import StepPlan
from t2t.workshop.steps import PROGRAMS

_log = logging.getLogger(__name__)


def submit(
    works: Mapping[str, StepPlan],
    jobs: Mapping[str, Sequence[str]],
    command: str,
    arguments: Mapping[str, Sequence[str]],
) -> None:
    """Submits the jobs with steps that are not finished.

    A job starts when the jobs of the steps that it needs have ended, and ended well if it needs all
    of them.

    Args:
        works: the plan of all steps.
        jobs: the steps of each job, by its name. Each follows the jobs of the steps that it needs.
        command: one such as "sbatch --gpus-per-node=1 launch/slurm.sh".
        arguments: of each job, the program and its flags.

    Raises:
        ConfigError: the command failed, or printed no job id.
    """
    try:
        program, *rest = shlex.split(command)
    except ValueError:
        raise ConfigError(
            f"--submit={command!r} is no command; write one such as 'sbatch launch/slurm.sh'"
        ) from None
    places = {step: name for name, steps in jobs.items() for step in steps}
    ids: dict[str, str] = {}  # by job
    for name, steps in jobs.items():
        if not any(works[step].is_waiting for step in steps):
            continue
        plans = [works[step].step for step in steps]
        needed = [places[each] for step in plans for each in (*step.needs, *step.after)]
        before = ":".join(ids[each] for each in dict.fromkeys(needed) if each in ids)
        needs_all = any(PROGRAMS[step.program].needs_all for step in plans)
        kind = "afterok" if needs_all else "afterany"
        flags = ["--parsable", f"--job-name={name}"]
        flags += [f"--dependency={kind}:{before}", "--kill-on-invalid-dep=yes"] if before else []
        line = [program, *flags, *rest, *arguments[name]]
        try:
            ids[name] = _submit_job(line)
        except ConfigError as error:
            there = ", ".join(f"{job} ({other})" for other, job in ids.items())
            remedy = f"; cancel the jobs that are submitted: {there}" if ids else ""
            raise ConfigError(f"--submit: {shlex.join(line)} {error}{remedy}") from None
        _log.info("%s: job %s", name, ids[name])
    if not ids:
        _log.info("all steps are finished; --report writes the report")


def list_arguments(arguments: Sequence[str], leave_out: Collection[str]) -> list[str]:
    """Returns the arguments of a command line without some flags and their values."""
    found, rest = [], iter(arguments)
    for argument in rest:
        name, has_value, _ = argument.lstrip("-").partition("=")
        if name not in leave_out:
            found.append(argument)
        elif not has_value:
            next(rest, None)
    return found


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
