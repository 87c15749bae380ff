"""Runs steps, several at the same time if there are workers for them."""

import contextlib
import itertools
import logging
import os
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from t2t.config.fields import ConfigError
from t2t.runtime.child_programs import assign_resources, find_gpus, find_reason
from t2t.runtime.command_line import INTERRUPTED
from t2t.runtime.warm_programs import Running, WarmPrograms, stop_programs
from t2t.storage.atomic_files import (
    explain_write_errors,
    make_folder,
    remove_folder,
    write_file,
)
from t2t.storage.growing_files import GrowingFiles
from t2t.storage.locks import lock
from t2t.training.provenance import now
from t2t.training.stop_request import STOPPED_EARLY
from t2t.workshop.checks import check_aside
from t2t.workshop.progress import StepProgress
from t2t.workshop.records import Record, StepPlan, count_output_bytes, find_keys, plan_step
from t2t.workshop.steps import OLD, PROGRAMS, STEPS, Workshop

_log = logging.getLogger(__name__)

LOG = "output.log"
_POLL_SECONDS = 0.2
_SAVE_SECONDS = 10.0  # between two writes of the cost of a running program
_CRASHES = {
    -signal.SIGSEGV,
    -signal.SIGBUS,
    -signal.SIGABRT,
}  # of native code; they often do not come again


