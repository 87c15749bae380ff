"""Products against NumPy with operands rounded by hand."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from t2t.config.fields import ModelConfig
from t2t.ops.fast_linear import multiply
from t2t.ops.select_kernels import choose_policy

SHAPES = {
    "BTD,DF->BTF": ((2, 3, 8), (8, 16)),
    "BTD,DGE->BTGE": ((2, 3, 8), (8, 2, 4)),
    "BTHE,HED->BTD": ((2, 3, 2, 4), (2, 4, 8)),
}


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


def widen(x: jax.Array, name: str) -> np.ndarray:
    """The operand as it is multiplied."""
    narrow = np.asarray(x).astype(ml_dtypes.bfloat16 if name == "mixed" else np.float32)
    return narrow.astype(np.float64)


@pytest.mark.equality
@pytest.mark.parametrize("subscripts", SHAPES)
@pytest.mark.parametrize("name", ["float32", "mixed"])
def test_results_and_gradients_are_sums_of_rounded_operands(subscripts: str, name: str) -> None:
    x, weights = (draw(*shape) for shape in SHAPES[subscripts])
    dtype = choose_policy(ModelConfig(dtype=name)).product_dtype
    result, pull = jax.vjp(lambda x, w: multiply(subscripts, x, w, dtype=dtype), x, weights)
    upstream = draw(*result.shape)
    one, other, out = subscripts.replace("->", ",").split(",")
    a, b, g = (widen(operand, name) for operand in (x, weights, upstream))
    wanted = (
        np.einsum(subscripts, a, b),
        np.einsum(f"{out},{other}->{one}", g, b),
        np.einsum(f"{one},{out}->{other}", a, g),
    )
    for found, expected in zip((result, *pull(upstream)), wanted, strict=True):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("subscripts", SHAPES)
def test_gradients_of_weights_are_not_rounded_to_bfloat16(subscripts: str) -> None:
    x, weights = (draw(*shape) for shape in SHAPES[subscripts])
    narrow, dtype = x.astype(jnp.bfloat16), jnp.dtype("bfloat16")
    result, pull = jax.vjp(lambda w: multiply(subscripts, narrow, w, dtype=dtype), weights)
    upstream = draw(*result.shape).astype(jnp.bfloat16)
    one, other, out = subscripts.replace("->", ",").split(",")
    wanted = np.einsum(f"{one},{out}->{other}", *(widen(a, "mixed") for a in (narrow, upstream)))
    np.testing.assert_allclose(pull(upstream)[0], wanted, rtol=1e-5, atol=1e-5)
