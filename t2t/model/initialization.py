"""Random initial values of parameters, independent of the mesh."""

import math

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float

from t2t.runtime.mesh import spec


def glorot_limit(fan_in: int, fan_out: int) -> float:
    """Returns sqrt(6 / (fan_in + fan_out)), the limit of uniform weights (Glorot, Bengio 2010)."""
    return math.sqrt(6 / (fan_in + fan_out))


def init_uniform(
    key: jax.Array,
    shape: tuple[int, ...],
    limit: float | Float[np.ndarray, "P"],
    *names: str | None,
) -> nnx.Param[jax.Array]:
    """Creates a parameter drawn uniformly from [-limit, limit).

    An array `limit` gives each index of the last dimension its own limit. `names` are the logical
    names of the dimensions (`t2t.runtime.mesh.RULES`).
    """
    return nnx.Param(
        jax.random.uniform(key, shape, minval=-limit, maxval=limit, out_sharding=spec(*names))
    )


def init_glorot(
    key: jax.Array, shape: tuple[int, ...], fan_in: int, fan_out: int, *names: str | None
) -> nnx.Param[jax.Array]:
    """As `init_uniform`, with the limit `glorot_limit(fan_in, fan_out)`."""
    return init_uniform(key, shape, glorot_limit(fan_in, fan_out), *names)
