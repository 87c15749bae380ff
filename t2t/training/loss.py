"""Label-smoothed cross-entropy (section 5.4) as a sum and a count: the caller divides, once."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def smoothed_cross_entropy(
    logits: Float[Array, "B T V"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    smoothing: float,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(sum of losses in nats, sum of weights).

    The target distribution puts 1 - smoothing on the target and spreads smoothing over all V
    types, target included (Szegedy et al. 2016). With z the logits its cross-entropy is
    logsumexp(z) - (1 - smoothing) * z[target] - smoothing * mean(z), so no distribution of size
    V is ever built. The target's logit is found by comparison, not by indexing, since V may be
    sharded; the compiler fuses it into the sum.
    """
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    target_logit = jnp.sum(jnp.where(is_target, logits, 0), axis=-1)
    loss = normalizer - (1 - smoothing) * target_logit - smoothing * logits.mean(axis=-1)
    return jnp.sum(loss * weights), jnp.sum(weights)
