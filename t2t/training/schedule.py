"""Learning-rate schedules in the form of `optax.Schedule`: number of updates so far -> rate.

`training.learning_rate` is a factor for noam, and the peak rate for the other built-in schedules.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from t2t.config.fields import TrainingConfig
from t2t.config.variants import call_variant


def noam(d_model: int, warmup_steps: int, factor: float = 1.0) -> optax.Schedule:
    """Equation 3: factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), step from 1."""

    def rate(count: jax.typing.ArrayLike) -> Float[Array, ""]:
        step = jnp.asarray(count, jnp.float32) + 1
        return factor / math.sqrt(d_model) * jnp.minimum(step**-0.5, step * warmup_steps**-1.5)

    return rate


def warm_up(schedule: optax.Schedule, warmup_steps: int) -> optax.Schedule:
    """The schedule after `warmup_steps` updates whose rates rise linearly to its first rate.

    Updates count from 1, as in equation 3: the first has 1 / warmup_steps of that rate.
    """

    def rate(count: jax.typing.ArrayLike) -> Float[Array, ""]:
        rise = (jnp.asarray(count, jnp.float32) + 1) / warmup_steps
        return jnp.asarray(schedule(jnp.maximum(count - warmup_steps, 0))) * jnp.minimum(rise, 1)

    return rate


def cool_down(schedule: optax.Schedule, steps: int, cooldown_steps: int) -> optax.Schedule:
    """The schedule times min(1, (steps - count) / cooldown_steps), at least 0.

    The factor falls linearly over the last `cooldown_steps` of `steps` updates and would be 0 for
    the next one (Zhai et al. 2022, with inverse square root; Hägele et al. 2024, with a constant
    rate). If steps were skipped, there are fewer updates, and the last rates are left out.
    """

    def rate(count: jax.typing.ArrayLike) -> Float[Array, ""]:
        left = (steps - jnp.asarray(count, jnp.float32)) / cooldown_steps
        return jnp.asarray(schedule(count)) * jnp.clip(left, 0, 1)

    return rate


def make_schedule(config: TrainingConfig, d_model: int) -> optax.Schedule:
    """Creates the schedule of a run, which counts updates from `training.schedule_start`.

    If steps before that were skipped, fewer updates were made; then the first rate is used until
    `schedule_start` updates have been made.
    """
    start, steps = config.schedule_start, config.steps - config.schedule_start
    own = dataclasses.replace(config, steps=steps, schedule_start=0)
    schedule = _make_base(own, d_model)
    if config.cooldown_steps:
        schedule = cool_down(schedule, steps, config.cooldown_steps)
    return (lambda count: schedule(jnp.maximum(count - start, 0))) if start else schedule


def _make_base(config: TrainingConfig, d_model: int) -> optax.Schedule:
    """Creates the schedule that `training.schedule` names; built-in ones have linear warm-up.

    The last warm-up update has the peak rate, so with `warmup_steps=1` the first one has. Cosine
    would be 0 for the update after the last.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    match config.schedule:
        case "noam":
            return noam(d_model, warmup, config.learning_rate)
        case "inverse_sqrt":  # the curve of noam, scaled so that its peak is `learning_rate`
            return noam(1, warmup, peak * warmup**0.5)
        case "cosine":
            fall = optax.cosine_decay_schedule(peak, max(config.steps - warmup, 1))
            return warm_up(fall, warmup)
        case "constant":
            return warm_up(optax.constant_schedule(peak), warmup)
        case other:
            return call_variant("training.schedule", other, config, d_model, is_valid=_is_schedule)


def _is_schedule(value: Any) -> bool:
    """Returns whether a value maps a number of updates to a number."""
    try:
        rate = jax.eval_shape(value, jax.ShapeDtypeStruct((), jnp.int32))
    except TypeError:
        return False
    is_array = isinstance(rate, jax.ShapeDtypeStruct)
    return is_array and rate.shape == () and jnp.issubdtype(rate.dtype, jnp.number)
