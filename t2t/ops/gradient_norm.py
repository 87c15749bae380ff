"""The norm of a gradient, for GPUs: arrays of one shape and sharding are stacked and reduced."""

from collections import defaultdict

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2t.model.parameters import Params


def norm(gradient: Params) -> Float[Array, ""]:
    """As `optax.tree.norm`.

    XLA for GPUs fuses the stack with the sum, so the arrays of all layers take one kernel, where a
    sum for each parameter takes two. XLA for CPUs writes the stack to memory, which is ten times as
    slow (benchmarks/LOG.md), so CPUs use `optax.tree.norm`.
    """
    groups = defaultdict(list)
    for array in jax.tree.leaves(gradient):
        groups[jax.typeof(array)].append(array)
    return jnp.sqrt(sum(jnp.sum(jnp.square(jnp.stack(group))) for group in groups.values()))
