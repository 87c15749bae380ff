"""The run directory: its lock, its config, and the steps of its checkpoints.

    config.json   vocab/   checkpoints/STEP/{params,ema,training}   ledger.jsonl
    metrics.jsonl   tensorboard/   evaluations/   plugins/   epochs.json   stop.json   lock

It holds all that is needed to resume or to evaluate a run, except the corpora, and can be copied
elsewhere. Loading it executes no code from it.
"""

import contextlib
import dataclasses
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from t2t.config.fields import Config, DecodingConfig, TrainingConfig
from t2t.config.files import differences, load_config, save_config
from t2t.config.languages import OWN_TOKENIZERS, fill_languages, normalize_language
from t2t.config.rules import OPEN_ENDED_SCHEDULES
from t2t.runtime.distributed import is_first, wait_for_all
from t2t.storage.atomic_files import explain_write_errors, list_complete, make_folder
from t2t.storage.file_lock import LockedError
from t2t.storage.folder_lock import lock_folder

COMMITTED = "commit_success.txt"  # the object that Orbax writes last to a checkpoint in a bucket
# What --checkpoint takes, as `checkpoint.restore_params` reads it: for messages, and as a pattern.
CHECKPOINT_NAMES = "last, best, STEP, avg:COUNT, ema or ema:STEP"
CHECKPOINT_PATTERN = r"last|best|\d+|avg:0*[1-9]\d*|ema(:\d+)?"

# Prefixes of the fields that may change when a run continues: they affect neither the next update
# nor the order of the data. Files may move, but the training text may not change, nor the
# validation text once a checkpoint holds validation scores (`provenance.check_corpora`).
_CHANGEABLE = (
    "mesh.",
    "checkpoints.",
    "decoding.",
    "data.directory",
    "data.cache_directory",
    "data.train_src",
    "data.train_tgt",
    "data.hf_files",
    "data.hf_streaming",
    "data.validation_",
    "data.test_",
    "training.log_every",
    "training.validate_every",
    "training.bleu_every",
    "training.max_nonfinite_steps",
)

# Fields of the schedule, which may change where a new schedule starts.
_SCHEDULE_FIELDS = (
    "training.steps",
    "training.schedule",  # and schedule_start
    "training.learning_rate",
    "training.warmup_steps",
    "training.cooldown_steps",
)

# Fields that validation BLEU depends on. They may not change once checkpoints have BLEU scores,
# since "best" would compare scores of different searches.
_BLEU_FIELDS = tuple(
    f"decoding.{field.name}"
    for field in dataclasses.fields(DecodingConfig)
    if field.name != "batch_size"
)

# Prefixes of the fields that the vocabulary depends on, besides the text, which
# `preparation.make_vocabulary` checks. In a run without a checkpoint, all other fields may change.
_VOCABULARY_FIELDS = (
    "tokenizer.",
    "data.source",
    "data.src_language",
    "data.tgt_language",
    "data.directions",
    "data.filters",
    "data.tfds_name",
    "data.hf_name",
    "data.src_column",
    "data.tgt_column",
)


_LANGUAGES = ("data.src_language", "data.tgt_language")


class RunError(RuntimeError):
    """Raised if a run directory cannot be used; the message has the reason and a remedy."""


@contextlib.contextmanager
def lock_run(workdir: Path) -> Iterator[None]:
    """A context that locks a run directory for one trainer.

    The operating system releases the lock when the process ends, even if it is killed; in a bucket
    it is taken over when it has not been refreshed for some time (`t2t/storage/folder_lock.py`).

    Raises:
        RunError: another trainer does not release the lock, or the directory cannot be written.
    """
    with contextlib.ExitStack() as held:
        if is_first():
            refusal = (
                f"another trainer is at work in {workdir}; "
                "wait until it ends, or choose another --workdir"
            )
            held.enter_context(lock(workdir, refusal))
        wait_for_all()  # while process 0 waits for the lock
        yield


@contextlib.contextmanager
def lock(folder: Path, refusal: str, *, shared: bool = False) -> Iterator[int]:
    """A context that locks a folder; processes that share the lock (`shared`) admit each other.

    It yields a file descriptor. On this machine the lock is held as long as any process has it
    open, so child processes that inherit it keep it if this process is killed.

    Raises:
        RunError: another process holds the lock (the message is `refusal`), or the folder cannot be
            written.
    """
    with contextlib.ExitStack() as held:
        with explain_write_errors(RunError, folder):
            try:
                descriptor = held.enter_context(lock_folder(folder, shared=shared))
            except LockedError as error:
                raise RunError(f"{refusal} (the lock is held by {error})") from None
        yield descriptor


