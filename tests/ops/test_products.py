"""What the twin test does not see: rounding to bfloat16, undefined rows, and what is gathered."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jaxtyping import Array

from t2t.config.fields import MeshConfig, ModelConfig
from t2t.model import loss as model_loss
from t2t.ops import gpu_loss
from t2t.ops.fast_linear import affine_on_gpu, multiply
from t2t.ops.select_kernels import choose_policy
from t2t.ops.sorted_experts import apply_experts
from t2t.runtime.mesh import make_mesh, reshard, spec

BATCH, LENGTH, WIDTH, INNER, EXPERTS = 8, 16, 8, 12, 4
BFLOAT16 = jnp.dtype("bfloat16")
SHAPES = {
    "BTD,DF->BTF": ((2, 3, 8), (8, 16)),
    "BTD,DGE->BTGE": ((2, 3, 8), (8, 2, 4)),
    "BTHE,HED->BTD": ((2, 3, 2, 4), (2, 4, 8)),
}


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


def widen(x: jax.Array, name: str) -> np.ndarray:
    """The operand as it is multiplied."""
    narrow = np.asarray(x).astype(np.float32 if name == "float32" else ml_dtypes.bfloat16)
    return narrow.astype(np.float64)


@pytest.mark.equality
@pytest.mark.parametrize("subscripts", SHAPES)
@pytest.mark.parametrize("name", ["float32", "mixed", "bfloat16"])
def test_results_and_gradients_are_sums_of_rounded_operands(subscripts: str, name: str) -> None:
    """The gradient of weights is not rounded in a bfloat16 model either."""
    policy = choose_policy(ModelConfig(dtype=name))
    x, weights = (draw(*shape) for shape in SHAPES[subscripts])
    x = x.astype(policy.dtype)
    product = functools.partial(multiply, subscripts, dtype=policy.product_dtype)
    result, pull = jax.vjp(product, x, weights)
    upstream = draw(*result.shape).astype(policy.dtype)
    one, other, out = subscripts.replace("->", ",").split(",")
    a, b, g = (widen(operand, name) for operand in (x, weights, upstream))
    wanted = (
        np.einsum(subscripts, a, b),
        np.einsum(f"{out},{other}->{one}", g, b),
        np.einsum(f"{one},{out}->{other}", a, g),
    )
    found = result, *pull(upstream)
    assert [each.dtype for each in found] == [policy.dtype, policy.dtype, jnp.float32]
    for each, expected in zip(found, wanted, strict=True):
        near = 1e-5 if each.dtype == jnp.float32 else 2**-8
        np.testing.assert_allclose(each.astype(jnp.float32), expected, rtol=near, atol=near)


def test_bias_on_a_gpu_is_added_before_the_only_rounding() -> None:
    x, weights, bias = draw(2, 3, 8).astype(BFLOAT16), draw(8, 16), 100 + draw(16)
    found = affine_on_gpu("BTD,DF->BTF", x, weights, bias, dtype=BFLOAT16)
    product = np.einsum("BTD,DF->BTF", widen(x, "bfloat16"), widen(weights, "bfloat16"))
    wanted = (product + np.asarray(bias)).astype(np.float32).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("largest", [-35.0, 0.0, 40.0, 95.0])
def test_loss_on_a_gpu_is_exact_where_the_logsumexp_is_in_reach(largest: float) -> None:
    """The logits have no maximum subtracted from them."""
    loss, gradients = differentiate_far_logits(gpu_loss, largest)
    wanted, expected = differentiate_far_logits(model_loss, largest)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    for found, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-3, atol=1e-3 * np.abs(other).max())


@pytest.mark.parametrize("largest", [-200.0, -60.0, 100.0, 130.0, 1e4])
def test_loss_on_a_gpu_is_infinite_where_it_would_be_inexact(largest: float) -> None:
    """So training skips the step and counts it."""
    loss, _ = differentiate_far_logits(gpu_loss, largest)
    assert np.isposinf(loss)


def differentiate_far_logits(module: Any, largest: float) -> Any:
    """The loss, and its gradients, of a position whose largest logit is about this number."""
    table = draw(50, 8).at[:, 0].set(1)
    hidden: Array = draw(1, 1, 8).at[..., 0].set(0)
    hidden = hidden.at[..., 0].set(largest - jnp.max(hidden[0, 0] @ table.T))
    targets, weights = jnp.full((1, 1), 3), jnp.ones((1, 1))

    def compute(hidden: Array, table: Array) -> Array:
        total: Array = module.smoothed_cross_entropy(hidden, table, targets, weights, 0.0)[0]
        return total

    return jax.value_and_grad(compute, (0, 1))(hidden, table)


def draw_operands() -> list[jax.Array]:
    """Activations in bfloat16, and the weights of both products."""
    inner, outer = (EXPERTS, WIDTH, INNER), (EXPERTS, INNER, WIDTH)
    return [draw(BATCH, LENGTH, WIDTH).astype(BFLOAT16), draw(*inner), draw(*outer)]


def test_gradients_of_experts_are_not_rounded_to_bfloat16() -> None:
    """Each token has one expert, with the factor 1."""
    x, inner, outer = draw_operands()
    chosen = np.random.default_rng(0).integers(0, EXPERTS, (BATCH, LENGTH, 1))

    def total(outer: jax.Array) -> jax.Array:
        factors = jnp.ones(chosen.shape)
        found = apply_experts(x, factors, jnp.asarray(chosen), inner, outer, dtype=BFLOAT16)
        return jnp.sum(found.astype(jnp.float32))

    found = jax.jit(jax.grad(total))(outer)
    for expert in range(EXPERTS):
        rows = np.asarray(x, np.float64)[chosen[..., 0] == expert]
        hidden = np.maximum(rows @ np.asarray(inner[expert].astype(BFLOAT16), np.float64), 0)
        rounded = np.asarray(jnp.asarray(hidden, BFLOAT16), np.float64)
        wanted = np.broadcast_to(rounded.sum(axis=0)[:, None], (INNER, WIDTH))  # the cotangent is 1
        np.testing.assert_allclose(found[expert], wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows_of_no_group_have_no_part_in_values_and_gradients(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two devices for the experts, each has rows that are in no group of its own."""
    multiply = jax.lax.ragged_dot

    def leave_undefined(x: jax.Array, weights: jax.Array, sizes: jax.Array, **options: Any) -> Any:
        is_in_group = (jnp.arange(len(x)) < sizes.sum())[:, None]
        return jnp.where(is_in_group, multiply(x, weights, sizes, **options), jnp.nan)

    monkeypatch.setattr(jax.lax, "ragged_dot", leave_undefined)
    chosen = jnp.asarray(np.random.default_rng(0).integers(0, EXPERTS, (BATCH, LENGTH, 2)))
    with jax.set_mesh(make_mesh(MeshConfig(data=2, tensor=2), jax.devices()[:4])):
        x, factors, chosen = reshard(
            (draw(BATCH, LENGTH, WIDTH), draw(BATCH, LENGTH, 2), chosen), "batch", None, None
        )
        weights = reshard(tuple(draw_operands()[1:]), "experts", None, None)

        def total(x: jax.Array, factors: jax.Array, weights: tuple[jax.Array, ...]) -> jax.Array:
            found = apply_experts(x, factors, chosen, *weights, dtype=jnp.dtype(dtype))
            return jnp.sum(found**2)

        found = jax.jit(jax.value_and_grad(total, (0, 1, 2)))(x, factors, weights)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


