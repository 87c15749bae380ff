"""Trains and evaluates several runs in parallel, each in its own processes."""

import contextlib
import dataclasses
import functools
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import tqdm

from t2t.config.measures import ON_REQUEST
from t2t.evaluation.saved_evaluations import load_evaluation
from t2t.runtime.child_programs import find_reason, start_program, stop_programs
from t2t.storage.atomic_files import explain_write_errors, make_folder, write_file
from t2t.storage.growing_files import GrowingFiles, measure_growth
from t2t.storage.locks import lock
from t2t.sweeps.sweep_directory import (
    EvaluationProtocol,
    find_other_fields,
    open_sweep,
)
from t2t.sweeps.sweep_rows import SweepRun, count_flops
from t2t.training.provenance import list_changed
from t2t.training.run_directory import RunError, read_metrics
from t2t.training.stop_request import STOPPED_EARLY

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Programs:
    """The command lines that train and evaluate a run."""

    recipe: str  # the value of --config
    overrides: Mapping[str, Any]  # of the recipe, for all rows
    protocol: EvaluationProtocol

    def train(self, run: SweepRun) -> list[str]:
        """Returns the command line of `t2t.train` for a run."""
        overrides = {**self.overrides, **run.row.overrides, "seed": run.config.seed}
        flags = [f"--config.{name}={value}" for name, value in overrides.items()]
        return [*self._start("train", run), f"--config={self.recipe}", *flags, "--allow_unused"]

    def evaluate(self, run: SweepRun) -> list[str]:
        """Returns the command line of `t2t.evaluate` for a run."""
        protocol = self.protocol
        checkpoint = run.row.checkpoint or protocol.checkpoint
        flags = [f"--split={protocol.split}", f"--checkpoint={checkpoint}"]
        flags += [f"--direction={protocol.direction}"] if protocol.direction else []
        if protocol.measure in ON_REQUEST:
            flags.append(f"--measures=default,{protocol.measure}")
        flags += [f"--plugins={','.join(run.config.plugins)}"] if run.config.plugins else []
        return [*self._start("evaluate", run), *flags, f"--output={run.score}"]

    def _start(self, program: str, run: SweepRun) -> list[str]:
        return [sys.executable, "-m", f"t2t.{program}", f"--workdir={run.workdir}"]


def sweep(
    workdir: Path, programs: Programs, runs: Sequence[SweepRun], workers: int, index: int | None
) -> bool:
    """Trains and evaluates all runs, or the one at `index`; returns whether none of them failed."""
    chosen = runs if index is None else [runs[index]]
    refusal = (
        f"another sweep is running in {workdir}, or a run that a killed sweep left behind; "
        "wait until it ends, or choose another --workdir"
    )
    # The tasks of a job array share the lock, which the child processes inherit.
    with lock(workdir / "lock", refusal, RunError, shared=index is not None) as descriptor:
        open_sweep(workdir, runs, programs.protocol)
        for run in chosen:
            if run.score.exists() and (names := list_changed(run.workdir, run.config.plugins)):
                _log.warning(
                    "%s: its plugins have changed since it was trained (%s), so its score is of "
                    "other code than those of new rows; to train it again, remove %s",
                    run.name, ", ".join(names), run.workdir,
                )  # fmt: skip
        _log.info("the output of each run is in %s/RUN/output.log", workdir)
        with explain_write_errors(RunError, workdir, "the same command continues"):
            Scheduler(programs, workers, descriptor).work(chosen)
    return not any(run.failure.exists() for run in chosen)


class RunProgress:
    """The progress of one run: a bar on a terminal, otherwise a log line for each event."""

    def __init__(self, run: SweepRun, measure: str, place: int):
        """Creates the bar, in line `place` of those at the bottom of the terminal."""
        self._run, self._measure = run, measure
        self._version = 0  # size of metrics.jsonl when it was last read
        self._bar = tqdm.tqdm(
            desc=run.name,
            total=run.config.training.steps,
            unit="step",
            postfix="waiting",
            position=place,
            dynamic_ncols=True,
            disable=not sys.stderr.isatty(),
        )
        if run.score.exists():
            self.finish()

    def close(self) -> None:
        """Closes the bar and leaves it on the screen."""
        self._bar.close()

    def begin(self, stage: str) -> None:
        """Reports that a stage begins, and starts its clock."""
        self.report(stage)
        if metrics := self._read_new():
            self._bar.n = metrics[-1]["step"]
        self._bar.start_t, self._bar.initial = time.time(), self._bar.n

    def report(self, event: str) -> None:
        """Reports an event."""
        self._bar.set_postfix_str(event)
        if self._bar.disable:
            _log.info("%s: %s", self._run.name, event)

    def update(self) -> None:
        """Moves the bar to the last step in the metrics; the clock counts from `begin`."""
        if self._bar.disable:
            return
        if metrics := self._read_new():
            self._bar.n = metrics[-1]["step"]
            losses = [line["train/loss"] for line in metrics if "train/loss" in line]
            shown = f"{losses[-1]:.3f}" if losses and losses[-1] is not None else "not finite"
            self._bar.set_postfix_str(f"training, loss {shown}", refresh=False)
        self._bar.refresh()

    def _read_new(self) -> list[dict[str, Any]]:
        """Reads the metrics of the run; empty if their file is as it was at the last call."""
        version = measure_growth(self._run.workdir / "metrics.jsonl")
        if version == self._version:
            return []
        self._version = version
        return read_metrics(self._run.workdir)

    def finish(self) -> None:
        """Reports that the run is finished, with its score."""
        self._bar.n = self._run.config.training.steps
        result = load_evaluation(self._run.score).result
        score = result["measures"].get(self._measure)  # none of references without spaces
        self.report(f"finished, {self._measure} {score['value']:.2f}" if score else "finished")


