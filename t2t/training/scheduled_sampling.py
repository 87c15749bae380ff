"""Scheduled sampling for Transformers, in two passes (Mihaylova and Martins 2019)."""

import jax
import jax.numpy as jnp

from t2t.data.batch import BOS_ID, PAD_ID, DeviceBatch
from t2t.model.interface import Model
from t2t.model.layers import draw_keep_mask
from t2t.model.loss import compute_log_probs
from t2t.runtime.mesh import reshard


def sample_inputs(
    model: Model, batch: DeviceBatch, probability: float, key: jax.Array
) -> DeviceBatch:
    """Returns the batch with some target inputs replaced by the model's own predictions.

    A first pass over the true inputs, without dropout and gradient, predicts the most probable
    token at each position. Each input is replaced, with this probability, by the prediction of its
    token, which is that of the position before. BOS and padding stay, and neither replaces a token.
    Which inputs are replaced depends on the key, not on the mesh.
    """
    hidden, table, *_ = model.predict(batch)
    hidden, table = jax.lax.stop_gradient((hidden, table))

    def predict_column(hidden: jax.Array) -> jax.Array:
        log_probs = compute_log_probs(hidden[:, None], table)
        return jnp.argmax(reshard(log_probs, "batch", None, None), axis=-1)[:, 0]

    # Position after position: the logits of a whole batch may not fit into memory.
    predicted = jax.lax.map(predict_column, jnp.moveaxis(hidden, 1, 0)).T
    predicted = jnp.pad(predicted[:, :-1], ((0, 0), (1, 0)), constant_values=BOS_ID)
    replaced = ~draw_keep_mask(batch.weights, probability, jax.random.key_data(key))
    for ids in (batch.tgt_in, predicted):
        replaced &= (ids != BOS_ID) & (ids != PAD_ID)
    return batch._replace(tgt_in=jnp.where(replaced, predicted, batch.tgt_in))
