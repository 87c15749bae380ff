"""Trains and evaluates runs side by side, each by programs of its own."""

import contextlib
import dataclasses
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.config.fields import ConfigError
from t2t.storage.atomic_files import write_file
from t2t.sweeps.sweep_directory import EvaluationProtocol, find_failure, find_score
from t2t.sweeps.sweep_progress import Progress
from t2t.sweeps.sweep_rows import Run
from t2t.training.early_stopping import STOPPED_EARLY

_POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Programs:
    """The commands that train and evaluate a run, as a user would type them."""

    workdir: Path
    recipe: str  # as --config takes it
    overrides: Mapping[str, Any]  # of the base
    protocol: EvaluationProtocol

    def train(self, run: Run) -> list[str]:
        """`t2t.train`."""
        overrides = {**self.overrides, **run.row.overrides, "seed": run.config.seed}
        flags = [f"--config.{name}={value}" for name, value in overrides.items()]
        return [*self._start("train", run), f"--config={self.recipe}", *flags]

    def evaluate(self, run: Run) -> list[str]:
        """`t2t.evaluate`."""
        score = find_score(self.workdir, run)
        protocol = self.protocol
        flags = [f"--split={protocol.split}", f"--checkpoint={protocol.checkpoint}"]
        return [*self._start("evaluate", run), *flags, f"--output={score}"]

    def _start(self, program: str, run: Run) -> list[str]:
        return [sys.executable, "-m", f"t2t.{program}", f"--workdir={self.workdir / run.name}"]


@dataclasses.dataclass
class _Job:
    """A run at work."""

    run: Run
    worker: int
    stage: str  # training | evaluating
    process: subprocess.Popen[bytes]
    began: int  # where in output.log this stage begins


class Scheduler:
    """So many workers, each with its share of the cores and GPUs."""

    def __init__(self, programs: Programs, workers: int, lock: int, progress: Progress):
        """`lock` is the descriptor that the programs keep open while they run."""
        self._programs, self._workers, self._lock = programs, workers, lock
        self._progress = progress
        self._jobs: list[_Job] = []

    def work(self, runs: Sequence[Run]) -> None:
        """Brings each run to its evaluation, or notes why it failed.

        Several workers take the longest runs first, so that none is left alone with one at the end.
        KeyboardInterrupt stops all programs, which save; it is raised again when they have ended.
        """
        waiting = [run for run in runs if not find_score(self._programs.workdir, run).exists()]
        if self._workers > 1:
            waiting.sort(key=_estimate_cost, reverse=True)
        try:
            while waiting or self._jobs:
                free = {*range(self._workers)} - {job.worker for job in self._jobs}
                for worker in sorted(free)[: len(waiting)]:
                    self._start(waiting.pop(0), worker, "training")
                time.sleep(_POLL_SECONDS)
                for job in [*self._jobs]:
                    self._advance(job)
        finally:
            self._stop()

    def _start(self, run: Run, worker: int, stage: str) -> None:
        folder = self._programs.workdir / run.name
        folder.mkdir(exist_ok=True)
        find_failure(self._programs.workdir, run).unlink(missing_ok=True)
        program = self._programs.train if stage == "training" else self._programs.evaluate
        cores, environment = share_machine(worker, self._workers, os.environ)
        with (folder / "output.log").open("ab") as output, _on(cores):
            process = subprocess.Popen(
                program(run),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment | {"PYTHONUNBUFFERED": "1"},  # in the log what is said last is last
                pass_fds=[self._lock],
                process_group=0,  # Ctrl-C comes to the sweep alone
            )
            self._jobs.append(_Job(run, worker, stage, process, output.tell()))
        self._progress.say(run, stage)

    def _advance(self, job: _Job) -> None:
        """What comes after a program's end."""
        status = job.process.poll()
        if status is None:
            self._progress.follow(job.run)
            return
        self._jobs.remove(job)
        trained = job.stage == "training" and status in (0, STOPPED_EARLY)
        if status and not trained:
            reason = f"{job.stage} failed: {self._find_reason(job, status)}"
            write_file(find_failure(self._programs.workdir, job.run), f"{reason}\n")
            self._progress.say(job.run, reason)
        elif trained:
            self._start(job.run, job.worker, "evaluating")
        else:
            self._progress.finish(job.run)

    def _find_reason(self, job: _Job, status: int) -> str:
        """The last line that the program printed, or of a traceback that with the exception."""
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        path = self._programs.workdir / job.run.name / "output.log"
        said = path.read_bytes()[job.began :].decode(errors="replace")
        lines = [line.strip() for line in re.split(r"[\r\n]", said) if line.strip()]
        raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
        return (raised or lines or [f"exit status {status}"])[-1]

    def _stop(self) -> None:
        """Asks all programs to save and end, and waits; asked again, it does not wait."""
        for job in self._jobs:
            job.process.terminate()
        try:
            for job in self._jobs:
                job.process.wait()
        except KeyboardInterrupt:
            for job in self._jobs:
                job.process.kill()
            raise


def _estimate_cost(run: Run) -> int:
    return run.count_flops(run.config.tokenizer.vocab_size)


def share_machine(
    worker: int, workers: int, environment: Mapping[str, str]
) -> tuple[set[int], dict[str, str]]:
    """The cores (empty: all) and the environment of one of several workers.

    Each worker has cores and NVIDIA GPUs of its own, as long as there are enough cores.

    Raises:
        ConfigError: there are fewer GPUs than workers, or several workers would use a TPU.
    """
    if workers == 1:
        return set(), dict(environment)
    if uses_tpu(environment):
        raise ConfigError(
            f"--workers={workers}: every program claims all TPU chips of this machine, so that the "
            "second one fails; use --workers=1, or JAX_PLATFORMS=cpu to train on the CPU"
        )
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    gpus = find_gpus(environment)
    if gpus and len(gpus) < workers:
        raise ConfigError(f"--workers={workers} is more than the {len(gpus)} GPUs; use fewer")
    mine = {"CUDA_VISIBLE_DEVICES": ",".join(gpus[worker::workers])} if gpus else {}
    return {*cores[worker::workers]}, {**environment, **mine}


def find_gpus(environment: Mapping[str, str]) -> list[str]:
    """Those that JAX would use, without waking them."""
    if environment.get("JAX_PLATFORMS", "cuda").split(",")[0] not in ("cuda", "gpu"):
        return []
    if "CUDA_VISIBLE_DEVICES" in environment:
        return [name for name in environment["CUDA_VISIBLE_DEVICES"].split(",") if name]
    return [str(n) for n, _ in enumerate(Path("/proc/driver/nvidia/gpus").glob("*"))]


def uses_tpu(environment: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Returns whether JAX would use a TPU, without waking it.

    JAX_PLATFORMS decides where it is set; else a TPU is used where libtpu is installed and finds
    chips. The kernel shows them as accel0, ... or, newer ones, as vfio/0, ...
    """
    if platforms := environment.get("JAX_PLATFORMS"):
        return "tpu" in platforms.split(",")
    chips = any(any(devices.glob(pattern)) for pattern in ("accel[0-9]*", "vfio/[0-9]*"))
    return chips and importlib.util.find_spec("libtpu") is not None


@contextlib.contextmanager
def _on(cores: set[int]) -> Iterator[None]:
    """Programs started here stay on these cores."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
