import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.fields import MeshConfig, TrainingConfig
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, Batch, DeviceBatch
from t2t.data.loader import put_batch
from t2t.model.interface import Model, Prediction
from t2t.runtime.mesh import make_mesh
from t2t.training.scheduled_sampling import sample_inputs
from tests.training.test_step import change, make_batch, make_trainer, moment

TGT_IN = [[BOS_ID, 5, 6, 7, BOS_ID, 8], [BOS_ID, 9, 4, PAD_ID, PAD_ID, PAD_ID]]
ALWAYS = 0.9999999


class Constant(Model):
    """Predicts a given token at each position, whatever its inputs."""

    def __init__(self, tokens: list[list[int]]):
        self.tokens = jnp.asarray(tokens)

    def predict(self, batch: DeviceBatch, key: jax.Array | None = None) -> Prediction:
        assert key is None  # no dropout
        hidden = jax.nn.one_hot(self.tokens, 20)
        return Prediction(hidden, jnp.eye(20), batch.tgt_out, batch.weights, {})


def make(tgt_in: Any) -> DeviceBatch:
    ids = jnp.asarray(tgt_in)
    return Batch(ids, ids, ids, (ids != PAD_ID).astype(jnp.float32))


def sample(model: Model, batch: DeviceBatch, probability: float, seed: int) -> DeviceBatch:
    run = jax.jit(lambda batch, key: sample_inputs(model, batch, probability, key))
    found: DeviceBatch = run(batch, jax.random.key(seed))
    return found


def test_input_is_replaced_by_the_prediction_of_the_position_before() -> None:
    """First inputs, also of packed sentences, and padding stay; BOS and PAD replace nothing."""
    predictions = [[11, EOS_ID, BOS_ID, 14, 15, 16], [PAD_ID, 12, 13, 14, 15, 16]]
    found = sample(Constant(predictions), make(TGT_IN), ALWAYS, 0)
    wanted = [[BOS_ID, 11, EOS_ID, 7, BOS_ID, 15], [BOS_ID, 9, 12, PAD_ID, PAD_ID, PAD_ID]]
    assert found.tgt_in.tolist() == wanted
    for name in ("src", "tgt_out", "weights"):
        np.testing.assert_array_equal(getattr(found, name), getattr(make(TGT_IN), name))


def test_share_of_replaced_inputs_is_the_probability_and_follows_the_key() -> None:
    batch, model = make(np.full((40, 50), 5)), Constant(np.full((40, 50), 6).tolist())
    one, again, other = (sample(model, batch, 0.3, seed).tgt_in == 6 for seed in (0, 0, 1))
    assert float(one[:, 1:].mean()) == pytest.approx(0.3, abs=0.04)
    assert not one[:, 0].any()
    assert (one == again).all()
    assert (one != other).any()


def test_a_forward_pass_more_is_a_third_of_the_flops_more() -> None:
    assert TrainingConfig(scheduled_sampling=0.1).num_passes == pytest.approx(4 / 3)


@pytest.mark.slow
@pytest.mark.equality
def test_step_with_sampled_inputs_is_the_same_on_any_mesh() -> None:
    results = []
    for sizes, count in ((MeshConfig(), 1), (MeshConfig(2, 2, 2), 8)):
        mesh = make_mesh(sizes, jax.devices()[:count])
        with jax.set_mesh(mesh):
            trainer = make_trainer(change(training={"scheduled_sampling": 0.5}))
            state, metrics = trainer.step(trainer.first, put_batch(make_batch(), mesh))
            results.append(jax.device_get((metrics, moment(state))))
    near = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-7)
    jax.tree.map(near, *results)
    plain = make_trainer()
    _, metrics = plain.step(plain.first, jax.tree.map(jnp.asarray, make_batch()))
    assert float(metrics.loss) != pytest.approx(float(results[0][0].loss), rel=1e-4)
