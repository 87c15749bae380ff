"""Label-smoothed cross-entropy that holds the logits of one chunk of target positions at a time.

All logits would be a step's largest array. One scan computes the loss and its gradients together.
R-Drop's loss, of two forward passes, uses the same scan (`chunked_r_drop.py`).
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t.model import loss
from t2t.model.linear import einsum
from t2t.runtime.mesh import RULES, platform, reshard, spec

# Target positions of one chunk, summed over the rows on one device. On CPUs the logits of a chunk
# should fit into the processor's cache; accelerators are faster with large products.
_CHUNK_TOKENS = {"cpu": 512}
_CHUNK_TOKENS_ELSEWHERE = 8192

Gradients = tuple[tuple[Array, ...], Float[Array, "V D"]]  # with respect to hiddens and table
Totals = tuple[Float[Array, ""], Float[Array, "V D"]]  # loss, gradient of the table


class Chunks(NamedTuple):
    """The inputs of the scan: each row's target positions, cut into N chunks of length t."""

    hiddens: tuple[Float[Array, "N B t D"], ...]  # of each forward pass
    targets: Int[Array, "N B t"]
    weights: Float[Array, "N B t"]


class ChunkLoss(NamedTuple):
    """The loss of a chunk, and its gradients with respect to the logits and hiddens."""

    losses: Float[Array, "B"]  # of each row
    logits_gradients: tuple[Float[Array, "B t V"], ...]  # of each forward pass
    hidden_gradients: tuple[Float[Array, "B t D"], ...]


Differentiate = Callable[[Chunks, Float[Array, "V E"]], ChunkLoss]