def open_run(workdir: Path, config: Config, measures: Collection[str]) -> None:
    """Creates a run directory, or checks that an existing one can continue with this config.

    If it has a vocabulary but no checkpoint, only the fields that the vocabulary depends on have to
    be unchanged, so that a run can be started again after an error in its data.

    Args:
        workdir: run directory.
        config: config to write to it.
        measures: names of the validation scores that its checkpoints hold, such as loss and bleu
            (`checkpoint.list_measures`).

    Raises:
        RunError: a field that may not change has changed, or the directory cannot be written.
    """
    path = workdir / "config.json"
    last = max(list_steps(workdir), default=0)
    if config.training.schedule_start > last:
        raise RunError(
            f"training.schedule_start={config.training.schedule_start} needs a run that has come "
            f"to this step, but {workdir} holds checkpoint {last}; leave it at 0, and extend the "
            "run with --extend when it is finished"
        )
    if last and not path.exists():
        raise RunError(
            f"{path} is missing, without which checkpoint {last} cannot be continued; restore it "
            "from a copy of the run, or choose another --workdir"
        )
    if path.exists() and ((workdir / "vocab").exists() or last):
        saved = load_config(path)
        changed = differences(_fill(saved), _fill(config))
        if _has_free_languages(saved, config, measures):
            changed = [line for line in changed if not line.startswith(_LANGUAGES)]
        if last:
            changeable = _list_changeable(saved.training, config.training, last)
            fixed = _BLEU_FIELDS if "bleu" in measures else ()
            changed = [
                line
                for line in changed
                if not line.startswith(changeable) or line.startswith(fixed)
            ]
        else:
            changed = [line for line in changed if line.startswith(_VOCABULARY_FIELDS)]
        if changed:
            is_schedule = any(line.startswith(_SCHEDULE_FIELDS) for line in changed)
            hint = "; a finished run goes on with a new schedule by --extend=STEPS"
            raise RunError(
                f"{workdir} was written with another config:\n  "
                + "\n  ".join(changed)
                + "\nchoose another --workdir, or continue this run with the old values"
                + hint * is_schedule
            )
    if not is_first():
        return
    with explain_write_errors(RunError, workdir):
        make_folder(workdir / "checkpoints")
        save_config(config, path)


def _fill(config: Config) -> Config:
    return dataclasses.replace(config, data=fill_languages(config.data))


def _has_free_languages(saved: Config, new: Config, measures: Collection[str]) -> bool:
    """Returns whether languages may change: files of text are read alike whatever they are called.

    Where checkpoints have BLEU scores, its tokeniser has to stay.
    """
    if any(each.data.source != "text" or each.data.directions for each in (saved, new)):
        return False
    targets = {normalize_language(each.data.tgt_language) for each in (saved, new)}
    return "bleu" not in measures or len(targets) == 1 or not targets & OWN_TOKENIZERS


def _list_changeable(saved: TrainingConfig, new: TrainingConfig, last: int) -> tuple[str, ...]:
    """Returns prefixes of the fields that may change after checkpoint `last`.

    The whole schedule may change if the new one starts at this checkpoint, and either the run is
    finished or no update has been made since the saved schedule started there. Otherwise the number
    of steps may change if the learning rates do not depend on it.
    """
    if new.schedule_start == last and (last >= saved.steps or saved.schedule_start == last):
        return (*_CHANGEABLE, *_SCHEDULE_FIELDS)
    is_open_ended = new.schedule in OPEN_ENDED_SCHEDULES and not new.cooldown_steps
    return (*_CHANGEABLE, "training.steps") if is_open_ended else _CHANGEABLE


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


def list_regular_steps(workdir: Path) -> list[int]:
    """Returns the steps of the complete regular checkpoints (`is_regular`), in order."""
    config = load_config(workdir / "config.json")
    return [step for step in list_steps(workdir) if is_regular(step, config)]


def list_last_steps(workdir: Path, count: int, until: int | None = None) -> list[int]:
    """Returns the steps of the last `count` consecutive regular checkpoints up to step `until`.

    The oldest is first. Consecutive ones are at most `checkpoints.every` steps apart: if one was
    deleted, the list begins after it and is shorter. So an average never includes much older
    checkpoints, which `keep_every` or `keep_best` has kept.
    """
    every = load_config(workdir / "config.json").checkpoints.every
    steps = [step for step in list_regular_steps(workdir) if until is None or step <= until]
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


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message, or its type if it has none."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
