"""R-Drop's loss in chunks, as `chunked_loss.py` computes the plain loss."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t.model.linear import einsum
from t2t.ops.chunked_loss import ChunkLoss, Chunks, expect_rows, sum_chunks
from t2t.runtime.mesh import spec


def r_drop_cross_entropy(
    hidden: Float[Array, "B T D"],
    other: Float[Array, "B T D"],
    table: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    smoothing: float,
    alpha: float,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """As `t2t.model.loss.r_drop_cross_entropy`; only hiddens and `table` have gradients.

    With p and q the probabilities, r = log p - log q, and t the smoothed target distribution, the
    gradient of a token's loss with respect to the logits of p is

        (p - t) / 2 + alpha / 4 * (p * (r - KL(P || Q)) + p - q),

    and likewise for q, with -r in place of r.
    """
    differentiate = functools.partial(_differentiate, smoothing=smoothing, alpha=alpha)
    return sum_chunks(differentiate, (hidden, other), table, targets, weights), jnp.sum(weights)


def _differentiate(
    chunk: Chunks, table: Float[Array, "V E"], smoothing: float, alpha: float
) -> ChunkLoss:
    """Returns a chunk's loss in each row, and the gradients. Logits are float32."""
    rows = table[:, :-1]
    dtype = table.dtype
    weights = chunk.weights[..., None]
    is_target = jnp.arange(len(table)) == chunk.targets[..., None]
    target_probs = smoothing / len(table) + jnp.where(is_target, 1 - smoothing, 0)
    expected_rows = expect_rows(rows, chunk.targets, smoothing)

    def score(hidden: Float[Array, "B t D"]) -> tuple[Array, Array]:
        """Returns the log-probabilities, and the smoothed cross-entropy of each position."""
        logits = einsum(
            "BtD,VD->BtV",
            hidden,
            rows,
            preferred_element_type=jnp.float32,
            out_sharding=spec("batch", None, "vocabulary"),
        )
        expected = jnp.sum(hidden.astype(jnp.float32) * expected_rows, axis=-1, keepdims=True)
        normalizer = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        return logits - normalizer, normalizer - expected

    def gradients(probs: Array, others: Array, log_ratio: Array, divergence: Array) -> Array:
        pull = probs * (log_ratio - divergence) + probs - others
        found = ((probs - target_probs) / 2 + alpha / 4 * pull) * weights
        return found.astype(dtype)

    (log_p, p_loss), (log_q, q_loss) = map(score, chunk.hiddens)
    p, q, log_ratio = jnp.exp(log_p), jnp.exp(log_q), log_p - log_q
    p_to_q = jnp.sum(p * log_ratio, axis=-1, keepdims=True)
    q_to_p = -jnp.sum(q * log_ratio, axis=-1, keepdims=True)
    losses = (p_loss + q_loss) / 2 + alpha / 4 * (p_to_q + q_to_p)
    logits_gradients = gradients(p, q, log_ratio, p_to_q), gradients(q, p, -log_ratio, q_to_p)
    hidden_gradients = tuple(
        einsum(
            "BtV,VD->BtD",
            gradient,
            rows,
            preferred_element_type=jnp.float32,
            out_sharding=spec("batch", None, None),
        ).astype(dtype)
        for gradient in logits_gradients
    )
    return ChunkLoss(jnp.sum(losses * weights, axis=(1, 2)), logits_gradients, hidden_gradients)
