"""The disk space that the checkpoints of a run need."""

import functools
import logging
import math
from pathlib import Path

import jax

from t2t.config.fields import Config
from t2t.runtime.distributed import is_first
from t2t.runtime.text_tables import show_bytes
from t2t.storage.atomic_files import measure_free_space
from t2t.training.optimizer import Optimizer, make_run_optimizer
from t2t.training.run_directory import list_steps
from t2t.training.state import TrainState, abstract_params, init_training

_log = logging.getLogger(__name__)


def find_missing_space(workdir: Path, config: Config, size: int) -> float:
    """Returns the bytes to be freed for a run's checkpoints of `size` bytes; 0 if all fit."""
    return max(0, count_missing(workdir, config) * size - measure_free_space(workdir))


def describe_checkpoints(config: Config, size: int) -> str:
    """Describes the number and sizes of checkpoints, such as "5 checkpoints of 800 MB, 4 GB"."""
    count = count_kept(config)
    return f"{count} checkpoints of {show_bytes(size, 3)}, {show_bytes(count * size, 3)}"


def estimate_checkpoint(config: Config) -> int:
    """Returns the bytes of a checkpoint of a model with `tokenizer.vocab_size` sub-words a side.

    Raises:
        ConfigError: a pattern of `training.frozen` or `training.rate_factors` has no effect.
    """
    optimizer = make_run_optimizer(config)
    _, params = abstract_params(config, *[config.tokenizer.vocab_size] * 2)
    state = jax.eval_shape(functools.partial(init_training, config, optimizer), params)
    return measure_checkpoint(state, optimizer)


def measure_checkpoint(state: TrainState, optimizer: Optimizer) -> int:
    """Returns the bytes of a checkpoint; the arrays of the state may be `jax.ShapeDtypeStruct`."""
    evaluated = state.params if optimizer.evaluation_params else None
    held = state.params, evaluated, state.opt_state, state.ema
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(held))


def warn_of_missing_space(workdir: Path, config: Config, size: int) -> None:
    """Logs a warning if the disk is too small for the checkpoints that the config keeps."""
    missing = find_missing_space(workdir, config, size)
    if missing and is_first():
        _log.warning(
            "%s has %s free, %s too few for the checkpoints that the config keeps (%s): "
            "training stops when the disk is full; free some space, or lower checkpoints.keep_last",
            workdir, show_bytes(measure_free_space(workdir), 3), show_bytes(missing, 3),
            describe_checkpoints(config, size),
        )  # fmt: skip


def count_missing(workdir: Path, config: Config) -> int:
    """Returns the number of checkpoints that a run will keep and does not have yet."""
    return max(0, count_kept(config) - len(list_steps(workdir)))


def count_kept(config: Config) -> int:
    """Returns the maximum number of checkpoints on disk, including the one being written.

    One that an interruption wrote is not counted; it exists until the next one is complete.
    """
    checkpoints, steps = config.checkpoints, config.training.steps
    kept = checkpoints.keep_last + checkpoints.keep_best
    if checkpoints.keep_every:
        kept += steps // math.lcm(checkpoints.every, checkpoints.keep_every)
    return min(kept + 1, math.ceil(steps / checkpoints.every))
