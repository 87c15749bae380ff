import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.fields import Config, TrainingConfig
from t2t.data.batch import PAD_ID, Batch, DeviceBatch
from t2t.model.experts import balance
from t2t.model.parameters import Params, merge
from t2t.training.losses import Sums, add_auxiliary_loss, make_loss
from tests.model.small_models import SMALL, SRC, TGT_IN, TGT_OUT, Structure, draw_params

MIXTURE: dict[str, Any] = {"feed_forward": "moe", "num_experts": 4, "load_balance": 0.3}


def test_load_balancing_loss_is_that_of_the_paper() -> None:
    random = np.random.default_rng(0)
    probabilities = random.dirichlet(np.ones(4), size=(3, 5))
    chosen = np.argsort(-probabilities, axis=-1)[..., :2]
    counted = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
    weights = jnp.asarray(counted, jnp.float32)
    found = balance(jnp.asarray(probabilities), jnp.asarray(chosen), weights, 0.1)
    tokens = [(row, column) for row in range(3) for column in range(5) if counted[row, column]]
    choices = np.array([sum(expert in chosen[token] for token in tokens) for expert in range(4)])
    mean = np.mean([probabilities[token] for token in tokens], axis=0)
    wanted = 0.1 * 4 * np.sum(choices / choices.sum() * mean)
    assert float(found["loss"]) == pytest.approx(wanted, rel=1e-5)
    np.testing.assert_array_equal(found["expert_share"], choices)


@pytest.mark.parametrize(
    ("kind", "alpha"),
    [("transformer", 0.0), ("transformer", 2.0), ("decoder_only", 0.0), ("encoder_only", 0.0)],
)
def test_experts_that_are_used_alike_add_the_coefficient_in_each_layer(
    kind: str, alpha: float
) -> None:
    """To the loss of a predicted token, of which there are fewer than the layers see."""
    batch = Batch(SRC, TGT_IN, TGT_OUT, jnp.asarray(TGT_OUT == 9, jnp.float32))
    losses = []
    for coefficient in (0.0, 1.0):
        fields = MIXTURE | {"kind": kind, "num_layers": 2, "load_balance": coefficient}
        structure, params = draw_params(dataclasses.replace(SMALL, dropout=0.0, **fields))
        params = jax.tree.map_with_path(lambda path, x: x * ("router" not in str(path)), params)
        loss, tokens, _ = jax.jit(sum_losses, static_argnums=(0, 3))(
            structure, params, batch, alpha
        )
        losses.append(loss / tokens)
    assert losses[1] - losses[0] == pytest.approx(4 if kind == "transformer" else 2, rel=1e-3)


def sum_losses(structure: Structure, params: Params, batch: DeviceBatch, alpha: float) -> Sums:
    loss = make_loss(Config(training=TrainingConfig(r_drop=alpha)))
    return add_auxiliary_loss(*loss.sum_losses(merge(structure, params), batch, jax.random.key(0)))


@pytest.mark.parametrize("kind", ["transformer", "decoder_only", "encoder_only"])
def test_padding_is_no_token_of_an_expert(kind: str) -> None:
    structure, params = draw_params(dataclasses.replace(SMALL, **MIXTURE, kind=kind))

    @jax.jit
    def find_auxiliary(batch: DeviceBatch) -> Any:
        return merge(structure, params).predict(batch).auxiliary

    batch = Batch(SRC, TGT_IN, TGT_OUT, (TGT_OUT != PAD_ID).astype(jnp.float32))
    plain, padded = find_auxiliary(batch), find_auxiliary(jax.tree.map(add_padding, batch))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), plain, padded)
    sides = {"encoder_only": (SRC,)}.get(kind, (SRC, TGT_IN))
    assert plain["expert_share"].sum() == 2 * sum((ids != PAD_ID).sum() for ids in sides)


def add_padding(x: jax.Array) -> jax.Array:
    return jnp.pad(x, ((0, 2), (0, 3)))
