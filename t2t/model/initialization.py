"""Initial values of parameters, the same on any mesh."""

import math

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float

from t2t.runtime.mesh import spec


def glorot_limit(fan_in: int, fan_out: int) -> float:
    """sqrt(6 / (fan_in + fan_out)), the bound of uniform weights (Glorot and Bengio 2010)."""
    return math.sqrt(6 / (fan_in + fan_out))


def init_uniform(
    key: jax.Array,
    shape: tuple[int, ...],
    limit: float | Float[np.ndarray, "P"],
    *names: str | None,
) -> nnx.Param[jax.Array]:
    """A parameter uniform in +-limit, which may differ along the last dimension.

    `names` are the dimensions' logical names.
    """
    return nnx.Param(
        jax.random.uniform(key, shape, minval=-limit, maxval=limit, out_sharding=spec(*names))
    )


def init_glorot(
    key: jax.Array, shape: tuple[int, ...], fan_in: int, fan_out: int, *names: str | None
) -> nnx.Param[jax.Array]:
    """A parameter uniform within `glorot_limit`; `names` are the dimensions' logical names."""
    return init_uniform(key, shape, glorot_limit(fan_in, fan_out), *names)
