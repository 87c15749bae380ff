"""The cost of steps, from their records, and how much of it was start.

A start is what a program does before its first batch: it imports packages, reads the data and the
model, and compiles.
"""

import contextlib
import itertools
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from t2t.evaluation.saved_evaluations import EvaluationError, load_evaluation
from t2t.evaluation.verdict_table import SystemCost
from t2t.training.provenance import read_ledger
from t2t.training.run_directory import read_curve
from t2t.training.stop_request import STOPPED_EARLY
from t2t.workshop.records import StepPlan
from t2t.workshop.steps import Workshop

MEASURED = ("train", "evaluate")  # programs of which the start is measured
_ENDED_WELL = (0, STOPPED_EARLY)


class _Begun(NamedTuple):
    """When a program had read all that it needs, and the seconds for which it compiled then."""

    date: datetime
    compile_seconds: float | None  # None: unknown


def sum_costs(workshop: Workshop, works: Iterable[StepPlan]) -> SystemCost:
    """Sums the cost of steps over all their starts.

    The share of starts is that of trainings and evaluations; it is None if it is unknown of one.
    """
    works = [*works]
    measured = [work for work in works if work.step.program in MEASURED and work.record.starts]
    starts = [measure_starts(workshop, work) for work in measured]
    seconds = sum(work.record.sum_up("seconds") for work in measured)
    known = [start for start in starts if start is not None]
    return SystemCost(
        minutes=sum(work.record.sum_up("seconds") for work in works) / 60,
        core_minutes=sum(work.record.sum_up("core_seconds") for work in works) / 60,
        device_minutes=sum(work.record.sum_device_seconds() for work in works) / 60,
        start=sum(known) / seconds if seconds and len(known) == len(starts) else None,
    )


def measure_starts(workshop: Workshop, work: StepPlan) -> float | None:
    """Returns the seconds that all starts of a training or an evaluation took before first batches.

    Of a start that was cut off, what is known of it counts. None: it is unknown of one that ended
    well.
    """
    starts, total = work.record.starts, 0.0
    is_training = work.step.program == "train"
    moments = [*(_list_trainings if is_training else _list_evaluations)(workshop, work)]
    for start, following in itertools.zip_longest(starts, starts[1:]):
        date, end = _read_date(start), _read_date(following) if following else datetime.max
        own = next((each for each in moments if date <= each.date < end), None)
        ended_well = start["status"] in _ENDED_WELL
        if ended_well and (own is None or own.compile_seconds is None):
            return None
        if own:
            before = (own.date - date).total_seconds() + (own.compile_seconds or 0.0)
            total += min(before, start["seconds"])  # which a kill cuts off up to ten seconds early
        elif is_training:  # it ended before it wrote to its ledger, and so before its first batch
            total += start["seconds"]
    return total


def _list_trainings(workshop: Workshop, work: StepPlan) -> Iterable[_Begun]:
    run = workshop.find_output(work.step.name)
    ledger = read_ledger(run)
    curve = read_curve(run, "train/compile_seconds")
    for entry, following in itertools.zip_longest(ledger, ledger[1:]):
        last = following["step"] if following else float("inf")
        own = [seconds for step, seconds in curve if entry["step"] < step <= last]
        yield _Begun(_read_date(entry, "date"), own[0] if own else None)


def _list_evaluations(workshop: Workshop, work: StepPlan) -> Iterable[_Begun]:
    with contextlib.suppress(EvaluationError):  # there is none, or the report says what is wrong
        result = load_evaluation(workshop.find_output(work.step.name)).result
        if "begun" in result:
            yield _Begun(_read_date(result, "begun"), result["compile_seconds"])


def _read_date(content: Mapping[str, Any], name: str = "begun") -> datetime:
    return datetime.fromisoformat(content[name]).astimezone(UTC).replace(tzinfo=None)
