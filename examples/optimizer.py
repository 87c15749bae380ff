"""An optimiser that is evaluated at other parameters: Lion, at the average of its parameters.

python -m t2t.train ... --config.plugins=examples.optimizer
    --config.training.optimizer=averaged_lion
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from t2t.config import TrainingConfig
from t2t.config.variants import register
from t2t.training.optimizer import Optimizer


@register("training.optimizer", "averaged_lion")
def averaged_lion(training: TrainingConfig, schedule: optax.Schedule) -> Optimizer:
    """Lion (Chen et al. 2023) that trains its last parameters, and recommends their mean."""
    lion = optax.lion(schedule, weight_decay=training.weight_decay)

    def init(params: Any) -> Any:
        # A copy, since a training step donates the buffers of the parameters.
        return lion.init(params), jax.tree.map(jnp.copy, params), jnp.zeros(())

    def update(gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
        own, mean, count = state
        updates, own = lion.update(gradient, own, params)
        new = optax.apply_updates(params, updates)
        mean = jax.tree.map(lambda old, x: old + (x - old) / (count + 1), mean, new)
        return updates, (own, mean, count + 1)

    return Optimizer(init, update, lambda state, params: state[1])
