"""The losses of training: a table of functions (config, model, batch, key) -> sums.

A registered loss (`config/variants.py`) is a function (model, batch, key), or a class that is
created with the `Config` and whose instances are called so. It may name other runs, its teachers
(`teachers.py`); their models are further arguments, behind the key. It may also return figures,
sums by name that are logged apart.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2t.config.fields import Config, TrainingConfig, show
from t2t.config.files import load_config
from t2t.config.variants import (
    check_call,
    describe_value,
    find_variant,
    list_teachers,
    make_variant_error,
)
from t2t.data.batch import DeviceBatch
from t2t.model.interface import Model
from t2t.model.parameters import Params
from t2t.model.stack import Auxiliary
from t2t.ops.build_model import abstract_model
from t2t.runtime.mesh import spec
from t2t.training.checkpoint_names import split_checkpoint_name
from t2t.training.scheduled_sampling import sample_inputs

# Sums of losses and of weights, and what layers return beside their output, with the figures of a
# registered loss (`Auxiliary`).
Sums = tuple[Float[Array, ""], Float[Array, ""], Auxiliary]

# Figures that `report.py` writes for every loss; a loss names its own figures differently.
REPORTED_FIGURES = (
    "loss", "learning_rate", "gradient_norm", "tokens_per_second", "padding_share",
    "data_wait_share", "skipped", "compile_seconds",
)  # fmt: skip


class Loss(NamedTuple):
    """The loss of a config."""

    sum_losses: Callable[..., Sums]  # called as (model, batch, key, *teachers)
    teachers: tuple[str, ...] = ()  # names of runs, each as RUN or RUN:CHECKPOINT


class Teacher(NamedTuple):
    """A model as the training state holds it."""

    structure: nnx.GraphDef[Model]
    params: Params


def make_loss(config: Config) -> Loss:
    """Returns the loss that `training.loss`, `r_drop` and `scheduled_sampling` ask for.

    Raises:
        ConfigError: a registered loss does not take the arguments of one.
    """
    training = config.training
    name = "r_drop" if training.r_drop else training.loss
    if name in LOSSES:
        loss = Loss(functools.partial(LOSSES[name], training))
    else:
        loss = _make_registered(config)
    if probability := training.scheduled_sampling:
        sum_losses = functools.partial(scheduled_sampling, loss.sum_losses, probability)
        return loss._replace(sum_losses=sum_losses)
    return loss


def abstract_teachers(config: Config, *vocab_sizes: int) -> tuple[Teacher, ...]:
    """Returns the teachers with a `jax.ShapeDtypeStruct` in place of each parameter.

    Raises:
        ConfigError: a run has no readable config.
    """
    runs = [
        split_checkpoint_name(name, name_field(config))[0] for name in make_loss(config).teachers
    ]
    models = [load_config(run / "config.json").model for run in runs]
    return tuple(Teacher(*abstract_model(model, *vocab_sizes)) for model in models)


def name_field(config: Config) -> str:
    """Returns the words by which messages name a teacher of the loss."""
    return f"training.loss={config.training.loss!r}, teacher"


def cross_entropy(
    config: TrainingConfig, model: Model, batch: DeviceBatch, key: jax.Array | None = None
) -> Sums:
    """Section 5.4: label-smoothed cross-entropy under teacher forcing.

    A key switches dropout on.
    """
    hidden, table, targets, weights, auxiliary = model.predict(batch, key)
    smoothed_cross_entropy = model.policy.smoothed_cross_entropy
    sums = smoothed_cross_entropy(hidden, table, targets, weights, config.label_smoothing)
    return *sums, auxiliary


def r_drop(config: TrainingConfig, model: Model, batch: DeviceBatch, key: jax.Array) -> Sums:
    """R-Drop (Liang et al. 2021): two passes of each row with different dropout masks.

    As in the paper, the model gets one batch that holds each row twice. A dropout mask depends on
    the index of the row, so the two copies of a row have different masks. The copies are
    neighbours, so no rows move between devices. Two calls of the model, with a key each, would
    compile longer and compute no faster.
    """
    hidden, table, targets, weights, auxiliary = model.predict(repeat_rows(batch, 2), key)
    passes, targets, weights = (group_rows(x, 2) for x in (hidden, targets, weights))
    r_drop_cross_entropy = model.policy.r_drop_cross_entropy
    sums = r_drop_cross_entropy(
        passes[:, 0], passes[:, 1], table, targets[:, 0], weights[:, 0],
        config.label_smoothing, config.r_drop,
    )  # fmt: skip
    return *sums, auxiliary


def scheduled_sampling(
    loss: Callable[..., Sums], probability: float,
    model: Model, batch: DeviceBatch, key: jax.Array, *teachers: Model,
) -> Sums:  # fmt: skip
    """Computes a loss on target inputs that the model predicted in part (`sample_inputs`)."""
    sampling_key, key = jax.random.split(key)
    return loss(model, sample_inputs(model, batch, probability, sampling_key), key, *teachers)


LOSSES: dict[str, Callable[..., Sums]] = {
    "cross_entropy": cross_entropy,
    "r_drop": r_drop,  # chosen by its weight, `training.r_drop`
}


def _make_registered(config: Config) -> Loss:
    field, name = "training.loss", config.training.loss
    loss = find_variant(field, name)
    loss = loss(config) if isinstance(loss, type) else loss
    teachers = list_teachers(name, loss)
    check_call(field, name, loss, *[None] * 3, *teachers)

    names: list[str] | None = None  # of the figures, once a call has returned them

    def sum_losses(*arguments: Any) -> Sums:
        nonlocal names
        returned = loss(*arguments)
        parts = returned if isinstance(returned, tuple) else (returned,)
        if len(parts) > 4 or [*map(jnp.shape, parts[:2])] != [(), ()]:
            found = ", ".join(map(describe_value, parts))
            raise make_variant_error(field, name, f"returned {found or 'nothing'}")
        losses, weights, *others = parts
        auxiliary, figures = (*others, {}, {})[:2]
        if fault := _find_fault(figures, auxiliary):
            raise make_variant_error(field, name, f"returned {fault}")
        names = sorted(figures) if names is None else names
        if names != sorted(figures):
            fault = f"returned the figures {sorted(figures)}, but {names} before"
            raise make_variant_error(field, name, fault)
        sums = jnp.float32(losses), jnp.float32(weights)  # from arrays or numbers
        return *sums, auxiliary | {n: jnp.float32(x) for n, x in figures.items()}

    return Loss(sum_losses, teachers)


def _find_fault(figures: Any, auxiliary: Auxiliary) -> str:
    """Says what is wrong with the figures that a loss returns; empty: nothing."""
    if not isinstance(figures, Mapping):
        return f"the figures {show(figures)}, no dictionary of sums by name"
    for name, value in figures.items():
        if not (isinstance(name, str) and name.isidentifier()):
            return f"a figure of the name {name!r}; use letters, digits and _"
        if name in (*REPORTED_FIGURES, *auxiliary):
            return f"a figure of the name {name!r}, which another has; choose another name"
        if jnp.shape(value) != ():
            return f"the figure {name!r} as {describe_value(value)}; return its sum"
    return ""


def add_auxiliary_loss(
    loss: Float[Array, ""], weights: Float[Array, ""], auxiliary: Auxiliary
) -> Sums:
    """Returns the sums with the auxiliary loss added once for each predicted token."""
    others = dict(auxiliary)
    own = others.pop("loss", None)
    return loss if own is None else loss + weights * own, weights, others


def repeat_rows(batch: DeviceBatch, count: int) -> DeviceBatch:
    """Returns a batch with `count` copies of each row, next to each other."""

    def repeat(rows: jax.Array) -> jax.Array:
        copies = jnp.stack([rows] * count, axis=1)
        shape = (count * len(rows), rows.shape[1])
        return jnp.reshape(copies, shape, out_sharding=spec("batch", None))

    return jax.tree.map(repeat, batch)


def group_rows(rows: jax.Array, count: int) -> jax.Array:
    """Returns the rows of `repeat_rows` as [rows, copies, ...]."""
    shape = (len(rows) // count, count, *rows.shape[1:])
    return jnp.reshape(rows, shape, out_sharding=spec("batch", *[None] * rows.ndim))
