"""Label-smoothed cross-entropy (section 5.4) as a sum and a count: the caller divides, once.

The logits are the largest array of a step, so they never exist whole: loss and gradient are made
in one pass over chunks of target positions.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t.sharding import platform, spec

# Target positions whose logits exist at once on a device. On a CPU they should stay in its cache;
# an accelerator wants large products.
_CHUNK_TOKENS = {"cpu": 512}
_CHUNK_TOKENS_ELSEWHERE = 8192

Gradients = tuple[Float[Array, "B T D"], Float[Array, "V D"]]  # of hidden and table
Totals = tuple[Float[Array, ""], Float[Array, "V D"]]  # loss, gradient of the table


class _Chunks(NamedTuple):
    """Target positions in N groups of t: what `jax.lax.scan` goes through."""

    hidden: Float[Array, "N B t D"]
    targets: Int[Array, "N B t"]
    weights: Float[Array, "N B t"]


def smoothed_cross_entropy(
    hidden: Float[Array, "B T D"],
    table: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    smoothing: float,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(sum of losses in nats, sum of weights), for logits = hidden table^T.

    The target distribution puts 1 - smoothing on the target and spreads smoothing over all V
    types, target included (Szegedy et al. 2016). With z the logits its cross-entropy is
    logsumexp(z) - (1 - smoothing) * z[target] - smoothing * mean(z), and its gradient
    softmax(z) - (1 - smoothing) * onehot(target) - smoothing / V. Differentiable in `hidden` and
    `table`.
    """

    @jax.custom_vjp
    def sum_losses(hidden: Float[Array, "B T D"], table: Float[Array, "V D"]) -> Float[Array, ""]:
        chunks = _split(hidden, targets, weights)

        def add(total: Float[Array, ""], chunk: _Chunks) -> tuple[Float[Array, ""], None]:
            loss, _ = _differentiate_logits(chunk, table, smoothing)
            return total + loss, None

        return jax.lax.scan(add, jnp.zeros(()), chunks)[0]

    def forward(
        hidden: Float[Array, "B T D"], table: Float[Array, "V D"]
    ) -> tuple[Float[Array, ""], Gradients]:
        chunks = _split(hidden, targets, weights)

        def add(totals: Totals, chunk: _Chunks) -> tuple[Totals, Float[Array, "B t D"]]:
            total, table_gradient = totals
            loss, logits_gradient = _differentiate_logits(chunk, table, smoothing)
            hidden_gradient = jnp.einsum(
                "BtV,VD->BtD",
                logits_gradient,
                table.astype(hidden.dtype),
                out_sharding=spec("batch", None, None),
            )
            table_gradient += jnp.einsum(
                "BtV,BtD->VD",
                logits_gradient,
                chunk.hidden,
                preferred_element_type=jnp.float32,
                out_sharding=spec("vocabulary", "d_model"),
            )
            return (total + loss, table_gradient), hidden_gradient

        start = (jnp.zeros(()), jnp.zeros_like(table))
        (total, table_gradient), hidden_gradient = jax.lax.scan(add, start, chunks)
        return total, (_join(hidden_gradient, hidden.shape[1]), table_gradient)

    def backward(gradients: Gradients, cotangent: Float[Array, ""]) -> Gradients:
        hidden_gradient, table_gradient = gradients
        return hidden_gradient * cotangent.astype(hidden.dtype), table_gradient * cotangent

    sum_losses.defvjp(forward, backward)
    return sum_losses(hidden, table), jnp.sum(weights)


def _differentiate_logits(
    chunk: _Chunks, table: Float[Array, "V D"], smoothing: float
) -> tuple[Float[Array, ""], Float[Array, "B t V"]]:
    """The chunk's loss, and its gradient with respect to the logits."""
    narrow = table.astype(chunk.hidden.dtype)
    logits = jnp.einsum(
        "BtD,VD->BtV",
        chunk.hidden,
        narrow,
        preferred_element_type=jnp.float32,
        out_sharding=spec("batch", None, "vocabulary"),
    )
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    # Target and mean logit from the table's rows: cheaper than two more passes over the logits.
    own = narrow.at[chunk.targets].get(out_sharding=spec("batch", None, None))
    wide = chunk.hidden.astype(jnp.float32)
    target_logit = jnp.sum(wide * own.astype(jnp.float32), axis=-1)
    mean_logit = wide @ narrow.astype(jnp.float32).mean(axis=0)
    loss = normalizer - (1 - smoothing) * target_logit - smoothing * mean_logit
    types = logits.shape[-1]
    is_target = jnp.arange(types) == chunk.targets[..., None]
    wanted = smoothing / types + jnp.where(is_target, 1 - smoothing, 0)
    gradient = (jnp.exp(logits - normalizer[..., None]) - wanted) * chunk.weights[..., None]
    return jnp.sum(loss * chunk.weights), gradient.astype(chunk.hidden.dtype)


def _split(
    hidden: Float[Array, "B T D"], targets: Int[Array, "B T"], weights: Float[Array, "B T"]
) -> _Chunks:
    """Cuts along T, since B may be sharded; the last chunk is filled up with weightless ones."""
    rows, length = jax.typeof(targets).sharding.shard_shape(targets.shape)
    wanted = _CHUNK_TOKENS.get(platform(), _CHUNK_TOKENS_ELSEWHERE)
    count = min(math.ceil(rows * length / wanted), length)
    width = math.ceil(length / count)
    count = math.ceil(length / width)

    def cut(x: Array) -> Array:
        filled = jnp.pad(x, [(0, 0), (0, count * width - length), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(filled.reshape(-1, count, width, *x.shape[2:]), 1, 0)

    return _Chunks(cut(hidden), cut(targets), cut(weights))


def _join(chunks: Float[Array, "N B t D"], length: int) -> Float[Array, "B T D"]:
    count, rows, width, d_model = chunks.shape
    joined = jnp.moveaxis(chunks, 0, 1).reshape(rows, count * width, d_model)
    return joined[:, :length]
