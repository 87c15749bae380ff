from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.model import loss
from t2t.ops import chunked_loss
from tests import reference

ROWS, LENGTH, D_MODEL, TYPES = 2, 7, 4, 9

random = np.random.default_rng(0)
HIDDEN = random.standard_normal((ROWS, LENGTH, D_MODEL))
TABLE = random.standard_normal((TYPES, D_MODEL))
TARGETS = random.integers(0, TYPES, (ROWS, LENGTH))
WEIGHTS = (random.random((ROWS, LENGTH)) < 0.7).astype(float)
SMOOTHINGS = [0.0, 0.1]


# The formula, and its twin with positions at once -> chunks of a row of seven: 1 of 7, 2 of 4, 3 of
# 3, 7 of 1.
@pytest.fixture(
    autouse=True, params=[0, 512, 7, 5, 1], ids="formula,one chunk,two,three,seven".split(",")
)
def _implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setitem(chunked_loss._CHUNK_TOKENS, "cpu", request.param)
        monkeypatch.setattr(loss, "smoothed_cross_entropy", chunked_loss.smoothed_cross_entropy)


def sum_losses(
    hidden: jax.typing.ArrayLike = HIDDEN,
    table: jax.typing.ArrayLike = TABLE,
    smoothing: float = 0.1,
    targets: np.ndarray = TARGETS,
) -> jax.Array:
    return loss.smoothed_cross_entropy(
        jnp.asarray(hidden, jnp.float32),
        jnp.asarray(table, jnp.float32),
        jnp.asarray(targets),
        jnp.asarray(WEIGHTS, jnp.float32),
        smoothing,
    )[0]


@pytest.mark.equality
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_loss_agrees_with_naive_numpy(smoothing: float) -> None:
    wanted = reference.sum_cross_entropies(HIDDEN, TABLE, TARGETS, WEIGHTS, smoothing)
    assert float(sum_losses(smoothing=smoothing)) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.equality
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_gradients_agree_with_differences_of_naive_numpy(smoothing: float) -> None:
    value, found = jax.value_and_grad(sum_losses, argnums=(0, 1))(
        jnp.asarray(HIDDEN, jnp.float32), jnp.asarray(TABLE, jnp.float32), smoothing
    )
    assert float(value) == pytest.approx(float(sum_losses(smoothing=smoothing)), rel=1e-6)
    for gradient, wanted in zip(found, differentiate(smoothing), strict=True):
        np.testing.assert_allclose(gradient, wanted, atol=1e-5)


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


def test_positions_without_weight_have_no_influence() -> None:
    hidden = jnp.asarray(np.where(WEIGHTS[..., None] == 0, 100.0, HIDDEN), jnp.float32)
    targets = np.where(WEIGHTS == 0, 0, TARGETS)
    assert float(sum_losses(hidden, targets=targets)) == float(sum_losses())
    gradient = jax.grad(sum_losses)(hidden)
    assert ((gradient == 0).all(axis=-1) == (WEIGHTS == 0)).all()


def test_weights_are_counted_and_not_divided_by() -> None:
    _, tokens = loss.smoothed_cross_entropy(
        jnp.asarray(HIDDEN, jnp.float32),
        jnp.asarray(TABLE, jnp.float32),
        jnp.asarray(TARGETS),
        jnp.asarray(WEIGHTS, jnp.float32),
        0.1,
    )
    assert float(tokens) == WEIGHTS.sum()


@pytest.mark.equality
def test_gradient_follows_the_chain_rule() -> None:
    hidden = jnp.asarray(HIDDEN, jnp.float32)
    tripled = jax.grad(lambda hidden: 3 * sum_losses(hidden))(hidden)
    np.testing.assert_allclose(tripled, 3 * jax.grad(sum_losses)(hidden), rtol=1e-5)


def test_uniform_model_loses_the_logarithm_of_the_vocabulary() -> None:
    uniform = float(sum_losses(hidden=np.zeros_like(HIDDEN)))
    assert uniform == pytest.approx(WEIGHTS.sum() * np.log(TYPES), rel=1e-6)


def test_huge_logits_stay_finite() -> None:
    value, gradient = jax.value_and_grad(sum_losses)(jnp.asarray(1e4 * HIDDEN, jnp.float32))
    assert bool(jnp.isfinite(value))
    assert bool(jnp.isfinite(gradient).all())


def test_bfloat16_hidden_states_give_a_loss_in_float32() -> None:
    hidden = jnp.asarray(HIDDEN, jnp.bfloat16)
    others = jnp.asarray(TARGETS), jnp.asarray(WEIGHTS, jnp.float32), 0.1
    table = jnp.asarray(TABLE, jnp.float32)
    value, gradients = jax.value_and_grad(
        lambda hidden, table: loss.smoothed_cross_entropy(hidden, table, *others)[0], argnums=(0, 1)
    )(hidden, table)
    assert [x.dtype for x in (value, *gradients)] == [jnp.float32, jnp.bfloat16, jnp.float32]
    assert float(value) == pytest.approx(float(sum_losses()), rel=0.01)
