"""Rotary embeddings whose cosine and sine are computed once.

XLA computes them again for each row and head, inside of the loop that multiplies with them.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t.model.position import rotary_angles, rotate_pairs


def rotate(x: Float[Array, "B T H K"], positions: Int[Array, "T"]) -> Float[Array, "B T H K"]:
    """As `t2t.model.position.rotate`."""
    angles = rotary_angles(positions, x.shape[-1])
    cos, sin = jax.lax.optimization_barrier((jnp.cos(angles), jnp.sin(angles)))
    return rotate_pairs(x, cos, sin)
