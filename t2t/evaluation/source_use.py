"""Source use: the nats per target token that the true source is worth to a model.

A translator gives a reference a higher probability with its own source than with another one. The
difference is 0 for a language model of the target, which is what a translator is until its
cross-attention has learned to find words. Its loss falls, too, so the loss alone does not tell.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from t2t.data.batch import PAD_ID, DeviceBatch
from t2t.runtime.mesh import reshard

# Nats per token below which a model hardly uses its source. On the phrasebook a model that stayed
# at perplexity 344 reached 0.2 in 200 steps; one that learned had 0.7 after 50 steps and 5.3 after
# 300 (benchmarks/results/source_use/phrasebook.json).
HARDLY = 0.5
# With these a model learned to use it in the measurements of benchmarks/LOG.md.
HELPFUL = {"model.norm_position": "pre", "model.position": "rotary", "training.optimizer": "muon"}
_NORMAL_97_5 = 1.959964  # quantile of the normal distribution


class SourceUse(NamedTuple):
    """An estimate from some pairs."""

    nats: float  # per target token
    margin: float  # half the width of the 95% interval over pairs


def rotate_sources(batch: DeviceBatch) -> tuple[DeviceBatch, Bool[Array, "B"]]:
    """Gives each row the source of the row before it, and the first row that of the last one.

    The rows of a batch have similar lengths, so the other source says as much about the length of
    the target as the true one. Empty rows, which are the last ones, stay empty.

    Returns:
        The batch, and the rows whose source is another one than before.
    """
    src = reshard(batch.src, None, None)
    rows, count = jnp.arange(len(src)), jnp.sum(src[:, 0] != PAD_ID)
    rotated = src[jnp.where(rows < count, (rows - 1) % jnp.maximum(count, 1), rows)]
    is_other = jnp.any(rotated != src, axis=-1)
    return batch._replace(src=reshard(rotated, "batch", None)), is_other


def estimate_source_use(
    true: Float[np.ndarray, "n 2"], other: Float[np.ndarray, "n 2"]
) -> SourceUse:
    """Estimates the use from the nats and tokens of pairs with their true and with other sources.

    The interval is that of a ratio of two means, from the variance of n pairs; at least two.
    """
    gains, tokens = other[:, 0] - true[:, 0], true[:, 1]
    nats = gains.sum() / tokens.sum()
    spread = np.var(gains - nats * tokens, ddof=1) * len(gains)
    return SourceUse(float(nats), float(_NORMAL_97_5 * np.sqrt(spread) / tokens.sum()))
