"""Label-smoothed cross-entropy for GPUs, which computes the softmax once for two products.

For logits z, the loss is logsumexp(z) minus the expected logit under the smoothed targets. The
expected logit needs no logits: it is `hidden` times an expected row of the table, and JAX
differentiates it. `sum_normalizers` is the other part.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t.model.precision import einsum
from t2t.runtime.mesh import spec

# With respect to hidden, table and weights.
Gradients = tuple[Float[Array, "B T D"], Float[Array, "V D"], None]
Residuals = tuple[Float[Array, "B T D"], Float[Array, "B T V"], Float[Array, "B T D"]]


def smoothed_cross_entropy(
    hidden: Float[Array, "B T D"],
    table: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    smoothing: float,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """As `t2t.training.loss.smoothed_cross_entropy`; only `hidden` and `table` have gradients."""
    whole = spec("vocabulary", None)
    table = table if whole is None else jax.sharding.reshard(table, whole)
    target_rows = table.at[targets].get(out_sharding=spec("batch", None, None))
    expected_row = (1 - smoothing) * target_rows + smoothing * table.mean(axis=0)
    expected_logits = jnp.sum(hidden.astype(jnp.float32) * expected_row, axis=-1)
    normalizers = sum_normalizers(hidden, table, weights)
    return normalizers - jnp.sum(expected_logits * weights), jnp.sum(weights)


@jax.custom_vjp
def sum_normalizers(
    hidden: Float[Array, "B T D"], table: Float[Array, "V D"], weights: Float[Array, "B T"]
) -> Float[Array, ""]:
    """The sum of weight * logsumexp(hidden table^T) over all positions.

    exp(logits) is stored in the dtype of `hidden`. Its product with the table and a column of ones
    gives the gradient with respect to `hidden`, and the sums over V. A sum is a factor of its
    position, so the gradient with respect to `table` divides `hidden` by it instead of the softmax.
    """
    return _forward(hidden, table, weights)[0]


def _forward(
    hidden: Float[Array, "B T D"], table: Float[Array, "V D"], weights: Float[Array, "B T"]
) -> tuple[Float[Array, ""], Residuals]:
    rounded = table.astype(hidden.dtype)
    logits = einsum("BTD,VD->BTV", hidden, rounded, out_sharding=spec("batch", None, "vocabulary"))
    largest = logits.max(axis=-1, keepdims=True)
    exp_logits = jnp.exp((logits - largest).astype(jnp.float32)).astype(hidden.dtype)
    sums = einsum(
        "BTV,VE->BTE",
        exp_logits,
        # Eight columns of ones, because XLA pads the width of a bfloat16 product to eight anyway.
        jnp.concatenate([rounded, jnp.ones_like(rounded[:, :8])], axis=1),
        preferred_element_type=jnp.float32,
        out_sharding=spec("batch", None, None),
    )
    normalizers = largest[..., 0].astype(jnp.float32) + jnp.log(sums[..., -1])
    factors = (weights / sums[..., -1])[..., None]
    hidden_gradient = sums[..., : table.shape[1]] * factors
    scaled = hidden * factors
    residuals = hidden_gradient.astype(hidden.dtype), exp_logits, scaled.astype(hidden.dtype)
    return jnp.sum(normalizers * weights), residuals


def _backward(residuals: Residuals, cotangent: Float[Array, ""]) -> Gradients:
    hidden_gradient, exp_logits, scaled = residuals
    table_gradient = einsum(
        "BTV,BTD->VD",
        exp_logits,
        scaled,
        preferred_element_type=jnp.float32,
        out_sharding=spec("vocabulary", None),
    )
    return hidden_gradient * cotangent.astype(scaled.dtype), table_gradient * cotangent, None


sum_normalizers.defvjp(_forward, _backward)