class Scheduler:
    """Runs a number of workers, each with its share of the cores and GPUs."""

    def __init__(self, programs: Programs, workers: int, descriptor: int):
        """Keeps the arguments.

        `descriptor` is that of the sweep's lock; child processes inherit it, so the lock
        is held until all of them have ended.
        """
        self._programs, self._workers, self._descriptor = programs, workers, descriptor
        self._running: set[subprocess.Popen[bytes]] = set()
        self._starting = threading.Lock()
        self._is_stopped = False

    def work(self, runs: Sequence[SweepRun]) -> None:
        """Trains and evaluates each run, or records why it failed.

        Several workers take the longest runs first, to balance their load at the end. On
        KeyboardInterrupt all child processes are told to save and stop; it is raised again when
        they have ended.
        """
        waiting = [run for run in runs if not run.score.exists()]
        if self._workers > 1:
            waiting.sort(
                key=lambda run: count_flops(run.config, run.config.tokenizer.vocab_size),
                reverse=True,
            )
        with contextlib.ExitStack() as ending:
            bars = {
                run.name: RunProgress(run, self._programs.protocol.measure, place)
                for place, run in enumerate(runs)
            }
            for bar in bars.values():
                ending.callback(bar.close)
            pool = ending.enter_context(ThreadPoolExecutor(self._workers))
            ending.callback(self._stop)
            queue = iter(waiting)
            workers = [
                pool.submit(self._take_runs, queue, worker, bars) for worker in range(self._workers)
            ]
            for worker in as_completed(workers):
                worker.result()

    def _take_runs(
        self, queue: Iterator[SweepRun], worker: int, bars: Mapping[str, RunProgress]
    ) -> None:
        """Trains and evaluates runs until none is left."""
        for run in queue:
            if self._is_stopped:
                return
            self._train_and_evaluate(run, worker, bars[run.name])

    def _train_and_evaluate(self, run: SweepRun, worker: int, progress: RunProgress) -> None:
        """Runs both programs; writes failure.txt if one fails."""
        make_folder(run.workdir)
        run.failure.unlink(missing_ok=True)
        execute = functools.partial(self._execute, run.workdir, worker, progress)
        reason = execute("training", self._programs.train(run))
        if not reason and (changed := find_other_fields(run)):
            shown = ", ".join(map(str, changed))
            reason = f"not as in sweep.json, since the recipe has changed: {shown}"
        if not reason:
            reason = execute("evaluating", self._programs.evaluate(run))
        if self._is_stopped:
            return
        if reason:
            write_file(run.failure, f"{reason}\n")
            progress.report(reason)
        else:
            progress.finish()

    def _execute(
        self, folder: Path, worker: int, progress: RunProgress, stage: str, command: list[str]
    ) -> str:
        """Runs a program; returns why it failed, or nothing."""
        logs = GrowingFiles(folder, "output.log")
        log = logs.local / "output.log"
        with log.open("ab") as output, self._starting:
            if self._is_stopped:
                return "stopped"
            process = start_program(
                command, worker, self._workers, output, output, self._descriptor
            )
            self._running.add(process)
            offset = output.tell()
        progress.begin(stage)
        while (status := _wait(process)) is None:
            progress.update()
            logs.upload_when_due()
        self._running.remove(process)
        reason = ""
        if status and (stage, status) != ("training", STOPPED_EARLY):
            reason = f"{stage} failed: {find_reason(status, log.read_bytes()[offset:])}"
        logs.close()
        return reason

    def _stop(self) -> None:
        """Tells all programs to save and stop, and waits for them."""
        with self._starting:
            self._is_stopped = True
            stopped = [*self._running]
        stop_programs(stopped)


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    """Waits a moment for a process; returns its status if it has ended."""
    try:
        return process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None
