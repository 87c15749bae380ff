"""Minimum risk training (Shen et al. 2016): a loss that samples from the model.

python -m t2t.train ... --init_from=RUN --config.plugins=examples.minimum_risk
    --config.training.loss=minimum_risk --config.plugin.minimum_risk.samples=4
"""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import nnx

from t2t.config import Config, ConfigError, PluginOptions, Rule, option
from t2t.config.variants import register
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, DeviceBatch
from t2t.model.loss import compute_log_probs, pick_targets
from t2t.runtime.mesh import reshard
from t2t.training.losses import group_rows, repeat_rows

# One sample alone has the probability 1 among all that were drawn, and so no gradient.
Several = Annotated[int, Rule("be 2 or more", lambda value: value >= 2)]


@register("plugin", "minimum_risk")
@dataclasses.dataclass
class Options(PluginOptions):
    """Fields of the config: --config.plugin.minimum_risk.FIELD=VALUE."""

    samples: Several = option(4, "translations that are drawn of a sentence")
    sharpness: float = option(0.005, "alpha of equation 12, which multiplies log-probabilities")


@register("training.loss", "minimum_risk")
class MinimumRisk:
    """The expected cost of samples, a mean over sentences; rows must not be packed."""

    def __init__(self, config: Config):
        self.options: Options = config.plugin["minimum_risk"]
        if packed := config.data.packed_length:
            raise ConfigError(f"data.packed_length={packed}: minimum risk needs 0, a pair in a row")

    def __call__(self, model: Any, batch: DeviceBatch, key: jax.Array) -> tuple[Any, ...]:
        """Returns the sum of risks and the number of sentences; an empty row is none."""
        rows = repeat_rows(batch, self.options.samples)
        of_samples, of_dropout = jax.random.split(key)
        drawn = draw(model, rows, of_samples)
        costs = 1 - f_score(drawn, rows.tgt_out)
        inputs = jnp.concatenate([rows.tgt_in[:, :1], drawn[:, :-1]], axis=1)
        rows = rows._replace(tgt_in=inputs, tgt_out=drawn)
        hidden, table, targets, _, auxiliary = model.predict(rows, of_dropout)
        log_p = pick_targets(compute_log_probs(hidden, table), targets) * (targets != PAD_ID)
        log_p, costs = (group_rows(x, self.options.samples) for x in (log_p.sum(axis=1), costs))
        risks = jnp.sum(jax.nn.softmax(self.options.sharpness * log_p) * costs, axis=1)
        is_sentence = batch.weights.max(axis=1)
        return jnp.sum(risks * is_sentence), jnp.sum(is_sentence), auxiliary


def draw(model: Any, batch: DeviceBatch, key: jax.Array) -> jax.Array:
    """Draws a translation of each row without dropout, at most as long as the batch's."""
    structure, params = nnx.split(model)
    model = nnx.merge(structure, jax.lax.stop_gradient(params))
    start, length = jnp.full_like(batch.tgt_in[:, :1], BOS_ID), batch.tgt_in.shape[1]

    def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        before, cache = state
        logits, cache = model.decode_step(before, jnp.zeros_like(before), cache)
        logits = reshard(logits, "batch", None, None).at[..., [PAD_ID, BOS_ID]].set(-jnp.inf)
        noise = reshard(jax.random.gumbel(key, logits.shape), "batch", None, None)
        is_over = (before == EOS_ID) | (before == PAD_ID)
        drawn = jnp.where(is_over, PAD_ID, jnp.argmax(logits + noise, axis=-1))
        return (drawn, cache), drawn[:, 0]

    state = start, model.init_cache(batch.src, 1, length)
    return jax.lax.scan(step, state, jax.random.split(key, length))[1].T


def f_score(found: jax.Array, wanted: jax.Array) -> jax.Array:
    """Returns the F score of each row's tokens, in any order, against another's."""
    nth = jnp.tril(found[:, :, None] == found[:, None]).sum(axis=-1)  # of its equals so far
    known = jnp.sum(found[:, :, None] == wanted[:, None], axis=-1)
    matches = jnp.sum((nth <= known) & (found != PAD_ID), axis=-1)
    return 2 * matches / (jnp.sum(found != PAD_ID, axis=-1) + jnp.sum(wanted != PAD_ID, axis=-1))
