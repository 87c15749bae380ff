"""Parameters of checkpoints: restores them for programs, averages them, writes them as a run.

Training's own checkpoints are written by t2t/training/checkpoint_manager.py.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax.traverse_util import flatten_dict, unflatten_dict

from t2t.config.fields import Config
from t2t.config.files import format_config, read_saved_config
from t2t.config.measure_rules import is_higher_better
from t2t.config.variants import COPIES
from t2t.model.parameters import Params
from t2t.runtime.signals import hold_signals
from t2t.storage.atomic_files import (
    draft_folder,
    list_files,
    make_folder,
    require_space,
    write_file,
)
from t2t.storage.paths import first_line
from t2t.training.averages import average
from t2t.training.checkpoint_names import CHECKPOINT_NAMES
from t2t.training.run_directory import (
    RunError,
    list_last_steps,
    list_steps,
    make_read_error,
)

Scored = TypeVar("Scored", int, tuple[int, int])


class NamedCheckpoint(NamedTuple):
    """The checkpoint, or the mean of several, that a name such as "best" or "avg:5" stands for."""

    label: str  # in files and records, for example "best-3000"
    steps: list[int]
    item: str = "params"  # of the checkpoint; "ema": the moving average

    def restore(self, workdir: Path) -> Params:
        """Reads the parameters, or their mean, as NumPy arrays.

        Raises:
            RunError: they cannot be read.
        """
        if self.steps[1:]:
            return average_params(workdir, self.steps)
        return _restore_step(workdir, self.steps[0], self.item)


def find_checkpoint(workdir: Path, which: str, config: Config | None = None) -> NamedCheckpoint:
    """Returns the checkpoint of this name: its label, and the steps whose parameters it is.

    `which` is "last", "best" (by `checkpoints.best_metric`), a step, "avg:5", the mean of the last
    5 regular checkpoints (section 6.1), or "ema", the exponential moving average
    (`training.ema_decay`) in the last checkpoint; "ema:3000": in that of step 3000. `config` is
    that of the run, if it has been read.

    Raises:
        RunError: there is no such checkpoint.
    """
    steps = list_steps(workdir)
    if not steps:
        raise RunError(f"{workdir} holds no complete checkpoint; is it a run directory?")
    match which.split(":"):
        case [step] | ["ema", step] if step.isdecimal() and int(step) not in steps:
            raise RunError(
                f"{workdir} holds no checkpoint of step {step}; it has {', '.join(map(str, steps))}"
            )
        case ["last"]:
            return NamedCheckpoint(str(steps[-1]), steps[-1:])
        case ["best"]:
            best = find_best_step(workdir, config)
            return NamedCheckpoint(f"best-{best}", [best])
        case ["avg", count] if count.isdecimal() and int(count) > 0:
            averaged = find_average_steps(workdir, int(count), config)
            return NamedCheckpoint(f"avg{count}-{averaged[-1]}", averaged)
        case ["ema"]:
            return NamedCheckpoint(f"ema-{steps[-1]}", steps[-1:], "ema")
        case ["ema", step] if step.isdecimal():
            return NamedCheckpoint(f"ema-{step}", [int(step)], "ema")
        case [step] if step.isdecimal():
            return NamedCheckpoint(step, [int(step)])
        case _:
            raise RunError(f"checkpoint {which!r} is unknown; use {CHECKPOINT_NAMES}")


def restore_params(workdir: Path, which: str, config: Config | None = None) -> tuple[Params, str]:
    """Restores parameters for evaluation, in the host's memory: they may be on several devices.

    Returns the parameters as NumPy arrays, and their label; for the arguments see
    `find_checkpoint`.

    Raises:
        RunError: there is no such checkpoint, or it cannot be read.
    """
    found = find_checkpoint(workdir, which, config)
    return found.restore(workdir), found.label


def find_average_steps(workdir: Path, count: int, config: Config | None = None) -> list[int]:
    """Returns the steps of the last `count` consecutive regular checkpoints, for an average.

    Raises:
        RunError: there are fewer.
    """
    steps = list_last_steps(workdir, count, config=config)
    if len(steps) < count:
        remedy = f"ask for at most {len(steps)}" if steps else "use last"
        raise RunError(
            f"{workdir} has {len(steps)} checkpoints in a row at the regular interval, too few for "
            f"an average of {count}; {remedy}, or raise checkpoints.keep_last and continue training"
        )
    return steps


def find_best_step(workdir: Path, config: Config | None = None) -> int:
    """Returns the step with the best score in `checkpoints.best_metric`, or raises `RunError`."""
    config = config or read_saved_config(workdir / "config.json")
    metric = config.checkpoints.best_metric
    scores = {step: own[metric] for step, own in _read_scores(workdir).items() if metric in own}
    if not scores:
        raise RunError(f"{workdir} holds no checkpoint with a validation {metric}; use last")
    return rank_steps(scores, metric)[0]


def list_scored_measures(workdir: Path) -> set[str]:
    """Returns the validation measures, such as loss and bleu, that checkpoints have scores for.

    Raises:
        RunError: a checkpoint's validation scores are damaged.
    """
    return {measure for scores in _read_scores(workdir).values() for measure in scores}


def _read_scores(workdir: Path) -> dict[int, dict[str, float]]:
    """Returns step -> measure -> validation score for all checkpoints."""
    options = ocp.CheckpointManagerOptions(
        create=False, enable_async_checkpointing=False, lightweight_initialize=True
    )
    folder = workdir.absolute() / "checkpoints"
    scores = {}
    with ocp.CheckpointManager(folder, options=options) as manager:
        for step in manager.all_steps():
            try:
                metrics = manager.metrics(step) or {}
                scores[step] = {measure: float(score) for measure, score in metrics.items()}
            except (AttributeError, TypeError, ValueError) as error:
                raise make_read_error(workdir, step, error) from error
    return scores


def rank_steps(scores: Mapping[int, float], metric: str) -> list[int]:
    """Returns the steps by their validation score in a metric, as `rank` does.

    Raises:
        ConfigError: the metric is that of a plugin which is not imported.
    """
    return rank(scores, higher_is_better=is_higher_better(metric))


def rank(scores: Mapping[Scored, float], *, higher_is_better: bool) -> list[Scored]:
    """Returns what has the scores, such as steps, the best first; of equal ones the smallest.

    A score that is not a number is the worst.
    """
    sign = -1 if higher_is_better else 1
    pairs = [(sign * score, scored) for scored, score in scores.items()]
    ranked = sorted((math.inf if math.isnan(score) else score, scored) for score, scored in pairs)
    return [scored for _, scored in ranked]


def average_params(workdir: Path, steps: Sequence[int]) -> Params:
    """Reads and averages the parameters of these checkpoints, one at a time."""
    return average(_restore_step(workdir, step) for step in steps)


def save_params(
    workdir: Path, target: Path, params: Params, step: int, config: Config | None = None
) -> None:
    """Writes a run directory with these parameters and what belongs to them; see `write_run`.

    `config` replaces that of the run.

    Raises:
        OSError: it cannot be written.
    """
    folders = list_files(workdir / "vocab") + list_files(workdir / COPIES)
    paths = [workdir / "config.json", *folders]
    files = {str(path.relative_to(workdir)): path.read_bytes() for path in paths}
    if config:
        files["config.json"] = format_config(config).encode()
    write_run(target, params, step, files)


@hold_signals()
def write_run(target: Path, params: Params, step: int, files: Mapping[str, bytes]) -> None:
    """Writes a run directory with one checkpoint, of parameters alone.

    It appears when it is complete; in a bucket its `config.json` is the last object. `files` are
    the other files by their names, such as config.json and the files of vocab/.

    Raises:
        OSError: it cannot be written.
    """
    with draft_folder(target) as folder:
        make_folder(folder)
        require_space(folder, sum(leaf.nbytes for leaf in jax.tree.leaves(params)))
        for name in files.keys() - {"config.json"}:
            write_file(folder / name, files[name])
        try:
            with ocp.CheckpointManager(folder.absolute() / "checkpoints") as manager:
                manager.save(step, args=ocp.args.Composite(params=ocp.args.StandardSave(params)))
        except Exception as error:  # Orbax raises errors of several types
            raise OSError(first_line(error)) from error
        write_file(folder / "config.json", files["config.json"])


@hold_signals()
def _restore_step(workdir: Path, step: int, item: str = "params") -> Params:
    folder = workdir.absolute() / "checkpoints" / str(step) / item
    if item == "ema" and not folder.exists() and step in list_steps(workdir):
        raise RunError(
            f"checkpoint {step} of {workdir} has no moving average of the parameters: training had "
            "training.ema_decay=0, or --save_params wrote it; use last, best or avg:COUNT"
        )
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            names = ocp.PyTreeCheckpointHandler().metadata(folder).tree
            on_host = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), names)
            restored = flatten_dict(checkpointer.restore(folder, restore_args=on_host))
        # Orbax restores the numbers of layers as texts, whose order is another: "10" before "2".
        numbered = {
            tuple(int(name) if name.isdecimal() else name for name in path): leaf
            for path, leaf in restored.items()
        }
        return unflatten_dict(numbered)
    except Exception as error:
        raise make_read_error(workdir, step, error) from error
