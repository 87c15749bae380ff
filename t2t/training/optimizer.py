"""The optimiser, its update shared among copies of the parameters, and how an update is applied.

The update of parameters that several devices hold is the same on each of them. So each device
computes its share of it, and the new parameters are gathered (Xu et al. 2020; ZeRO's first stage):

    updates, opt_state = optimizer.update(gradient, opt_state, params)  # in shares, as opt_state
    params = apply_updates(params, updates, where=finite)  # cut as before
"""

import jax
import optax
from jaxtyping import Array, Bool

from t2t.config.fields import Config
from t2t.config.variants import find_variant
from t2t.model.interface import Params
from t2t.runtime.mesh import reshard_like, shard_over_data
from t2t.training.schedule import make_schedule


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Section 5.3: Adam, or a registered optimiser, under the schedule; clipping comes first."""
    training = config.training
    schedule = make_schedule(training, config.model.d_model)
    optimizer: optax.GradientTransformation
    match training.optimizer:
        case "adam":
            optimizer = optax.adam(
                schedule, b1=training.adam_b1, b2=training.adam_b2, eps=training.adam_eps
            )
        case other:
            optimizer = find_variant("training.optimizer", other)(training, schedule)
    if training.clip_norm:
        optimizer = optax.chain(optax.clip_by_global_norm(training.clip_norm), optimizer)
    return update_in_shares(optimizer)


def update_in_shares(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimiser with its state and updates sharded over `data`, too (`shard_over_data`)."""

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
    """params + updates, or params unless `where`; added in shares, then cut as `params` are."""
    old = jax.tree.map(reshard_like, params, updates)
    new = optax.tree.where(where, optax.apply_updates(old, updates), old)
    gathered: Params = jax.tree.map(reshard_like, new, params)
    return gathered
