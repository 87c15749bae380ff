"""Label-smoothed cross-entropy for GPUs: exp(logits) is stored once, for loss and gradients.

For logits z, the loss is logsumexp(z) - (1 - smoothing) * z[target] - smoothing * mean(z). The last
part needs no logits: it is `hidden` times the mean row of the table, and JAX differentiates it.

Softmax is usually computed as exp(z - max(z)), so that exp does not overflow. That takes a pass
over all logits for the maximum, and one for exp. Here it is exp(z - SHIFT), where z are the float32
sums of the product: XLA computes it in the kernel that multiplies, and the logits are never written
to memory. If the logsumexp of a position with a weight is more than `REACH` away from `SHIFT`, the
loss is infinite, and training skips the step.
"""

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from t2t.model.linear import einsum
from t2t.runtime.mesh import RULES, reshard, spec

SHIFT = 30.0  # above 0: single logits may be large, but the logsumexp is rarely far below 0
# bfloat16 and float32 hold e^-87 to e^88. This leaves a margin of e^18 for small terms of the sum,
# and for products with small activations.
REACH = 69.0
# Beyond `REACH`, and within bfloat16: exp is finite at positions without weight, too, so that its
# products with 0 are 0.
LARGEST = 80.0
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
    mean_row = reshard(table.sum(axis=0), None) / len(table)
    mean_logits = jnp.sum(hidden.astype(jnp.float32) * mean_row, axis=-1)
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
    partial = jax.typeof(table).sharding.spec.reduced

    @jax.custom_vjp
    def run(hidden: Float[Array, "B T D"], table: Float[Array, "V D"]) -> Float[Array, ""]:
        return forward(hidden, table)[0]

    def forward(
        hidden: Float[Array, "B T D"], table: Float[Array, "V D"]
    ) -> tuple[Float[Array, ""], Residuals]:
        rounded = reshard(table.astype(hidden.dtype), "vocabulary", None)  # gathers D
        logits = einsum(
            "BTD,VD->BTV",
            hidden,
            rounded,
            preferred_element_type=jnp.float32,
            out_sharding=spec("batch", None, "vocabulary"),
        )
        exp_logits = jnp.exp(jnp.minimum(logits - SHIFT, LARGEST)).astype(hidden.dtype)
        sums = einsum(
            "BTV,VE->BTE",
            exp_logits,
            # Eight columns of ones: XLA pads the width of a bfloat16 product to a multiple of 8.
            jnp.concatenate([rounded, jnp.ones_like(rounded[:, :8])], axis=1),
            preferred_element_type=jnp.float32,
            out_sharding=spec("batch", None, None),
        )
        totals = sums[..., -1:]
        shifted = jnp.log(totals)  # -inf or inf if exp was too small or too large
        normalizers = SHIFT + jnp.where(jnp.abs(shifted) < REACH, shifted, jnp.inf)[..., 0]
        target_rows = rounded.at[targets].get(out_sharding=spec("batch", None, None))
        target_rows = target_rows.astype(jnp.float32)  # times `share` it would be rounded
        target_logits = jnp.sum(hidden.astype(jnp.float32) * target_rows, axis=-1)
        # The rounding of exp to bfloat16 could give a likelihood of more than 1.
        normalizers = jnp.maximum(normalizers, target_logits)
        counts = weights != 0
        losses = (normalizers - share * target_logits) * weights
        loss = jnp.sum(jnp.where(counts, losses, 0.0))
        averages = sums[..., : table.shape[1]] / totals
        gradient = (averages - share * target_rows) * weights[..., None]
        hidden_gradient = jnp.where(counts[..., None], gradient, 0.0)
        factors = jnp.where(counts[..., None], weights[..., None] / totals, 0.0)
        scaled = (hidden * factors).astype(hidden.dtype)
        return loss, (hidden_gradient.astype(hidden.dtype), exp_logits, scaled, hidden)

    def backward(
        residuals: Residuals, cotangent: Float[Array, ""]
    ) -> tuple[Float[Array, "B T D"], Float[Array, "V D"]]:
        hidden_gradient, exp_logits, scaled, hidden = residuals
        at_targets = -share * hidden.astype(jnp.float32) * weights[..., None]
        operands = exp_logits, scaled, targets, at_targets, cotangent
        table_gradient = _sum_over_positions(*operands, partial)
        return hidden_gradient * cotangent.astype(hidden.dtype), table_gradient

    run.defvjp(forward, backward)
    return run(hidden, table)


def _sum_over_positions(
    exp_logits: Float[Array, "B T V"],
    scaled: Float[Array, "B T D"],
    targets: Int[Array, "B T"],
    at_targets: Float[Array, "B T D"],
    cotangent: Float[Array, ""],
    partial: Collection[str],
) -> Float[Array, "V D"]:
    """The product exp_logits^T `scaled` over all positions, plus `at_targets` in the targets' rows.

    It is multiplied by the cotangent. Each device adds both parts up for its positions and its rows
    of the table, before the devices are summed over once. With `partial`, the mesh axes of the
    batch, the caller sums over devices: the gradient stays a partial sum on each
    (`t2t.runtime.mesh.keep_partial_gradient`).
    """

    def add_up(
        exp_logits: Array,
        scaled: Array,
        targets: Array,
        at_targets: Array,
        cotangent: Array,
        first: Array | int = 0,
    ) -> Array:
        total = einsum("BTV,BTD->VD", exp_logits, scaled, preferred_element_type=jnp.float32)
        rows = targets - first
        rows = jnp.where(rows < 0, len(total), rows)  # on another device: out of bounds, dropped
        return total.at[rows].add(at_targets, mode="drop") * cotangent

    operands = exp_logits, scaled, targets, at_targets, cotangent
    if spec() is None:
        return add_up(*operands)
    vocabulary, width = RULES["vocabulary"], RULES["d_model"]

    def add_up_shard(
        exp_logits: Array, scaled: Array, targets: Array, at_targets: Array, cotangent: Array
    ) -> Array:
        first = jax.lax.axis_index(vocabulary) * exp_logits.shape[2]
        total = add_up(exp_logits, scaled, targets, at_targets, cotangent, first)
        if partial:
            return total
        shard = jax.lax.psum_scatter(total, width, scatter_dimension=1, tiled=True)
        return jax.lax.psum(shard, [axis for axis in RULES["batch"] if axis != width])

    out_specs: Any = spec("vocabulary", "d_model")
    if partial:
        out_specs = PartitionSpec(vocabulary, None, unreduced=frozenset(partial))
    return jax.shard_map(add_up_shard, out_specs=out_specs, check_vma=False)(*operands)
