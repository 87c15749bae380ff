"""Averages of parameters: of several checkpoints (section 6.1), and the moving average (EMA)."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from t2t.model.parameters import Params
from t2t.runtime.mesh import reshard_like, shard_over_data


def average(checkpoints: Iterable[Params]) -> Params:
    """Returns the mean of checkpoints of NumPy arrays; three of them are in memory at a time."""
    rest = iter(checkpoints)
    total, count = next(rest), 1
    for params in rest:
        total, count = jax.tree.map(np.add, total, params), count + 1
    return jax.tree.map(lambda x: x / count, total)


def start_average(params: Params) -> Params:
    """Returns the moving average before the first update: a copy sharded over `data`."""
    return jax.tree.map(lambda x: jnp.copy(shard_over_data(x)), params)


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

    return jax.tree.map(update, average, params)
