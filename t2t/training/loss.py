"""Section 5.4: label-smoothed cross-entropy.

Both losses are sums, so that a caller can add up parts of a batch and divide once. Only
`smoothed_cross_entropy` also returns the sum of weights to divide by.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t.model.precision import einsum
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
    log_probs = compute_log_probs(hidden, table)
    target_log_probs = pick_targets(log_probs, targets)
    losses = -(1 - smoothing) * target_log_probs - smoothing * log_probs.mean(axis=-1)
    return jnp.sum(losses * weights), jnp.sum(weights)


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
