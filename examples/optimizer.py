"""Optimisers: one of matrices, and one that is evaluated at other parameters.

python -m t2t.train ... --config.plugins=examples.optimizer
    --config.training.optimizer=row_normalized
python -m t2t.train ... --config.plugins=examples.optimizer
    --config.training.optimizer=averaged_lion
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import tree_map_with_path

from t2t.config import Config
from t2t.config.variants import register
from t2t.model.parameters import find_name
from t2t.ops.build_model import Parameter
from t2t.training.optimizer import Optimizer
from t2t.training.parameter_groups import label_matrices

Parameters = Mapping[str, Parameter]


@register("training.optimizer", "row_normalized")
def row_normalized(
    config: Config, schedule: optax.Schedule, parameters: Parameters
) -> optax.GradientTransformation:
    """Momentum in which the weights of each output have one length; Adam for the rest.

    It is the steepest descent in the norm RMS to infinity (Pethick et al. 2025, table 2); Muon's is
    in the spectral norm.
    """

    def normalize(path: Sequence[Any], momentum: jax.Array) -> jax.Array:
        inputs, _ = parameters[find_name(path)].matrix or (0, 1)
        mean_square = jnp.mean(momentum * momentum, axis=inputs, keepdims=True)
        return 0.2 * momentum * jax.lax.rsqrt(mean_square + 1e-16)  # about as large as Adam's

    of_matrices = optax.chain(
        optax.trace(0.95, nesterov=True),
        optax.stateless(lambda momenta, _: tree_map_with_path(normalize, momenta)),
        optax.scale_by_learning_rate(schedule),
    )
    adam = optax.adam(schedule, config.training.adam_b1, config.training.adam_b2)
    labels = label_matrices(parameters, "row_normalized", "adam")
    return optax.partition({"row_normalized": of_matrices, "adam": adam}, labels)


@register("training.optimizer", "averaged_lion")
def averaged_lion(config: Config, schedule: optax.Schedule, _: Parameters) -> Optimizer:
    """Lion (Chen et al. 2023) that trains its last parameters, and recommends their mean."""
    lion = optax.lion(schedule, weight_decay=config.training.weight_decay)

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
