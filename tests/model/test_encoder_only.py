import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from t2t.config.fields import Config, TrainingConfig
from t2t.config.variants import CHOICES
from t2t.data.batch import EOS_ID, PAD_ID, Batch
from t2t.model.interface import Prediction
from t2t.model.parameters import merge
from t2t.training.optimizer import make_optimizer
from t2t.training.state import init_state
from t2t.training.step import make_train_step
from tests import reference
from tests.model.small_models import SIZES, SMALL, SRC, Structure, draw_params

CONFIG = dataclasses.replace(SMALL, kind="encoder_only", num_layers=2)
TARGETS = jnp.where(SRC == EOS_ID, PAD_ID, SRC)


def predict(src: jax.Array) -> Prediction:
    structure, params = draw_params(CONFIG)
    weights = (TARGETS != PAD_ID).astype(jnp.float32)
    batch = Batch(src, jnp.zeros_like(TARGETS), TARGETS, weights)

    def run(params: dict[str, jax.Array], structure: Structure = structure) -> Prediction:
        return merge(structure, params).predict(batch)

    return jax.jit(run)(params)


def test_hidden_states_agree_with_naive_numpy() -> None:
    parameters = jax.tree.map(lambda x: np.asarray(x, float), draw_params(CONFIG)[1])
    for row, ids in zip(predict(SRC).hidden, SRC.tolist(), strict=True):
        src = [token for token in ids if token != PAD_ID]
        wanted = reference.encode(parameters, CONFIG, src)
        np.testing.assert_allclose(row[: len(src)], wanted, atol=1e-4)


def test_sides_padded_to_different_lengths_are_aligned() -> None:
    longer, plain = predict(jnp.pad(SRC, ((0, 0), (0, 3)))), predict(SRC)
    assert longer.hidden.shape == plain.hidden.shape
    np.testing.assert_allclose(longer.hidden[0], plain.hidden[0], atol=1e-5)
    np.testing.assert_array_equal(longer.targets, plain.targets)


def test_table_of_targets_exists_only_if_it_is_read() -> None:
    for tied in CHOICES["model.tie_embeddings"]:
        _, params = draw_params(dataclasses.replace(CONFIG, tie_embeddings=tied))
        assert ("tgt_embedding" in params) == (tied != "none")


def test_padding_is_counted_among_all_tokens_and_not_among_those_that_are_predicted() -> None:
    config = Config(model=CONFIG, training=TrainingConfig(accumulation_steps=2))
    optimizer = make_optimizer(config)
    structure, state = init_state(config, optimizer, *SIZES)
    weights = jnp.zeros_like(SRC, jnp.float32).at[:, 1].set(1)  # of one token in each row
    batch = Batch(SRC, SRC, jnp.where(weights == 1, SRC, PAD_ID), weights)
    _, metrics = make_train_step(structure, config, optimizer)(state, batch)
    assert (int(metrics.predicted), int(metrics.tokens), int(metrics.padding)) == (2, 8, 2)
