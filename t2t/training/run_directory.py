"""The run directory: its lock, its metrics, and the steps of its checkpoints.

    config.json   vocab/   checkpoints/STEP/{params,ema,training}   ledger.jsonl
    metrics.jsonl   tensorboard/   evaluations/   plugins/   epochs.json   stop.json   lock

It holds all that is needed to resume or to evaluate a run, except the corpora, and can be copied
elsewhere. Loading it executes no code from it.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t2t.config.fields import Config
from t2t.config.files import load_config
from t2t.runtime.distributed import is_first, wait_for_all
from t2t.storage.atomic_files import list_complete
from t2t.storage.locks import lock
from t2t.storage.paths import first_line

COMMITTED = "commit_success.txt"  # the object that Orbax writes last to a checkpoint in a bucket


class RunError(RuntimeError):
    """Raised if a run directory cannot be used; the message has the reason and a remedy."""


@contextlib.contextmanager
def lock_run(workdir: Path) -> Iterator[None]:
    """A context that locks a run directory for one trainer.

    The operating system releases the lock when the process ends, even if it is killed; in a bucket
    it is taken over when it has not been refreshed for some time (`t2t/storage/locks.py`).

    Raises:
        RunError: another trainer does not release the lock, or the directory cannot be written.
    """
    refusal = (
        f"another trainer is at work in {workdir}; wait until it ends, or choose another --workdir"
    )
    with lock(workdir / "lock", refusal, RunError) if is_first() else contextlib.nullcontext():
        wait_for_all()  # while process 0 waits for the lock
        yield


def list_steps(workdir: Path) -> list[int]:
    """Returns the steps of the complete checkpoints, in order.

    Orbax gives a checkpoint its final name when it is complete, so this function reads only names.
    In a bucket, where a folder cannot be renamed, Orbax ends by writing the object `COMMITTED`.
    This function does not import Orbax, which would take longer than some programs run.
    """
    folder = workdir / "checkpoints"
    return sorted(int(name) for name in list_complete(folder, COMMITTED) if name.isdecimal())


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """Returns the lines of `metrics.jsonl`; None stands for a value that was not finite.

    It may be called while training writes the file.
    """
    path = workdir / "metrics.jsonl"
    metrics = []
    text = path.read_bytes().decode(errors="replace") if path.exists() else ""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # a line that is being written
            metrics.append(json.loads(line))
    return metrics


def read_curve(workdir: Path, name: str) -> list[tuple[int, float]]:
    """Returns (step, value) of a figure of `metrics.jsonl`, such as "validation/loss".

    Values that were not finite are left out. It may be called while training writes the file.
    """
    lines = read_metrics(workdir)
    return [(line["step"], line[name]) for line in lines if line.get(name) is not None]


def is_regular(step: int, config: Config) -> bool:
    """Returns whether the config asks for a checkpoint at this step.

    Others were written by an interruption, or at the former last step of a run extended later.
    """
    return step % config.checkpoints.every == 0 or step == config.training.steps


def list_regular_steps(workdir: Path, config: Config | None = None) -> list[int]:
    """Returns the steps of the complete regular checkpoints (`is_regular`), in order.

    `config` is the run's, if it has been read.
    """
    config = config or load_config(workdir / "config.json")
    return [step for step in list_steps(workdir) if is_regular(step, config)]


def list_last_steps(
    workdir: Path, count: int, until: int | None = None, config: Config | None = None
) -> list[int]:
    """Returns the steps of the last `count` consecutive regular checkpoints up to step `until`.

    The oldest is first. Consecutive ones are at most `checkpoints.every` steps apart: if one was
    deleted, the list begins after it and is shorter. So an average never includes much older
    checkpoints, which `keep_every` or `keep_best` has kept. `config` is that of the run, if it has
    been read.
    """
    config = config or load_config(workdir / "config.json")
    regular, every = list_regular_steps(workdir, config), config.checkpoints.every
    steps = [step for step in regular if until is None or step <= until]
    last = steps[-1:]
    for step in reversed(steps[:-1]):
        if len(last) == count or last[0] - step > every:
            break
        last.insert(0, step)
    return last


def make_read_error(workdir: Path, step: int, error: Exception) -> RunError:
    """Returns a `RunError` with the reason of Orbax's error and a remedy."""
    if step not in list_steps(workdir):
        return RunError(
            f"checkpoint {step} of {workdir} was removed while it was read, since training removes "
            "old checkpoints; run this again, or raise checkpoints.keep_last to keep them longer"
        )
    before = [other for other in list_steps(workdir) if other < step]
    remedy = (
        f"if its files are damaged, move {workdir}/checkpoints/{step} elsewhere to go on with the "
        f"one before it, {before[-1]}"
        if before
        else "there is none before it"
    )
    return RunError(
        f"checkpoint {step} of {workdir} cannot be read ({first_line(error)}); {remedy}"
    )


def make_write_error(workdir: Path, reason: str) -> RunError:
    """Returns a `RunError` with the reason and a remedy."""
    steps = list_steps(workdir)
    newest = f"from checkpoint {steps[-1]}" if steps else "from the start: no checkpoint exists yet"
    return RunError(
        f"{workdir}/checkpoints cannot be written ({reason}); free some space there or "
        f"make it writable, then the same command continues {newest}"
    )
