"""`carry_out`: plans, runs, submits or reports the steps of a pipeline or sweep."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from t2t.config.fields import Config, ConfigError
from t2t.config.fitted_config import FittedConfig
from t2t.runtime.command_line import INTERRUPTED
from t2t.runtime.text_tables import format_table
from t2t.storage.atomic_files import explain_write_errors
from t2t.storage.locks import lock
from t2t.training.total_flops import count_flops
from t2t.workshop.checks import check
from t2t.workshop.records import StepPlan, plan_steps
from t2t.workshop.requests import WorkshopRequest
from t2t.workshop.runner import Runner
from t2t.workshop.steps import PROGRAMS, STEPS, Workshop
from t2t.workshop.submit import submit

_log = logging.getLogger(__name__)


def carry_out(
    request: WorkshopRequest,
    workshop: Workshop,
    write_report: Callable[[Mapping[str, StepPlan]], str],
    *,
    only: Collection[str] = (),
    jobs: Mapping[str, Sequence[str]],
    arguments: Mapping[str, Sequence[str]],
) -> int:
    """Does what a request asks of steps, and returns the exit status.

    Args:
        request: whether to plan, submit, run or report the steps.
        workshop: the steps.
        write_report: writes the report of the steps that are finished, and returns it.
        only: the steps to be run; empty: all, and then the report is written.
        jobs: the steps of each job that `request.submit` submits.
        arguments: the program and flags of each job.

    Raises:
        ConfigError: a step would fail, another process is at work, a step in `only` needs others
            that are not finished, there is nothing to report, or files cannot be written.
    """
    if request.plan:
        print(describe_plan(workshop))
        return 0
    if request.submit:
        works = plan_steps(workshop)
        check(workshop, works)
        submit(works, jobs, request.submit, arguments)
        return 0
    status, failures = 0, dict[str, str]()
    if not request.report:
        try:
            done = run(workshop, only, request.workers)
        except KeyboardInterrupt:
            _log.info("stopped and saved; the same command continues")
            raise
        failures = {} if done.was_stopped else done.failures
        status = INTERRUPTED if done.was_stopped else int(bool(failures))
    elif not (workshop.workdir / STEPS).exists():
        raise ConfigError(
            f"--workdir={workshop.workdir} holds no steps yet; leave out --report to begin"
        )
    if not only:
        with explain_write_errors(ConfigError, workshop.workdir):
            print(write_report(plan_steps(workshop)), flush=True)
        for name, reason in failures.items():  # again, below the report
            _log.info("step %s failed: %s", name, reason)
    return status


def describe_plan(workshop: Workshop) -> str:
    """Says for each step whether it would run, and why; starts nothing.

    Raises:
        ConfigError: a step would fail.
    """
    works = plan_steps(workshop)
    check(workshop, works)
    rows = [
        (name, work.step.program, work.action, work.reason, ", ".join(work.step.needs))
        for name, work in works.items()
    ]
    return format_table(rows, ("step", "program", "to do", "why", "needs"))


def run(workshop: Workshop, only: Collection[str], workers: int) -> Runner:
    """Runs the steps that are not finished, or those in `only`; the result names those that failed.

    Raises:
        ConfigError: as `carry_out`.
    """
    works = plan_steps(workshop)
    if unknown := [name for name in only if name not in works]:
        raise ConfigError(f"--only={unknown[0]} is no step; the steps are {', '.join(works)}")
    for name in only:
        step = works[name].step
        needed = [each for each in (*step.needs, *step.after) if each not in only]
        missing = [each for each in needed if works[each].is_waiting]
        if missing and PROGRAMS[step.program].needs_all:
            raise ConfigError(f"{name} needs the step {missing[0]}, which is not finished; run it")
    configs = check(workshop, works, only)
    names = [name for name in works if not only or name in only]
    if workers > 1:  # the longest training first; what is short, such as an evaluation, at once
        lengths = measure_chains(workshop, configs)
        names.sort(key=lambda name: (works[name].step.program == "train", -lengths[name]))
    refusal = (
        f"another process runs the steps of {workshop.workdir}, or a program of one that was "
        "killed; wait until it ends, or choose another --workdir"
    )
    with lock(workshop.workdir / "lock", refusal, ConfigError, shared=bool(only)):
        runner = Runner(workshop, plan_steps(workshop), workers)
        runner.work(names)
    return runner


def measure_chains(workshop: Workshop, configs: Mapping[str, Config]) -> dict[str, int]:
    """Returns for each step the training FLOPs of the longest chain of steps that begins with it.

    Several workers begin with the longest, to balance their load at the end. `configs` are those of
    trainings, as far as they are known.
    """
    found: dict[str, int] = {}
    for name in reversed(workshop.steps):
        rest = max((found[n] for n in found if name in workshop.steps[n].needs), default=0)
        config = configs.get(name)
        if workshop.steps[name].program == "train" and not isinstance(config, FittedConfig | None):
            rest += count_flops(config, config.tokenizer.vocab_size)
        found[name] = rest
    return found
