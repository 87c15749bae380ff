"""Label-smoothed cross-entropy for GPUs: exp(logits) is stored once, for loss and gradients.

For logits z, the loss is logsumexp(z) - (1 - smoothing) * z[target] - smoothing * mean(z). The
logits have the dtype of `hidden`, the target's as well, so that no likelihood exceeds 1. The last
part needs no logits: it is `hidden` times the mean row of the table, and JAX differentiates it.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t.model.linear import einsum
from t2t.ops.chunked_loss import pick_targets
from t2t.runtime.mesh import RULES, reshard, spec

Hidden = Float[Array, "B T D"]
Residuals = tuple[Hidden, Float[Array, "B T V"], Hidden, Hidden]


def smoothed_cross_entropy(
    hidden: Float[Array, "B T D"],
    table: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    smoothing: float,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """As `t2t.model.loss.smoothed_cross_entropy`; only `hidden` and `table` have gradients."""
    mean_logits = jnp.sum(hidden.astype(jnp.float32) * reshard(table.mean(axis=0), None), axis=-1)
    losses = sum_losses(hidden, table, targets, weights, 1 - smoothing)
    return losses - smoothing * jnp.sum(mean_logits * weights), jnp.sum(weights)


def sum_losses(
    hidden: Float[Array, "B T D"],
    table: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    share: float,
) -> Float[Array, ""]:
    """The sum of weight * (logsumexp(z) - share * z[target]) over all positions.

    exp(z) is stored in the dtype of `hidden`. Its product with the table and a column of ones gives
    the gradient with respect to `hidden`, and the sums over V. The gradient with respect to `table`
    needs softmax(z) = exp(z) / sum. Each position has one sum, so `hidden` [B, T, D] is divided by
    it, and the larger exp(z) [B, T, V] is used as it is.
    """

    @jax.custom_vjp
    def run(hidden: Float[Array, "B T D"], table: Float[Array, "V D"]) -> Float[Array, ""]:
        return forward(hidden, table)[0]

    def forward(
        hidden: Float[Array, "B T D"], table: Float[Array, "V D"]
    ) -> tuple[Float[Array, ""], Residuals]:
        rounded = reshard(table.astype(hidden.dtype), "vocabulary", None)  # gathers D
        sharding = spec("batch", None, "vocabulary")
        logits = einsum("BTD,VD->BTV", hidden, rounded, out_sharding=sharding)
        largest = logits.max(axis=-1, keepdims=True)
        exp_logits = jnp.exp((logits - largest).astype(jnp.float32)).astype(hidden.dtype)
        sums = einsum(
            "BTV,VE->BTE",
            exp_logits,
            # Eight columns of ones: XLA pads the width of a bfloat16 product to a multiple of 8.
            jnp.concatenate([rounded, jnp.ones_like(rounded[:, :8])], axis=1),
            preferred_element_type=jnp.float32,
            out_sharding=spec("batch", None, None),
        )
        totals = sums[..., -1:]
        target_rows = rounded.at[targets].get(out_sharding=spec("batch", None, None))
        target_rows = target_rows.astype(jnp.float32)  # times `share` it would be rounded
        target_logits = pick_targets(logits, targets)  # rounded, as those of the sum
        normalizers = largest.astype(jnp.float32) + jnp.log(totals)
        loss = jnp.sum((normalizers[..., 0] - share * target_logits) * weights)
        averages = sums[..., : table.shape[1]] / totals
        hidden_gradient = (averages - share * target_rows) * weights[..., None]
        scaled = (hidden * (weights[..., None] / totals)).astype(hidden.dtype)
        return loss, (hidden_gradient.astype(hidden.dtype), exp_logits, scaled, hidden)

    def backward(
        residuals: Residuals, cotangent: Float[Array, ""]
    ) -> tuple[Float[Array, "B T D"], Float[Array, "V D"]]:
        hidden_gradient, exp_logits, scaled, hidden = residuals
        at_targets = -share * hidden.astype(jnp.float32) * weights[..., None]
        table_gradient = _sum_over_positions(exp_logits, scaled, targets, at_targets)
        return hidden_gradient * cotangent.astype(hidden.dtype), table_gradient * cotangent

    run.defvjp(forward, backward)
    return run(hidden, table)


def _sum_over_positions(
    exp_logits: Float[Array, "B T V"],
    scaled: Float[Array, "B T D"],
    targets: Int[Array, "B T"],
    at_targets: Float[Array, "B T D"],
) -> Float[Array, "V D"]:
    """The product exp_logits^T `scaled` over all positions, plus `at_targets` in the targets' rows.

    Each device adds up both for its positions and its rows of the table. So there is one sum over
    devices instead of two.
    """

    def add_up(
        exp_logits: Array, scaled: Array, targets: Array, at_targets: Array, first: Array | int = 0
    ) -> Array:
        total = einsum("BTV,BTD->VD", exp_logits, scaled, preferred_element_type=jnp.float32)
        rows = targets - first
        rows = jnp.where(rows < 0, len(total), rows)  # on another device: out of bounds, dropped
        return total.at[rows].add(at_targets, mode="drop")

    if spec() is None:
        return add_up(exp_logits, scaled, targets, at_targets)
    vocabulary, width = RULES["vocabulary"], RULES["d_model"]

    def add_up_shard(exp_logits: Array, scaled: Array, targets: Array, at_targets: Array) -> Array:
        first = jax.lax.axis_index(vocabulary) * exp_logits.shape[2]
        total = add_up(exp_logits, scaled, targets, at_targets, first)
        shard = jax.lax.psum_scatter(total, width, scatter_dimension=1, tiled=True)
        return jax.lax.psum(shard, [axis for axis in RULES["batch"] if axis != width])

    out_specs = spec("vocabulary", "d_model")
    return jax.shard_map(add_up_shard, out_specs=out_specs, check_vma=False)(
        exp_logits, scaled, targets, at_targets
    )
