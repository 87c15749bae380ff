"""Names of checkpoints as users write them: RUN, or RUN:CHECKPOINT."""

import re
from pathlib import Path

from t2t.config.fields import Config, ConfigError
from t2t.storage.paths import make_run_path

# What --checkpoint takes, as `checkpoint.restore_params` reads it: for messages, and as a pattern.
CHECKPOINT_NAMES = "last, best, STEP, avg:COUNT, ema or ema:STEP"
CHECKPOINT_PATTERN = r"last|best|\d+|avg:0*[1-9]\d*|ema(:\d+)?"


def split_checkpoint_name(name: str, flag: str) -> tuple[Path, str]:
    """Splits RUN:CHECKPOINT; the checkpoint is "" if the name has none, or is itself a run's.

    `flag` is where the user gave the name.

    Raises:
        PathError: RUN cannot be a run directory.
    """
    matched = re.fullmatch(f"(.*?)(?::({CHECKPOINT_PATTERN}))?", name, re.DOTALL)
    assert matched is not None
    whole = make_run_path(name, flag)
    if not matched[2] or (whole / "config.json").exists():
        return whole, ""
    return make_run_path(matched[1], flag), matched[2]


def check_checkpoint(which: str, config: Config | None) -> None:
    """Checks that a run will have a checkpoint when its training has ended.

    `config` is the run's; None: it is not known, so only the name is checked.

    Raises:
        ConfigError: the name is unknown, or the run will have no such checkpoint.
    """
    where = f"checkpoint {which!r}"
    if not re.fullmatch(CHECKPOINT_PATTERN, which):
        raise ConfigError(f"{where} is unknown; use {CHECKPOINT_NAMES}")
    if config is None:
        return
    name, _, number = which.partition(":")
    training, rules = config.training, config.checkpoints
    if name == "ema" and not training.ema_decay:
        raise ConfigError(
            f"{where} needs training.ema_decay; set it, for example to 0.999, or use another "
            "checkpoint"
        )
    measured = training.validate_every if rules.best_metric == "loss" else training.translate_every
    if name == "best" and not measured:
        raise ConfigError(f"{where} needs validation, which this run does without; use last")
    if name == "avg" and int(number) > (kept := _count_in_a_row(config)):
        raise ConfigError(
            f"{where} needs as many checkpoints in a row, but training ends with {kept}: "
            f"checkpoints.keep_last={rules.keep_last}, checkpoints.every={rules.every}, "
            f"training.steps={training.steps}; average fewer, or raise checkpoints.keep_last"
        )


def _count_in_a_row(config: Config) -> int:
    """Returns the number of regular checkpoints up to the last step of which none was deleted."""
    rules, count = config.checkpoints, 1
    step = (config.training.steps - 1) // rules.every * rules.every
    while step > 0 and (
        count < rules.keep_last or (rules.keep_every and step % rules.keep_every == 0)
    ):
        step, count = step - rules.every, count + 1
    return count
