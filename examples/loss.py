"""A loss of training: Poly-1.

python -m t2t.train ... --config.plugins=examples.loss --config.training.loss=poly1
"""

from typing import Any

import jax
import jax.numpy as jnp

from t2t.config.variants import register
from t2t.data.batch import DeviceBatch
from t2t.model.interface import Model
from t2t.model.loss import compute_log_probs, pick_targets


@register("training.loss", "poly1")
def poly1(model: Model, batch: DeviceBatch, key: jax.Array | None) -> tuple[Any, ...]:
    """Poly-1 (Leng et al. 2022): -log p + (1 - p), summed over tokens; and the sum of weights."""
    hidden, table, targets, weights, auxiliary = model.predict(batch, key)
    log_p = pick_targets(compute_log_probs(hidden, table), targets)
    return jnp.sum((1 - jnp.exp(log_p) - log_p) * weights), jnp.sum(weights), auxiliary
