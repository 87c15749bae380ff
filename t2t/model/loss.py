"""Section 5.4: label-smoothed cross-entropy, also with R-Drop.

All losses are sums, so that a caller can add up parts of a batch and divide once. The losses of
training also return the sum of weights to divide by.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t.model.linear import einsum
from t2t.runtime.mesh import spec


def smoothed_cross_entropy(
    hidden: Float[Array, "B T D"],
    table: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    smoothing: float,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns (sum of weighted losses in nats, sum of weights), for logits = hidden table^T.

    The target distribution is 1 - smoothing on the target plus smoothing / V on every token of the
    vocabulary, the target included (Szegedy et al. 2016).
    """
    losses = cross_entropies(compute_log_probs(hidden, table), targets, smoothing)
    return jnp.sum(losses * weights), jnp.sum(weights)


def r_drop_cross_entropy(
    hidden: Float[Array, "B T D"],
    other: Float[Array, "B T D"],
    table: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    smoothing: float,
    alpha: float,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """As `smoothed_cross_entropy`, for two passes of one batch with different dropout masks.

    Half of equation 4 of Liang et al. (2021), so that alpha = 0 gives the mean cross-entropy. With
    P and Q the distributions of the two passes, the loss of a target token is

        (CE(P) + CE(Q)) / 2 + alpha / 4 * (KL(P || Q) + KL(Q || P)),

    and KL(P || Q) + KL(Q || P) is the sum of (p - q) * (log p - log q) over the vocabulary.
    """
    log_p, log_q = compute_log_probs(hidden, table), compute_log_probs(other, table)
    both = cross_entropies(log_p, targets, smoothing) + cross_entropies(log_q, targets, smoothing)
    divergences = jnp.sum((jnp.exp(log_p) - jnp.exp(log_q)) * (log_p - log_q), axis=-1)
    losses = both / 2 + alpha / 4 * divergences
    return jnp.sum(losses * weights), jnp.sum(weights)


def cross_entropies(
    log_probs: Float[Array, "B T V"], targets: Int[Array, "B T"], smoothing: float
) -> Float[Array, "B T"]:
    """Returns each token's cross-entropy with the smoothed target distribution, in nats."""
    target_log_probs = pick_targets(log_probs, targets)
    return -(1 - smoothing) * target_log_probs - smoothing * log_probs.mean(axis=-1)


def sentence_losses(
    hidden: Float[Array, "B T D"],
    table: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
) -> Float[Array, "B"]:
    """Returns each row's negative log-likelihood in nats, for logits = hidden table^T."""
    log_probs = compute_log_probs(hidden, table)
    return jnp.sum(-pick_targets(log_probs, targets) * weights, axis=-1)


def compute_log_probs(
    hidden: Float[Array, "B T D"], table: Float[Array, "V D"]
) -> Float[Array, "B T V"]:
    """Computes log softmax(hidden table^T) in float32; operands are in the dtype of `hidden`."""
    logits = einsum(
        "BTD,VD->BTV",
        hidden,
        table.astype(hidden.dtype),
        preferred_element_type=jnp.float32,
        out_sharding=spec("batch", None, "vocabulary"),
    )
    return jax.nn.log_softmax(logits)


def pick_targets(
    log_probs: Float[Array, "B T V"], targets: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """Returns the log-probability of each target, by a masked sum since V may be sharded."""
    is_target = jnp.arange(log_probs.shape[-1]) == targets[..., None]
    return jnp.sum(jnp.where(is_target, log_probs, 0), axis=-1)
