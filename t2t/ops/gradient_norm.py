"""The norm of a gradient, for GPUs: arrays of the same shape and sharding are summed together."""

from collections import defaultdict

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2t.model.parameters import Params


def norm(gradient: Params) -> Float[Array, ""]:
    """As `optax.tree.norm`.

    XLA for GPUs fuses the stack with the sum, so the arrays of all layers take one kernel, where a
    sum for each parameter takes two. XLA for CPUs writes the stack to memory, which made it ten
    times as slow there (benchmarks/LOG.md).
    """
    groups = defaultdict(list)
    for array in jax.tree.leaves(gradient):
        groups[jax.typeof(array)].append(array)
    return jnp.sqrt(sum(jnp.sum(jnp.square(jnp.stack(group))) for group in groups.values()))