def test_share_of_the_target_is_not_rounded_to_bfloat16() -> None:
    """With equal rows in the table no hidden state changes the loss; 0.8 would be 0.8008."""
    hidden, table = jnp.ones((1, 1, 8), jnp.bfloat16), jnp.ones((2, 8))
    targets, weights = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1))
    gradient = jax.grad(
        lambda x: gpu_loss.smoothed_cross_entropy(x, table, targets, weights, 0.2)[0]
    )
    assert not gradient(hidden).any()


def test_sharded_table_is_gathered_only_once() -> None:
    """The logits need it; its mean row is taken first, and one row is gathered."""
    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):

        def describe(shape: tuple[int, ...], *names: str | None) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=spec(*names))

        hidden = describe((8, 16, 64), "batch", None, None)
        table = describe((400, 64), "vocabulary", "d_model")
        weights = describe((8, 16), "batch", None)
        targets = weights.update(dtype=jnp.int32)

        def compute(hidden: Any, table: Any, targets: Any, weights: Any) -> Array:
            return gpu_loss.smoothed_cross_entropy(hidden, table, targets, weights, 0.1)[0]

        gradient = jax.grad(compute, (0, 1))
        text = jax.jit(gradient).lower(hidden, table, targets, weights).compile().as_text()
    assert text is not None
    assert len(re.findall(r"= f32\[200,64\]\S* all-gather", text)) == 1
