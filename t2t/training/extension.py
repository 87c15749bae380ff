"""Extension of a finished run: more steps, with a learning-rate schedule of their own."""

import dataclasses
import logging
from pathlib import Path

from t2t.config.fields import Config, ConfigError
from t2t.config.files import load_config
from t2t.config.rules import validate
from t2t.config.variants import CHOICES
from t2t.training.run_directory import RunError, list_steps

_log = logging.getLogger(__name__)


def extend(workdir: Path, num_steps: int, config: Config | None = None) -> Config:
    """Returns the config with which a finished run goes on for `num_steps` steps.

    Its schedule starts at the last step of the run, and its last step is `num_steps` later. As long
    as that is what config.json says, the result is the same, so one command starts an extension and
    continues it after an interruption, and extends the run only once.

    Args:
        workdir: run directory.
        num_steps: length of the extension.
        config: other fields, such as those of the schedule; by default the run's own.

    Raises:
        ConfigError: there is no run, the config breaks a rule, or the extension is not longer than
            its warm-up.
        RunError: the run is not finished.
    """
    saved = load_config(workdir / "config.json")
    last = max(list_steps(workdir), default=0)
    start, end = saved.training.schedule_start, saved.training.steps
    is_under_way = start > 0 and (end == start + num_steps or last == start)
    if not is_under_way:
        if last < end:
            raise RunError(
                f"{workdir} is not finished: it holds checkpoint {last} of training.steps={end}; "
                "continue it to its end before --extend"
            )
        start = last
    elif last >= end:
        _log.info(
            "%s has been extended by %d steps; to extend it as much again, leave out --extend and "
            "give --config, --config.training.schedule_start=%d and --config.training.steps=%d",
            workdir, num_steps, last, last + num_steps,
        )  # fmt: skip
    chosen = saved if config is None else config
    warms_up = chosen.training.schedule in CHOICES["training.schedule"]  # a registered one may not
    if warms_up and num_steps <= chosen.training.warmup_steps:
        raise ConfigError(
            f"--extend={num_steps}: the learning rate would only rise, over training.warmup_steps="
            f"{chosen.training.warmup_steps}; give more steps, or a shorter warm-up"
        )
    training = dataclasses.replace(chosen.training, schedule_start=start, steps=start + num_steps)
    return validate(dataclasses.replace(chosen, training=training))
