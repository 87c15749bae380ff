"""The L2 norm of a gradient, for GPUs: arrays of equal shape and sharding are summed together."""

from collections import defaultdict

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2t.model.interface import Params


def norm(gradient: Params) -> Float[Array, ""]:
    """As `optax.tree.norm`.

    XLA for GPUs fuses the stack with the sum, so the arrays of all layers take one kernel. XLA for
    CPUs writes the stack to memory, which makes it ten times slower there than a sum for each.
    """
    groups = defaultdict(list)
    for array in jax.tree.leaves(gradient):
        groups[jax.typeof(array)].append(array)
    return jnp.sqrt(sum(jnp.sum(jnp.square(jnp.stack(group))) for group in groups.values()))
