"""The run directory: whose it is, and with which config it may be continued.

    config.json   vocab/   checkpoints/STEP/{params,training}   metrics.jsonl   evaluations/

That is all that is needed to resume or to evaluate, and it can be copied elsewhere. Nothing in it
is executed on load.
"""

import contextlib
import fcntl
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from t2t.config.fields import Config
from t2t.config.files import differences, load_config, save_config
from t2t.runtime.distributed import is_first

# What may differ between a run and its continuation: it changes neither the parameters that
# follow from those already there, nor the order of the data. Validation files may move, but their
# text stays (`ledger.check_corpora`).
_CHANGEABLE = (
    "mesh.",
    "checkpoints.",
    "decoding.",
    "data.directory",
    "data.cache_directory",
    "data.validation_",
    "data.test_",
    "training.steps",
    "training.log_every",
    "training.validate_every",
    "training.bleu_every",
    "training.max_nonfinite_steps",
)

# Their rates do not depend on `training.steps`. Those of a cosine, or of a registered one, may.
_ENDLESS_SCHEDULES = ("noam", "inverse_sqrt", "constant")

# What validation BLEU depends on: it may not change once checkpoints have such scores, or "best"
# would compare different searches.
_OF_BLEU = ("decoding.beam_size", "decoding.alpha", "decoding.max_extra_length")

# What makes the vocabulary: all that binds a run as long as it holds no checkpoint.
_OF_VOCABULARY = (
    "tokenizer.",
    "data.source",
    "data.src_language",
    "data.tgt_language",
    "data.tfds_name",
    "data.train_src",
    "data.train_tgt",
)


class RunError(RuntimeError):
    """A run directory that cannot be used; the message says why and what would help."""


@contextlib.contextmanager
def lock_run(workdir: Path) -> Iterator[None]:
    """Makes a run directory this trainer's alone; the lock ends with its process, however it ends.

    Raises:
        RunError: another trainer holds it, or it cannot be written.
    """
    with contextlib.ExitStack() as held:
        if is_first():
            refusal = (
                f"another trainer is at work in {workdir}; "
                "wait for its end, or choose another --workdir"
            )
            held.enter_context(lock(workdir, refusal))
        yield


@contextlib.contextmanager
def lock(folder: Path, refusal: str) -> Iterator[None]:
    """Makes a folder this process' alone.

    Raises:
        RunError: another process holds it (`refusal` says that), or it cannot be written.
    """
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = held.enter_context((folder / "lock").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(refusal) from None
        except OSError as error:
            raise RunError(f"{folder} cannot be written: {error.strerror}") from None
        yield


def open_run(workdir: Path, config: Config, measures: Collection[str]) -> None:
    """Makes a run directory, or checks that the one that is there was made with this config.

    As long as it holds no checkpoint, only what made its vocabulary, if that is there, has to stay:
    a first attempt that failed on its data does not stand in the way of the second. `measures` are
    those of its checkpoints' validation scores (`checkpoint.list_measures`).

    Raises:
        RunError: it was made with another, or cannot be written.
    """
    path = workdir / "config.json"
    if path.exists() and ((workdir / "vocab").exists() or list_steps(workdir)):
        changed = differences(load_config(path), config)
        if list_steps(workdir):
            free = tuple(
                field
                for field in _CHANGEABLE
                if field != "training.steps" or config.training.schedule in _ENDLESS_SCHEDULES
            )
            bound = _OF_BLEU if "bleu" in measures else ()
            changed = [
                line for line in changed if not line.startswith(free) or line.startswith(bound)
            ]
        else:
            changed = [line for line in changed if line.startswith(_OF_VOCABULARY)]
        if changed:
            raise RunError(
                f"{workdir} was written with another config:\n  "
                + "\n  ".join(changed)
                + "\nchoose another --workdir, or the old values to continue this run"
            )
    if not is_first():
        return
    try:
        (workdir / "checkpoints").mkdir(parents=True, exist_ok=True)
        save_config(config, path)
    except OSError as error:
        raise RunError(f"{workdir} cannot be written: {error.strerror}") from None


def list_steps(workdir: Path) -> list[int]:
    """The steps of the complete checkpoints, in order.

    Orbax gives a checkpoint its final name when it is complete. Names are all that is read here:
    importing Orbax takes longer than what some of the programs do.
    """
    folder = workdir / "checkpoints"
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdecimal())


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`, also while it is written; null stands for no finite number."""
    path = workdir / "metrics.jsonl"
    metrics = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):  # the trainer is writing it
            metrics.append(json.loads(line))
    return metrics


def is_regular(step: int, config: Config) -> bool:
    """Whether the config asks for a checkpoint of this step, interrupted or not."""
    return step % config.checkpoints.every == 0 or step == config.training.steps


def list_regular_steps(workdir: Path) -> list[int]:
    """The steps of the complete checkpoints, in order, without those of interruptions."""
    config = load_config(workdir / "config.json")
    return [step for step in list_steps(workdir) if is_regular(step, config)]


def list_last_steps(workdir: Path, count: int, until: int | None = None) -> list[int]:
    """The last `count` regular checkpoints in a row, up to step `until`, the oldest first.

    They are fewer where there are no more without a gap: training keeps a few old checkpoints far
    behind the last ones, and their mean would be another thing.
    """
    every = load_config(workdir / "config.json").checkpoints.every
    steps = [step for step in list_regular_steps(workdir) if until is None or step <= until]
    last = steps[-1:]
    for step in reversed(steps[:-1]):
        if len(last) == count or last[0] - step > every:
            break
        last.insert(0, step)
    return last
