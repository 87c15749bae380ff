"""Records of steps, and the plan that follows from them.

A step is finished if its record says so, its facts are still the same (`step_keys`), and its output
exists; an evaluation also has to be undamaged.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.config.fields import ConfigError
from t2t.config.measures import MEASURE_MODULES
from t2t.evaluation.requests import MeasureModels
from t2t.evaluation.saved_evaluations import EvaluationError, load_evaluation
from t2t.evaluation.verification import check_unchanged
from t2t.storage.atomic_files import list_files, write_file
from t2t.storage.paths import measure_size
from t2t.training.provenance import identify_code
from t2t.workshop.inputs import OF_SEARCH, find_flag_role
from t2t.workshop.step_keys import FactChange, find_facts, list_changes, make_key
from t2t.workshop.steps import PROGRAMS, Step, Workshop, find_program

RECORD = "record.json"


@dataclasses.dataclass
class Record:
    """The inputs, starts and cost of a step, as its record.json holds them."""

    key: str
    facts: dict[str, Any]  # what the key is a hash of
    command: list[str] = dataclasses.field(default_factory=list)
    # of each start: begun (date), seconds, core_seconds, gpus of its worker, status (None: it was
    # cut off)
    starts: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    finished: str = ""  # date
    failure: str = ""  # why the last start failed
    bytes: int = 0  # of the output
    # the code with which it began; not a part of the key, so a new version changes no key
    code: dict[str, Any] = dataclasses.field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Writes the record into the folder of the step's record."""
        write_file(folder / RECORD, json.dumps(vars(self), indent=1) + "\n")

    def sum_up(self, name: str) -> float:
        """The sum of "seconds" or "core_seconds" over all starts."""
        return math.fsum(start[name] for start in self.starts)

    def sum_device_seconds(self) -> float:
        """The sum of seconds times GPUs over all starts; 0 without GPUs."""
        return math.fsum(start["seconds"] * start.get("gpus", 0) for start in self.starts)


