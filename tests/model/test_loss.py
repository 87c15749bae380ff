"""The losses against NumPy; tests/ops/test_twins.py holds their twins to them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.fields import Config, TrainingConfig
from t2t.data.batch import Batch
from t2t.model import loss
from t2t.model.parameters import Params, merge
from t2t.ops import chunked_loss, chunked_r_drop
from t2t.training.losses import make_loss
from tests import reference
from tests.model.small_models import SMALL, SRC, TGT_IN, TGT_OUT, draw_params

ROWS, LENGTH, D_MODEL, TYPES = 2, 7, 4, 9
ALPHA = 5.0  # of R-Drop

random = np.random.default_rng(0)
HIDDENS = random.standard_normal((2, ROWS, LENGTH, D_MODEL))  # of two passes
TABLE = random.standard_normal((TYPES, D_MODEL))
TARGETS = random.integers(0, TYPES, (ROWS, LENGTH))
WEIGHTS = (random.random((ROWS, LENGTH)) < 0.7).astype(float)

each_implementation = pytest.mark.parametrize(
    ("plain", "r_drop"),
    [
        (loss.smoothed_cross_entropy, loss.r_drop_cross_entropy),
        (chunked_loss.smoothed_cross_entropy, chunked_r_drop.r_drop_cross_entropy),
    ],
    ids=["formulas", "twins"],
)


def measure(
    plain: Any, r_drop: Any, hiddens: np.ndarray, smoothing: float = 0.1, dtype: str = "float32"
) -> Any:
    """The losses of one pass and of two, their sums of weights, and the gradient of both."""
    others = jnp.asarray(TARGETS), jnp.asarray(WEIGHTS, jnp.float32), smoothing

    def total(hiddens: jax.Array, table: jax.Array) -> Any:
        one = plain(hiddens[0], table, *others)
        two = r_drop(*hiddens, table, *others, ALPHA)
        return one[0] + two[0], (one, two)

    run = jax.jit(jax.grad(total, (0, 1), has_aux=True))
    gradients, losses = run(jnp.asarray(hiddens, dtype), jnp.asarray(TABLE, jnp.float32))
    return *losses, gradients


@pytest.mark.equality
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_agree_with_naive_numpy(smoothing: float) -> None:
    one, two, _ = measure(
        loss.smoothed_cross_entropy, loss.r_drop_cross_entropy, HIDDENS, smoothing
    )
    others = TABLE, TARGETS, WEIGHTS, smoothing
    naive = reference.sum_cross_entropies(HIDDENS[0], *others)
    np.testing.assert_allclose(one, (naive, WEIGHTS.sum()), rtol=1e-5)
    naive = reference.sum_r_drop_losses((HIDDENS[0], HIDDENS[1]), *others, ALPHA)
    np.testing.assert_allclose(two, (naive, WEIGHTS.sum()), rtol=1e-5)


@each_implementation
def test_huge_logits_have_finite_losses_and_gradients(plain: Any, r_drop: Any) -> None:
    found = jax.tree.leaves(measure(plain, r_drop, 1e4 * HIDDENS))
    assert all(np.isfinite(each).all() for each in found)


@each_implementation
def test_bfloat16_hidden_states_give_losses_in_float32(plain: Any, r_drop: Any) -> None:
    *losses, gradients = measure(plain, r_drop, HIDDENS, dtype="bfloat16")
    *wanted, _ = measure(plain, r_drop, HIDDENS)
    np.testing.assert_allclose(losses, wanted, rtol=0.02)
    assert {leaf.dtype for leaf in jax.tree.leaves(losses)} == {jnp.dtype("float32")}
    assert [leaf.dtype for leaf in gradients] == [jnp.bfloat16, jnp.float32]


@pytest.mark.parametrize(("dtype", "kernels"), [("mixed", "auto"), ("bfloat16", "textbook")])
def test_bias_of_the_logits_is_not_rounded_in_the_losses_either(dtype: str, kernels: str) -> None:
    config = dataclasses.replace(SMALL, output_bias=True, dtype=dtype, kernels=kernels)
    structure, params = draw_params(config)
    params["output_bias"] *= 10  # with a standard deviation of 3
    batch = Batch(SRC, TGT_IN, TGT_OUT, jnp.ones(TGT_OUT.shape))

    @jax.jit
    def run(params: Params) -> tuple[jax.Array, ...]:
        model = merge(structure, params)
        logits = jax.nn.log_softmax(model(SRC, TGT_IN))
        wanted = -jnp.take_along_axis(logits, TGT_OUT[..., None], axis=-1).sum()
        plain = Config(training=TrainingConfig(label_smoothing=0.0))
        sums, *_ = make_loss(plain).sum_losses(model, batch)
        rows = model.policy.sentence_losses(*model.predict(batch)[:4])
        return wanted, sums, rows.sum()

    wanted, *found = run(params)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=0.002)
    gradient = jax.jit(jax.grad(lambda params: run(params)[1]))(params)["output_bias"]
    exact = jax.jit(jax.grad(lambda params: run(params)[0]))(params)["output_bias"]
    np.testing.assert_allclose(gradient, exact, atol=0.02)
