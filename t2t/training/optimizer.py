"""The optimiser. Its state and updates are sharded over the mesh axis `data`, as the batch is.

Data parallelism replicates the parameters, and every replica would compute the same update. Instead
each device computes one shard of the update, and the new parameters are gathered (Xu et al. 2020;
stage 1 of ZeRO):

    updates, opt_state = optimizer.update(gradient, opt_state, params)  # both sharded over `data`
    params = apply_updates(params, updates, where=finite)  # gathered again
"""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int

from t2t.config.fields import Config
from t2t.config.variants import CHOICES, find_variant
from t2t.model.interface import Params
from t2t.runtime.mesh import reshard_like, shard_over_data
from t2t.training.muon import make_muon
from t2t.training.schedule import make_schedule


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Section 5.3: Adam, or Muon or a registered optimiser (`config/variants.py`), with a schedule.

    With `training.clip_norm`, gradients are clipped before the optimiser sees them.
    """
    training = config.training
    schedule = make_schedule(training, config.model.d_model)
    adam = optax.adam(schedule, b1=training.adam_b1, b2=training.adam_b2, eps=training.adam_eps)
    optimizer: optax.GradientTransformation
    match training.optimizer:
        case "adam":
            optimizer = adam
        case "muon":
            is_registered = config.model.feed_forward not in CHOICES["model.feed_forward"]
            optimizer = make_muon(schedule, adam, registered_feed_forward=is_registered)
        case other:
            optimizer = find_variant("training.optimizer", other)(training, schedule)
    if training.clip_norm:
        optimizer = optax.chain(optax.clip_by_global_norm(training.clip_norm), optimizer)
    return shard_update(optimizer)


def shard_update(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns the optimiser with its state and updates sharded over `data` (`shard_over_data`)."""

    def init(params: Params) -> optax.OptState:
        return optimizer.init(jax.tree.map(shard_over_data, params))

    def update(
        gradient: Params, state: optax.OptState, params: Params
    ) -> tuple[Params, optax.OptState]:
        gradient, params = jax.tree.map(shard_over_data, (gradient, params))
        updates, state = optimizer.update(gradient, state, params)
        return updates, state

    return optax.GradientTransformation(init, update)


def apply_updates(params: Params, updates: Params, where: Bool[Array, ""]) -> Params:
    """Returns params + updates if `where` is True, else params.

    The sum is sharded as `updates`, the result as `params`.
    """
    old = jax.tree.map(reshard_like, params, updates)
    new = optax.tree.where(where, optax.apply_updates(old, updates), old)
    gathered: Params = jax.tree.map(reshard_like, new, params)
    return gathered


def start_average(params: Params) -> Params:
    """Returns the moving average before the first update: a copy sharded over `data`."""
    average: Params = jax.tree.map(lambda x: jnp.copy(shard_over_data(x)), params)
    return average


def update_average(
    average: Params, params: Params, decay: float, updates: Int[Array, ""], where: Bool[Array, ""]
) -> Params:
    """Returns average + (1 - d) * (params - average) if `where` is True, else the average.

    d = min(decay, (1 + t) / (10 + t)) for update t from 1 (`updates` counts those before it), so
    that the average soon forgets the initial parameters. Computed sharded over `data`.
    """
    t = updates.astype(jnp.float32) + 1
    rest = 1 - jnp.minimum(decay, (1 + t) / (10 + t))

    def update(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(where, old + rest * (reshard_like(new, old) - old), old)

    updated: Params = jax.tree.map(update, average, params)
    return updated