def read_record(folder: Path) -> Record | None:
    """Returns the record of a step; None if there is none.

    Raises:
        ConfigError: it is damaged.
    """
    path = folder / RECORD
    try:
        return Record(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        raise ConfigError(
            f"{path} is damaged; remove it, and what the step has written, and it runs again"
        ) from None


def count_output_bytes(output: Path) -> int:
    """The bytes of a file, or of all files in a folder; 0 if it does not exist."""
    return sum(map(measure_size, list_files(output) if output.is_dir() else [output]))


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """The plan for one step: skip, run or continue it, and why."""

    step: Step
    action: str  # "none" (it is finished), "skip" (nothing needs it), "run" or "continue"
    reason: str
    record: Record  # the record to keep from now on
    is_aside: bool = False  # the existing output was made with other settings, and is put aside

    @property
    def is_waiting(self) -> bool:
        """Returns whether the step is to run."""
        return self.action in ("run", "continue")


def plan_steps(workshop: Workshop) -> dict[str, StepPlan]:
    """Returns what is to be done for each step, and why.

    Raises:
        ConfigError: an input does not exist, or a record is damaged.
    """
    found: dict[str, StepPlan] = {}
    for step in workshop.steps.values():
        needed = [found[name] for name in step.needs]
        ready = not any(plan.is_waiting for plan in needed)
        plan = plan_step(workshop, step, find_keys(step, found), ready=ready)
        if plan.is_waiting:  # then those that it needs and that failed are tried again, too
            keys = {name: found[name].record.key for name in step.needs}
            plan = plan_step(workshop, step, keys, ready=ready)
        found[step.name] = plan
    for name in reversed(found):
        users = [plan for plan in found.values() if name in plan.step.needs]
        if (own := found[name]).is_waiting and users and all(map(_reads_nothing_more, users)):
            reason = f"{own.reason}; what reads it is finished"
            found[name] = dataclasses.replace(own, action="skip", reason=reason)
    return found


def find_keys(step: Step, works: Mapping[str, StepPlan]) -> dict[str, str]:
    """Returns the keys of the steps that a step needs.

    If it goes on without those that failed, as a choice among trials does, what it writes depends
    on which did; they have the key "failed".
    """
    needs_all = PROGRAMS[step.program].needs_all
    return {
        name: works[name].record.key if needs_all or not _has_no_output(name, works) else "failed"
        for name in step.needs
    }


def _has_no_output(name: str, works: Mapping[str, StepPlan]) -> bool:
    """Returns whether a step has no output since it, or one that it needs, has failed."""
    work = works[name]
    return bool(work.record.failure) or (
        not work.record.finished and any(_has_no_output(each, works) for each in work.step.needs)
    )


def _reads_nothing_more(plan: StepPlan) -> bool:
    """Returns whether a step will not read the steps that it needs.

    It is skipped, or has finished and can do without one that failed.
    """
    needs_all = PROGRAMS[plan.step.program].needs_all
    return plan.action == "skip" or (plan.action == "none" and not needs_all)


def plan_step(workshop: Workshop, step: Step, keys: Mapping[str, str], *, ready: bool) -> StepPlan:
    """Compares the record of a step with the one that it would get now.

    `keys` are the keys of the steps that it needs, and `ready` says whether these are finished.

    Raises:
        ConfigError: as `plan_steps`.
    """
    old = read_record(workshop.find_records(step.name))
    facts = find_facts(workshop, step, keys, old.facts if old else {}, ready=ready)
    new = Record(make_key(facts), facts, code=_find_code(step.program))
    if old is None:
        return StepPlan(step, "run", "not begun", new)
    if changes := [*list_changes(old.facts, facts)]:
        reason = "; ".join(change.text for change in changes)
        if _keeps_training(workshop, step, facts, changes):
            new.starts = old.starts
            return StepPlan(step, "continue", reason, new)
        return StepPlan(step, "run", reason, new, is_aside=True)
    new.key = old.key  # so the steps that used its output stay finished
    if not old.finished:
        resumes = PROGRAMS[step.program].resumes
        if resumes and step.program != "train" and old.code != new.code:  # training decides itself
            reason = "not finished, and t2t or a package has another version"
            return StepPlan(step, "run", reason, new, is_aside=True)
        reason = f"failed: {old.failure}" if old.failure else "not finished"
        return StepPlan(step, "continue" if resumes else "run", reason, old)
    if fault := _find_fault(step.program, workshop.find_output(step.name)):
        return StepPlan(step, "run", fault, dataclasses.replace(old, finished="", code=new.code))
    return StepPlan(step, "none", "finished", old)


def _keeps_training(
    workshop: Workshop, step: Step, facts: Mapping[str, Any], changes: Sequence[FactChange]
) -> bool:
    """Returns whether a training goes on in its folder, since its search alone has changed.

    Then it writes its config anew, and what needs it runs again. Where validation translates, the
    best checkpoint depends on the search. Where several steps train in one folder, an earlier one
    would find the checkpoints of a later one.
    """
    name = "training.translate_every"
    translates = facts["flags"].get(f"config.{name}", facts["recipe"].get(name)) != 0
    folders = [workshop.find_folder(each) for each in workshop.steps]
    return (
        step.program == "train"
        and all(find_flag_role(change.flag) in OF_SEARCH for change in changes)
        and not translates
        and folders.count(workshop.find_folder(step.name)) == 1
    )


def _find_fault(program: str, output: Path) -> str:
    """Says why the output of a finished step cannot be used; empty: it can."""
    if not output.exists():
        return f"{output} is missing"
    if PROGRAMS[program].evaluates:
        try:
            check_unchanged(load_evaluation(output))
        except EvaluationError as error:
            return str(error)
    return ""


@functools.cache
def _find_code(program: str) -> dict[str, Any]:
    measures = MEASURE_MODULES if issubclass(find_program(program), MeasureModels) else ()
    return identify_code((), [f"t2t.{program}", *measures])
