"""Section 3.4: token embeddings, and output logits from the same table."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2t.model.matmul import einsum
from t2t.runtime.mesh import spec


class Embedding(nnx.Module):
    """A table with one vector for each token of a vocabulary; also computes logits from it."""

    def __init__(self, vocab_size: int, d_model: int, key: jax.Array):
        """Draws entries from a normal distribution with standard deviation d_model^-0.5."""
        sharding = spec("vocabulary", "d_model")
        self.table = nnx.Param(
            d_model**-0.5 * jax.random.normal(key, (vocab_size, d_model), out_sharding=sharding)
        )

    def look_up(self, ids: Int[Array, "B T"], dtype: jnp.dtype) -> Float[Array, "B T D"]:
        """Returns sqrt(d_model) * table[ids]."""
        rows = self.table[...].at[ids].get(out_sharding=spec("batch", None, None))
        return (math.sqrt(rows.shape[-1]) * rows).astype(dtype)

    def project(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Computes the logits x table^T in float32, from operands in the dtype of `x`."""
        return einsum(
            "BTD,VD->BTV",
            x,
            self.table.astype(x.dtype),
            preferred_element_type=jnp.float32,
            out_sharding=spec("batch", None, "vocabulary"),
        )
