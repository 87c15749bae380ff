import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.fields import Config, TrainingConfig
from t2t.data.batch import Batch
from t2t.model import loss
from t2t.model.interface import Params, merge
from t2t.ops import chunked_loss
from t2t.training.losses import CrossEntropy
from tests import reference
from tests.model.small_models import SMALL, SRC, TGT_IN, TGT_OUT, draw_params

ROWS, LENGTH, D_MODEL, TYPES = 2, 7, 4, 9

random = np.random.default_rng(0)
HIDDEN = random.standard_normal((ROWS, LENGTH, D_MODEL))
TABLE = random.standard_normal((TYPES, D_MODEL))
TARGETS = random.integers(0, TYPES, (ROWS, LENGTH))
WEIGHTS = (random.random((ROWS, LENGTH)) < 0.7).astype(float)
SMOOTHINGS = [0.0, 0.1]
FACTOR = 3.0  # on the loss, for the chain rule


class Outcome(NamedTuple):
    loss: np.ndarray
    tokens: np.ndarray
    of_hidden: np.ndarray  # the gradients of the loss
    of_table: np.ndarray


Measure = Callable[..., Outcome]


def make_measure(cross_entropy: Callable[..., tuple[jax.Array, jax.Array]]) -> Measure:
    """Returns an implementation of the loss and its gradients, times `FACTOR`."""

    def run(hidden: jax.Array, table: jax.Array, smoothing: float) -> tuple[jax.Array, jax.Array]:
        others = jnp.asarray(TARGETS), jnp.asarray(WEIGHTS, jnp.float32), smoothing
        loss, tokens = cross_entropy(hidden, table, *others)
        return FACTOR * loss, tokens

    differentiated = jax.jit(
        jax.value_and_grad(run, argnums=(0, 1), has_aux=True), static_argnums=2
    )

    def measure(
        hidden: np.ndarray = HIDDEN, *, smoothing: float = 0.1, dtype: str = "float32"
    ) -> Outcome:
        arrays = jnp.asarray(hidden, dtype), jnp.asarray(TABLE, jnp.float32)
        (value, tokens), gradients = differentiated(*arrays, smoothing)
        return Outcome(*map(np.asarray, (value, tokens, *gradients)))

    return measure


# The formula, and its twin in chunks: a row of seven positions has three.
@pytest.fixture(scope="module", params=[0, 5], ids=["formula", "twin"])
def measure(request: pytest.FixtureRequest) -> Iterator[Measure]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            patch.setitem(chunked_loss._CHUNK_TOKENS, "cpu", request.param)
            yield make_measure(chunked_loss.smoothed_cross_entropy)
        else:
            yield make_measure(loss.smoothed_cross_entropy)


@pytest.mark.equality
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_loss_and_its_gradients_agree_with_naive_numpy(measure: Measure, smoothing: float) -> None:
    found = measure(smoothing=smoothing)
    value = reference.sum_cross_entropies(HIDDEN, TABLE, TARGETS, WEIGHTS, smoothing)
    assert float(found.loss) == pytest.approx(FACTOR * value, rel=1e-5)
    assert float(found.tokens) == WEIGHTS.sum()
    gradients = found.of_hidden, found.of_table
    for gradient, wanted in zip(gradients, differentiate(smoothing), strict=True):
        np.testing.assert_allclose(gradient, FACTOR * wanted, atol=3e-5)


def differentiate(smoothing: float, step: float = 1e-5) -> Iterator[np.ndarray]:
    """Central differences with respect to the hidden states and the table."""
    hidden, table = HIDDEN.copy(), TABLE.copy()
    for varied in (hidden, table):
        gradient = np.empty_like(varied)
        for index in np.ndindex(*varied.shape):
            value = varied[index]
            sums = []
            for moved in (value + step, value - step):
                varied[index] = moved
                sums.append(
                    reference.sum_cross_entropies(hidden, table, TARGETS, WEIGHTS, smoothing)
                )
            varied[index] = value
            gradient[index] = (sums[0] - sums[1]) / (2 * step)
        yield gradient


def test_huge_logits_stay_finite(measure: Measure) -> None:
    found = measure(1e4 * HIDDEN)
    assert np.isfinite(found.loss)
    assert np.isfinite(found.of_hidden).all()


def test_bfloat16_hidden_states_give_a_loss_in_float32(measure: Measure) -> None:
    found = measure(dtype="bfloat16")
    dtypes = [found.loss.dtype, found.of_hidden.dtype, found.of_table.dtype]
    assert dtypes == [jnp.float32, jnp.bfloat16, jnp.float32]
    assert float(found.loss) == pytest.approx(float(measure().loss), rel=0.01)


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
        sums, *_ = CrossEntropy(plain)(model, batch)
        rows = model.policy.sentence_losses(*model.predict(batch)[:4])
        return wanted, sums, rows.sum()

    wanted, *found = run(params)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=0.002)
    gradient = jax.jit(jax.grad(lambda params: run(params)[1]))(params)["output_bias"]
    exact = jax.jit(jax.grad(lambda params: run(params)[0]))(params)["output_bias"]
    np.testing.assert_allclose(gradient, exact, atol=0.02)
