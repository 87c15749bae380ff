"""Losses of two passes: scheduled sampling and R-Drop; tests/model/test_loss.py has formulas."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.fields import Config, ConfigError, TrainingConfig
from t2t.config.variants import register
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, Batch, DeviceBatch
from t2t.model.interface import Model, Prediction
from t2t.model.parameters import Params, merge
from t2t.training.losses import make_loss
from t2t.training.scheduled_sampling import sample_inputs
from tests.model.small_models import POLICY
from tests.training.test_step import change, make_batch, make_trainer, on_device

TGT_IN = [[BOS_ID, 5, 6, 7, BOS_ID, 8], [BOS_ID, 9, 4, PAD_ID, PAD_ID, PAD_ID]]
ALWAYS = 0.9999999


class Constant(Model):
    """Predicts a given token at each position, whatever its inputs, which it keeps."""

    policy = POLICY

    def __init__(self, tokens: list[list[int]]):
        self.tokens = jnp.asarray(tokens)
        self.has_key = list[bool]()  # of each pass; a key switches dropout on

    def predict(self, batch: DeviceBatch, key: jax.Array | None = None) -> Prediction:
        self.has_key.append(key is not None)
        hidden = jax.nn.one_hot(self.tokens, 20)
        kept = {"inputs": batch.tgt_in.astype(jnp.float32)}
        return Prediction(hidden, jnp.eye(20), batch.tgt_out, batch.weights, kept)


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
    loss = make_loss(Config(training=TrainingConfig(scheduled_sampling=ALWAYS)))
    model = Constant(predictions)
    *_, kept = loss.sum_losses(model, make(TGT_IN), jax.random.key(0))
    assert kept["inputs"].tolist() == wanted
    assert model.has_key == [False, True]


def test_share_of_replaced_inputs_is_the_probability_and_follows_the_key() -> None:
    batch, model = make(np.full((40, 50), 5)), Constant(np.full((40, 50), 6).tolist())
    one, again, other = (sample(model, batch, 0.3, seed).tgt_in == 6 for seed in (0, 0, 1))
    assert float(one[:, 1:].mean()) == pytest.approx(0.3, abs=0.04)
    assert not one[:, 0].any()
    assert (one == again).all()
    assert (one != other).any()


def test_a_forward_pass_more_is_a_third_of_the_flops_more() -> None:
    assert TrainingConfig(scheduled_sampling=0.1).num_passes == pytest.approx(4 / 3)


def test_passes_of_a_step_have_different_dropout_masks() -> None:
    trainer = make_trainer(change(model={"dropout": 0.3}))
    batch = on_device(make_batch())

    @jax.jit
    def run(params: Params) -> list[tuple[Any, ...]]:
        model, key = merge(trainer.structure, params), jax.random.key(0)
        losses = [make_loss(change(training={"r_drop": alpha})) for alpha in (1e-9, 1.0)]
        return [loss.sum_losses(model, batch, key) for loss in losses]

    (less, tokens, _), (more, *_) = run(trainer.first.params)
    assert float(more) > 1.001 * float(less)
    assert float(tokens) == make_batch().weights.sum()


def test_without_dropout_the_loss_of_a_step_is_the_plain_one() -> None:
    trainer = make_trainer()
    batch = on_device(make_batch())

    @jax.jit
    def run(params: Params) -> tuple[jax.Array, jax.Array]:
        model = merge(trainer.structure, params)
        doubled, plain = (make_loss(change(training={"r_drop": alpha})) for alpha in (5.0, 0.0))
        found, *_ = doubled.sum_losses(model, batch, jax.random.key(0))
        return found, plain.sum_losses(model, batch)[0]

    found, plain = run(trainer.first.params)
    assert float(found) == pytest.approx(float(plain), rel=1e-6)


@pytest.mark.usefixtures("own_variants")
@pytest.mark.parametrize(
    ("figures", "fault"),
    [
        ({"loss": 1.0}, "a figure of the name 'loss', which another has; choose another name"),
        ({"inputs": 1.0}, "a figure of the name 'inputs', which another has"),
        ({"a/b": 1.0}, "a figure of the name 'a/b'; use letters, digits and _"),
        ({"own": jnp.ones(2)}, r"the figure 'own' as an array of shape \(2,\); return its sum"),
        (1.0, "the figures 1.0, no dictionary of sums by name"),
        ({"other": 1.0}, r"the figures \['other'\], but \['own'\] before"),
    ],
)
def test_wrong_figures_of_a_loss_are_named(figures: Any, fault: str) -> None:
    returned = iter([{"own": 1.0}, figures])

    @register("training.loss", "own")
    def own(model: Model, batch: DeviceBatch, key: jax.Array | None) -> tuple[Any, ...]:
        return 0.0, 1.0, model.predict(batch, key).auxiliary, next(returned)

    loss = make_loss(Config(training=TrainingConfig(loss="own"))).sum_losses
    arguments = Constant(TGT_IN), make(TGT_IN), None
    assert loss(*arguments)[2]["own"] == 1
    with pytest.raises(ConfigError, match=f"^training.loss='own': .* returned {fault}.*; expected"):
        loss(*arguments)
