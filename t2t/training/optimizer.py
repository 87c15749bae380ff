"""The optimiser. Its state and updates are sharded over the mesh axis `data`, as the batch is.

Some optimisers are evaluated at other parameters than those at which gradients are computed: an
`Optimizer` has a function for them, which training applies before validation and checkpoints.

Data parallelism replicates the parameters, and every replica would compute the same update. Instead
each device computes one shard of the update, and the new parameters are gathered (Xu et al. 2020;
stage 1 of ZeRO):

    updates, opt_state = optimizer.update(gradient, opt_state, params)  # both sharded over `data`
    params = apply_updates(params, updates, where=finite)  # gathered again
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import optax
from jaxtyping import Array, Bool

from t2t.config.fields import Config, TrainingConfig
from t2t.config.variants import CHOICES, call_variant
from t2t.model.interface import Params
from t2t.ops.build_model import find_matrices
from t2t.runtime.mesh import reshard_like, shard_over_data
from t2t.training.muon import make_muon
from t2t.training.schedule import make_schedule


class Optimizer(NamedTuple):
    """An `optax.GradientTransformation`, with the parameters that it is evaluated at."""

    init: Callable[[Params], optax.OptState]
    update: Callable[[Params, optax.OptState, Params], tuple[Params, optax.OptState]]
    # Maps the state and the parameters to those that validation scores and checkpoints offer to all
    # programs. None: the parameters themselves.
    evaluation_params: Callable[[optax.OptState, Params], Params] | None = None


def make_optimizer(config: Config) -> Optimizer:
    """Section 5.3: Adam, or another optimiser that the config names, with a schedule.

    A registered one (`config/variants.py`) is an `optax.GradientTransformation` or an `Optimizer`.
    With `training.clip_norm`, gradients are clipped before the optimiser sees them.
    """
    training = config.training
    schedule = make_schedule(training, config.model.d_model)
    b1, b2, eps = training.adam_b1, training.adam_b2, training.adam_eps
    adam = optax.adam(schedule, b1, b2, eps)
    optimizer: optax.GradientTransformation | Optimizer
    match training.optimizer:
        case "adam":
            optimizer = adam
        case "nadamw":
            optimizer = optax.nadamw(schedule, b1, b2, eps, weight_decay=training.weight_decay)
        case "schedule_free_adamw":
            optimizer = _make_schedule_free(training, schedule)
        case "muon":
            optimizer = make_muon(schedule, adam, find_matrices(config.model))
        case _:
            optimizer = _call_registered(training, schedule)
    own = Optimizer(*optimizer)
    return shard_update(_clip(own, training.clip_norm) if training.clip_norm else own)


def _call_registered(
    training: TrainingConfig, schedule: optax.Schedule
) -> optax.GradientTransformation | Optimizer:
    return call_variant(
        "training.optimizer", training.optimizer, training, schedule,
        is_valid=lambda value: isinstance(value, optax.GradientTransformation | Optimizer)
        and all(each is None or callable(each) for each in value),
    )  # fmt: skip


def describe_optimizer(config: Config, optimizer: Optimizer, params: Params) -> list[str]:
    """Says in what an optimiser differs from those whose rate and parameters the log shows.

    Args:
        config: config of the run.
        optimizer: its optimiser.
        params: arrays, or their shapes.
    """
    training, lines = config.training, []
    if optimizer.evaluation_params:
        lines.append(
            f"training.optimizer={training.optimizer!r} is evaluated at other parameters than "
            "those that it trains: train/loss is of the latter, validation scores and checkpoints "
            "are of the former"
        )
    if training.optimizer not in CHOICES["training.optimizer"]:
        used = []
        schedule = make_schedule(training, config.model.d_model)

        def record(count: jax.typing.ArrayLike) -> jax.typing.ArrayLike:
            used.append(count)
            return schedule(count)

        own = _call_registered(training, record)
        state = jax.eval_shape(own.init, params)
        jax.eval_shape(own.update, params, state, params)
        if not used:
            lines.append(
                f"training.optimizer={training.optimizer!r} has a rate of its own: the rate in the "
                f"log is that of training.schedule={training.schedule!r}, which it does not use"
            )
    return lines


def _make_schedule_free(training: TrainingConfig, schedule: optax.Schedule) -> Optimizer:
    """Schedule-Free AdamW (Defazio et al. 2024, https://arxiv.org/abs/2405.15682).

    Training holds y = (1 - beta) z + beta x, at which gradients are computed. AdamW without
    momentum moves z. x is the average of all z so far, each weighted by the square of the largest
    learning rate until then, and it is what is evaluated.
    """
    optimizer = optax.contrib.schedule_free_adamw(
        schedule,
        b1=training.adam_b1,
        b2=training.adam_b2,
        eps=training.adam_eps,
        weight_decay=training.weight_decay,
    )
    return Optimizer(optimizer.init, optimizer.update, optax.contrib.schedule_free_eval_params)


def _clip(optimizer: Optimizer, norm: float) -> Optimizer:
    """Returns the optimiser for gradients that are first clipped to this global norm."""
    init, update = optax.chain(
        optax.clip_by_global_norm(norm),
        optax.GradientTransformation(optimizer.init, optimizer.update),
    )
    own = optimizer.evaluation_params
    return Optimizer(init, update, own and (lambda state, params: own(state[1], params)))


def shard_update(optimizer: Optimizer) -> Optimizer:
    """Returns the optimiser with its state and updates sharded over `data` (`shard_over_data`).

    Evaluation parameters are computed sharded, too, and gathered as the parameters are.
    """

    def init(params: Params) -> optax.OptState:
        return optimizer.init(jax.tree.map(shard_over_data, params))

    def update(
        gradient: Params, state: optax.OptState, params: Params
    ) -> tuple[Params, optax.OptState]:
        gradient, params = jax.tree.map(shard_over_data, (gradient, params))
        return optimizer.update(gradient, state, params)

    own = optimizer.evaluation_params
    if own is None:
        return Optimizer(init, update)

    @jax.jit
    def evaluation_params(state: optax.OptState, params: Params) -> Params:
        sharded = own(state, jax.tree.map(shard_over_data, params))
        return jax.tree.map(reshard_like, sharded, params)

    return Optimizer(init, update, evaluation_params)


def apply_updates(params: Params, updates: Params, where: Bool[Array, ""]) -> Params:
    """Returns params + updates if `where` is True, else params.

    The sum is sharded as `updates`, the result as `params`.
    """
    old = jax.tree.map(reshard_like, params, updates)
    new = optax.tree.where(where, optax.apply_updates(old, updates), old)
    return jax.tree.map(reshard_like, new, params)