class Runner:
    """Runs a number of workers, each with its share of the cores and GPUs."""

    def __init__(self, workshop: Workshop, works: Mapping[str, StepPlan], workers: int):
        self._workshop, self._works, self._workers = workshop, dict(works), workers
        self._progress = StepProgress(workshop, workers)
        self._programs = WarmPrograms()
        self._running: list[Running] = []
        self._finished = {name for name, work in works.items() if not work.is_waiting}
        self._others: set[str] = set()  # steps that are not finished, and not to be run now
        self.failures: dict[str, str] = {}  # why steps failed, by name
        self.was_stopped = False  # a signal ended a program, and not this one

    def work(self, names: Sequence[str]) -> None:
        """Runs the steps of these names, each when those that it needs are finished.

        A step that failed keeps those that need it from starting, and no others. On
        KeyboardInterrupt all programs are told to save and stop; it is raised again when they have
        ended and their records are written. Several workers take steps in the order of `names`, as
        far as these are ready.

        Raises:
            ConfigError: another process is at work on a step, or a record cannot be written. Then
                all programs are told to stop, too.
        """
        place, remedy = self._workshop.workdir, "the same command continues"
        waiting = [name for name in names if name not in self._finished]
        self._others = self._workshop.steps.keys() - {*waiting} - self._finished
        jobs: dict[int, Iterator[None]] = {}  # by worker
        with contextlib.ExitStack() as ending:
            ending.enter_context(explain_write_errors(ConfigError, place, remedy))
            ending.enter_context(self._progress.show(len(waiting)))
            ending.enter_context(self._programs)
            ending.callback(lambda: self._stop(jobs.values()))
            while True:
                for worker in range(self._workers):
                    ready = (name for name in waiting if self._is_ready(name))
                    job = jobs.pop(worker, None)
                    if not job and (name := next(ready, None)):
                        waiting.remove(name)
                        job = self._run(name, worker)
                    if job and next(job, "ended") != "ended":
                        jobs[worker] = job
                if not jobs and not any(map(self._is_ready, waiting)):
                    return
                time.sleep(_POLL_SECONDS)

    def _stop(self, jobs: Iterable[Iterator[None]]) -> None:
        """Stops all programs, and lets their jobs write the records."""
        try:
            stop_programs(self._running)
        finally:
            for _ in itertools.chain(*jobs):
                time.sleep(_POLL_SECONDS)

    def _is_ready(self, name: str) -> bool:
        step = self._workshop.steps[name]
        missing = {*step.needs, *step.after} - self._finished
        return not missing or (
            not PROGRAMS[step.program].needs_all and all(map(self._cannot_finish, missing))
        )

    def _cannot_finish(self, name: str) -> bool:
        """Returns whether a step cannot be finished now: it, or one that it needs, has failed."""
        step = self._workshop.steps[name]
        return (
            name in self.failures
            or name in self._others
            or (
                PROGRAMS[step.program].needs_all
                and any(
                    self._cannot_finish(each) for each in step.needs if each not in self._finished
                )
            )
        )

    def _run(self, name: str, worker: int) -> Iterator[None]:
        """Yields while the program of a step works; another process may have finished the step.

        A program that crashes is started a second time.
        """
        workdir = self._workshop.workdir
        refusal = (
            f"another process is at work on step {name} in {workdir}, or its program, which "
            "outlived a killed one; wait until it ends"
        )
        with lock(workdir / STEPS / f"{name}.lock", refusal, ConfigError) as descriptor:
            try:
                work = self._plan(name)
                if work.is_aside:
                    put_aside(self._workshop, name)
            except ConfigError as error:  # an input is gone
                self.failures[name] = str(error)
                self._progress.end(worker, f"{name} failed: {error}")
                return
            if work.is_waiting:
                yield from self._run_program(work, worker, descriptor)
                if work.record.starts[-1]["status"] in _CRASHES:
                    del self.failures[name]
                    yield from self._run_program(self._plan(name), worker, descriptor)
        if name not in self.failures:
            self._finished.add(name)

    def _plan(self, name: str) -> StepPlan:
        """Plans a step anew, whose recipe may now read what the steps before have written."""
        step = self._workshop.steps[name]
        keys = find_keys(step, self._works)
        work, before = plan_step(self._workshop, step, keys, ready=True), self._works[name]
        if work.is_waiting or len(work.record.starts) > len(before.record.starts):
            self._works[name] = work
        # Otherwise its output was missing, and is that of the step whose training it goes on with.
        return self._works[name]

    def _run_program(self, work: StepPlan, worker: int, descriptor: int) -> Iterator[None]:
        """Does the same; the program inherits the `descriptor` of the step's lock."""
        step, record, program = work.step, work.record, PROGRAMS[work.step.program]
        folder = self._workshop.find_records(step.name)
        output = self._workshop.find_output(step.name)
        if record.starts and not program.resumes:  # which might not replace all that it has written
            remove_folder(self._workshop.find_folder(step.name))
            if step.output:
                output.unlink(missing_ok=True)
        make_folder(folder)
        record.command = self._workshop.make_command(step)
        record.failure = ""
        _, environment = assign_resources(worker, self._workers, os.environ)
        start = {"begun": now(), "gpus": len(find_gpus(environment)), "status": None}
        record.starts.append(start | {"seconds": 0.0, "core_seconds": 0.0})
        record.write(folder)
        logs = GrowingFiles(folder, LOG)
        self._progress.begin(worker, step, f"{work.reason}, log: {folder / LOG}")
        with contextlib.ExitStack() as files:
            log = files.enter_context((logs.local / LOG).open("ab"))
            printed = log if program.flag else files.enter_context(tempfile.TemporaryFile())
            offset = log.tell()
            process = self._programs.start(
                record.command, worker, self._workers, printed, log, descriptor
            )
            self._running.append(process)
            for _ in self._watch(process, record, folder):
                self._progress.update(worker)
                logs.upload_when_due()
                yield
            self._running.remove(process)
            if printed is not log and not process.returncode:
                printed.seek(0)
                write_file(output, printed.read())
        ended = self._record_end(work, (logs.local / LOG).read_bytes()[offset:])
        logs.close()
        record.write(folder)
        self._progress.end(worker, f"{step.name}: {ended}")

    def _record_end(self, work: StepPlan, log: bytes) -> str:
        """Notes in a step's record how its program has ended, and returns it in words."""
        step, record = work.step, work.record
        status = record.starts[-1]["status"]
        if not status or (step.program, status) == ("train", STOPPED_EARLY):
            record.finished = now()
            record.bytes = count_output_bytes(self._workshop.find_output(step.name))
            return f"finished, {describe_cost(record)}"
        reason = find_reason(status, log)
        self.was_stopped |= status == INTERRUPTED
        self.failures[step.name] = reason
        record.failure = "" if status in (INTERRUPTED, -signal.SIGTERM) else reason
        return f"{'was stopped' if status == INTERRUPTED else 'failed'}: {reason}"

    def _watch(self, process: Running, record: Record, folder: Path) -> Iterator[None]:
        """Yields until a program ends, and keeps what it costs in the record."""
        begun = saved = time.monotonic()
        start = record.starts[-1]
        while process.poll() is None:
            start["core_seconds"] = round(process.measure_cores(), 2)
            if (now := time.monotonic()) - saved >= _SAVE_SECONDS:
                saved = now
                start["seconds"] = round(now - begun, 2)
                record.write(folder)
            yield
        start["core_seconds"] = round(process.measure_cores(), 2)
        start |= {"seconds": round(time.monotonic() - begun, 2), "status": process.returncode}


def describe_cost(record: Record) -> str:
    """Describes time and cost of all starts of a step."""
    minutes = record.sum_up("seconds") / 60
    return f"{minutes:.1f} minutes, {record.sum_up('core_seconds') / 60:.1f} core-minutes"


def put_aside(workshop: Workshop, name: str) -> None:
    """Moves what a step has written, its record and its log to old/NAME.1, or .2, ...

    What lies in the folder of another step is replaced instead.

    Raises:
        ConfigError: it is in a bucket, where folders cannot be moved.
    """
    check_aside(workshop, [name])
    place, number = workshop.workdir / OLD, 1
    while (place / f"{name}.{number}").exists() or (place / STEPS / f"{name}.{number}").exists():
        number += 1
    own = [] if workshop.goes_on(name) else [workshop.find_folder(name)]
    moved = list[str]()
    for folder in (*own, workshop.find_records(name)):
        if folder.exists():
            target = place / folder.relative_to(workshop.workdir).with_name(f"{name}.{number}")
            target.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(target)
            moved.append(str(target))
    _log.info("%s: what it had written is in %s", name, " and ".join(moved))
