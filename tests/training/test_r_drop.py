"""R-Drop: the formula and its twin against NumPy, and a step with two passes."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.model import loss
from t2t.model.interface import Params, merge
from t2t.ops import chunked_loss, chunked_r_drop
from t2t.training.losses import CrossEntropy, RDrop
from tests import reference
from tests.training.test_step import change, make_batch, make_trainer, on_device

ROWS, LENGTH, D_MODEL, TYPES = 2, 5, 3, 7
SMOOTHING, ALPHA = 0.1, 5.0

random = np.random.default_rng(0)
HIDDENS = random.standard_normal((2, ROWS, LENGTH, D_MODEL))
TABLE = random.standard_normal((TYPES, D_MODEL))
TARGETS = random.integers(0, TYPES, (ROWS, LENGTH))
WEIGHTS = (random.random((ROWS, LENGTH)) < 0.7).astype(float)
# Of the hidden vectors of two passes and of the table: the loss and its gradients by both.
Loss = Callable[[jax.Array, jax.Array], tuple[jax.Array, tuple[jax.Array, jax.Array]]]


# The formula, and its twin in three chunks of a row.
@pytest.fixture(scope="module", params=[0, 16], ids=["formula", "twin"])
def sum_losses(request: pytest.FixtureRequest) -> Iterator[Loss]:
    positions = request.param
    cross_entropy = chunked_r_drop.r_drop_cross_entropy if positions else loss.r_drop_cross_entropy
    others = jnp.asarray(TARGETS), jnp.asarray(WEIGHTS, jnp.float32), SMOOTHING, ALPHA

    def run(hiddens: jax.Array, table: jax.Array) -> jax.Array:
        return cross_entropy(hiddens[0], hiddens[1], table, *others)[0]

    with pytest.MonkeyPatch.context() as patch:
        if positions:
            patch.setitem(chunked_loss._CHUNK_TOKENS, "cpu", positions)
        yield jax.jit(jax.value_and_grad(run, argnums=(0, 1)))


ARRAYS = jnp.asarray(HIDDENS, jnp.float32), jnp.asarray(TABLE, jnp.float32)


def sum_naively(hiddens: np.ndarray, table: np.ndarray) -> float:
    pair = hiddens[0], hiddens[1]
    return reference.sum_r_drop_losses(pair, table, TARGETS, WEIGHTS, SMOOTHING, ALPHA)


@pytest.mark.equality
def test_loss_and_gradients_agree_with_naive_numpy(sum_losses: Loss) -> None:
    value, found = jax.tree.map(np.asarray, sum_losses(*ARRAYS))
    assert float(value) == pytest.approx(sum_naively(HIDDENS, TABLE), rel=1e-5)
    step = 1e-5
    for number, gradient in enumerate(found):
        for index in np.ndindex(*gradient.shape):
            sums = []
            for moved in (step, -step):
                arrays = [HIDDENS.copy(), TABLE.copy()]
                arrays[number][index] += moved
                sums.append(sum_naively(*arrays))
            wanted = (sums[0] - sums[1]) / (2 * step)
            assert float(gradient[index]) == pytest.approx(wanted, rel=1e-3, abs=1e-4)


def test_huge_logits_have_a_finite_loss(sum_losses: Loss) -> None:
    hiddens, table = ARRAYS
    found = jax.tree.leaves(sum_losses(1e4 * hiddens, table))
    assert all(np.isfinite(each).all() for each in found)


def test_passes_of_a_step_have_different_dropout_masks() -> None:
    trainer = make_trainer(change(model={"dropout": 0.3}))
    batch = on_device(make_batch())

    @jax.jit
    def run(params: Params) -> list[tuple[Any, ...]]:
        model, key = merge(trainer.structure, params), jax.random.key(0)
        losses = [RDrop(change(training={"r_drop": alpha})) for alpha in (1e-9, 1.0)]
        return [loss(model, batch, key) for loss in losses]

    (less, tokens, _), (more, *_) = run(trainer.first.params)
    assert float(more) > 1.001 * float(less)
    assert float(tokens) == make_batch().weights.sum()


def test_without_dropout_the_loss_of_a_step_is_the_plain_one() -> None:
    trainer = make_trainer()
    batch = on_device(make_batch())

    @jax.jit
    def run(params: Params) -> tuple[jax.Array, jax.Array]:
        model = merge(trainer.structure, params)
        found, *_ = RDrop(change(training={"r_drop": 5.0}))(model, batch, jax.random.key(0))
        return found, CrossEntropy(change())(model, batch)[0]

    found, plain = run(trainer.first.params)
    assert float(found) == pytest.approx(float(plain), rel=1e-6)
