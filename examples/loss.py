"""A loss of training: Poly-1.

python -m t2t.train ... --config.plugins=examples.loss --config.training.loss=poly1
"""

import jax
import jax.numpy as jnp

from t2t.config.variants import register
from t2t.model.loss import compute_log_probs, pick_targets


@register("training.loss", "poly1")
def poly1(
    hidden: jax.Array, table: jax.Array, targets: jax.Array, weights: jax.Array, _: float
) -> tuple[jax.Array, jax.Array]:
    """Poly-1 (Leng et al. 2022): -log p + (1 - p), summed over tokens; and the sum of weights."""
    log_p = pick_targets(compute_log_probs(hidden, table), targets)
    return jnp.sum((1 - jnp.exp(log_p) - log_p) * weights), jnp.sum(weights)