def smoothed_cross_entropy(
    hidden: Float[Array, "B T D"],
    table: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    smoothing: float,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """As `t2t.model.loss.smoothed_cross_entropy`; only `hidden` and `table` have gradients.

    For logits z, the loss is logsumexp(z) - (1 - smoothing) * z[target] - smoothing * mean(z). Its
    gradient with respect to z is softmax(z) - (1 - smoothing) * onehot(target) - smoothing / V.
    """
    differentiate = functools.partial(_differentiate, smoothing=smoothing)
    return sum_chunks(differentiate, (hidden,), table, targets, weights), jnp.sum(weights)


def sum_chunks(
    differentiate: Differentiate,
    hiddens: tuple[Float[Array, "B T D"], ...],
    table: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
) -> Float[Array, ""]:
    """Sums the losses of all chunks; only `hiddens` and `table` have gradients.

    The forward pass already computes the gradients with respect to `hiddens` and `table`. The
    backward pass multiplies them by the cotangent of the loss. `differentiate` gets the table in
    the dtype of the hiddens, with a column of ones.
    """
    dtype = hiddens[0].dtype

    @jax.custom_vjp
    def sum_losses(
        hiddens: tuple[Float[Array, "B T D"], ...], table: Float[Array, "V D"]
    ) -> Float[Array, ""]:
        extended = _append_ones(table.astype(dtype))

        def add(total: Float[Array, ""], chunk: Chunks) -> tuple[Float[Array, ""], None]:
            # Only the losses are used, so XLA removes the computation of the gradients.
            return total + differentiate(chunk, extended).losses.sum(), None

        return jax.lax.scan(add, jnp.zeros(()), _split(hiddens, targets, weights))[0]

    def forward(
        hiddens: tuple[Float[Array, "B T D"], ...], table: Float[Array, "V D"]
    ) -> tuple[Float[Array, ""], Gradients]:
        extended = _append_ones(table.astype(dtype))

        def add(totals: Totals, chunk: Chunks) -> tuple[Totals, tuple[Array, ...]]:
            total, table_gradient = totals
            found = differentiate(chunk, extended)
            for logits_gradient, hidden in zip(found.logits_gradients, chunk.hiddens, strict=True):
                table_gradient += _differentiate_table(logits_gradient, hidden)
            return (total + found.losses.sum(), table_gradient), found.hidden_gradients

        start = (jnp.zeros(()), jnp.zeros_like(table))
        (total, table_gradient), hidden_gradients = jax.lax.scan(
            add, start, _split(hiddens, targets, weights)
        )
        length = targets.shape[1]
        return total, (tuple(_join(each, length) for each in hidden_gradients), table_gradient)

    def backward(gradients: Gradients, cotangent: Float[Array, ""]) -> Gradients:
        hidden_gradients, table_gradient = gradients
        scaled = tuple(gradient * cotangent.astype(dtype) for gradient in hidden_gradients)
        return scaled, table_gradient * cotangent

    sum_losses.defvjp(forward, backward)
    return sum_losses(hiddens, table)


def sentence_losses(
    hidden: Float[Array, "B T D"],
    table: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
) -> Float[Array, "B"]:
    """As `t2t.model.loss.sentence_losses`: the formula, chunk by chunk."""
    table = reshard(table.astype(hidden.dtype), "vocabulary", None)

    def add(totals: Float[Array, "B"], chunk: Chunks) -> tuple[Float[Array, "B"], None]:
        losses = loss.sentence_losses(chunk.hiddens[0], table, chunk.targets, chunk.weights)
        return totals + losses, None

    start = jnp.zeros_like(weights[:, 0])
    return jax.lax.scan(add, start, _split((hidden,), targets, weights))[0]


def _append_ones(table: Float[Array, "V D"]) -> Float[Array, "V E"]:
    """Appends a column of ones to the table (E = D + 1), after gathering D if it is sharded.

    The product of exp(logits) with the column of ones is the sum of exp(logits) over V.
    """
    table = reshard(table, "vocabulary", None)
    return jnp.concatenate([table, jnp.ones_like(table[:, :1])], axis=1)


def _differentiate(chunk: Chunks, table: Float[Array, "V E"], smoothing: float) -> ChunkLoss:
    """Returns a chunk's smoothed cross-entropy in each row, and the gradients.

    The logits have the dtype of `hidden`, but on CPUs they are float32, because CPUs multiply
    bfloat16 fast only if the result is float32. Sums are float32. The target's logit is one of the
    rounded logits whose logsumexp is taken, so that no negative log-likelihood is negative. The
    product of exp(logits) with the table and its column of ones has E = D + 1 columns. The last one
    is the softmax's denominator, which the loss needs. The other D columns, divided by it, are the
    product softmax(logits) @ table, which the gradient with respect to `hidden` needs.
    """
    [hidden] = chunk.hiddens
    rows = table[:, :-1]
    dtype = table.dtype
    logits = einsum(
        "BtD,VD->BtV",
        hidden,
        rows,
        preferred_element_type=jnp.float32 if platform() == "cpu" else dtype,
        out_sharding=spec("batch", None, "vocabulary"),
    )
    largest = logits.max(axis=-1, keepdims=True).astype(jnp.float32)
    sums = einsum(
        "BtV,VE->BtE",
        jnp.exp(logits.astype(jnp.float32) - largest).astype(dtype),
        table,
        preferred_element_type=jnp.float32,
        out_sharding=spec("batch", None, None),
    )
    normalizer = largest + jnp.log(sums[..., -1:])
    target_logit = pick_targets(logits, chunk.targets)
    # The mean logit is `hidden` times the mean row of the table, without a pass over the logits.
    mean_row = rows.astype(jnp.float32).mean(axis=0)
    mean_logit = jnp.sum(hidden.astype(jnp.float32) * mean_row, axis=-1)
    expected_logit = (1 - smoothing) * target_logit + smoothing * mean_logit
    losses = jnp.sum((normalizer[..., 0] - expected_logit) * chunk.weights, axis=-1)
    weights = chunk.weights[..., None]
    expected_row = expect_rows(rows, chunk.targets, smoothing)
    hidden_gradient = (sums[..., :-1] / sums[..., -1:] - expected_row) * weights
    is_target = jnp.arange(len(table)) == chunk.targets[..., None]
    target_probs = smoothing / len(table) + jnp.where(is_target, 1 - smoothing, 0)
    logits_gradient = (jnp.exp(logits.astype(jnp.float32) - normalizer) - target_probs) * weights
    return ChunkLoss(losses, (logits_gradient.astype(dtype),), (hidden_gradient.astype(dtype),))


def _differentiate_table(
    logits_gradient: Float[Array, "B t V"], hidden: Float[Array, "B t D"]
) -> Float[Array, "V D"]:
    """Returns the gradient of the table.

    This product sums over positions, the rows of both factors, so the first factor must be
    transposed. On CPUs the transposition takes as long as the product, so there `hidden`, the
    smaller array, is the first factor.
    """

    def multiply(subscripts: str, *factors: Array, names: tuple[str, str]) -> Array:
        return einsum(
            subscripts, *factors, preferred_element_type=jnp.float32, out_sharding=spec(*names)
        )

    if platform() != "cpu":
        return multiply("BtV,BtD->VD", logits_gradient, hidden, names=("vocabulary", "d_model"))
    transposed = multiply("BtD,BtV->DV", hidden, logits_gradient, names=("d_model", "vocabulary"))
    # Without the barrier, XLA swaps the factors again.
    kept: Float[Array, "D V"] = jax.lax.optimization_barrier(transposed)
    return kept.T


def expect_rows(
    rows: Float[Array, "V D"], targets: Int[Array, "B t"], smoothing: float
) -> Float[Array, "B t D"]:
    """Returns the expected row of the table under each target's smoothed distribution."""
    target_rows = rows.at[targets].get(out_sharding=spec("batch", None, None))
    mean_row = rows.astype(jnp.float32).mean(axis=0)
    return (1 - smoothing) * target_rows.astype(jnp.float32) + smoothing * mean_row


def pick_targets(logits: Float[Array, "B T V"], targets: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """As `t2t.model.loss.pick_targets`, in float32; reads only the logits of the targets.

    On TPUs, which gather single elements slowly, it is the formula, which reads all logits.
    """
    if platform() == "tpu":
        return loss.pick_targets(logits.astype(jnp.float32), targets)

    def pick(logits: Array, targets: Array, first: Array | int = 0) -> Array:
        own = targets - first
        own = jnp.where(own < 0, logits.shape[2], own)  # on another device: out of bounds, 0
        picked = jnp.take_along_axis(logits, own[..., None], axis=2, mode="fill", fill_value=0)
        return picked[..., 0].astype(jnp.float32)

    if spec() is None:
        return pick(logits, targets)
    vocabulary = RULES["vocabulary"]

    def pick_shard(logits: Array, targets: Array) -> Array:
        first = jax.lax.axis_index(vocabulary) * logits.shape[2]
        return jax.lax.psum(pick(logits, targets, first), vocabulary)

    return jax.shard_map(pick_shard, out_specs=spec("batch", None), check_vma=False)(
        logits, targets
    )


def _split(
    hiddens: tuple[Float[Array, "B T D"], ...],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
) -> Chunks:
    """Splits along T, since B may be sharded; the last chunk is padded with weights of 0."""
    rows, length = jax.typeof(targets).sharding.shard_shape(targets.shape)
    chunk_tokens = _CHUNK_TOKENS.get(platform(), _CHUNK_TOKENS_ELSEWHERE)
    # With two passes a position has twice as many logits, and each logit twice as many temporaries.
    cost = len(hiddens) ** 2
    count = max(1, min(math.ceil(rows * length * cost / chunk_tokens), length))
    width = max(1, math.ceil(length / count))
    count = max(1, math.ceil(length / width))

    def cut(x: Array) -> Array:
        padded = jnp.pad(x, [(0, 0), (0, count * width - length), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(padded.reshape(-1, count, width, *x.shape[2:]), 1, 0)

    return Chunks(tuple(map(cut, hiddens)), cut(targets), cut(weights))


def _join(chunks: Float[Array, "N B t D"], length: int) -> Float[Array, "B T D"]:
    count, rows, width, d_model = chunks.shape
    joined = jnp.moveaxis(chunks, 0, 1).reshape(rows, count * width, d_model)
    return joined[:, :length]
