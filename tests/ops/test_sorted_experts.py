"""Gradients of experts' weights against NumPy, and rows of no group."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.fields import MeshConfig
from t2t.ops.sorted_experts import apply_experts
from t2t.runtime.mesh import make_mesh, reshard

BATCH, LENGTH, WIDTH, INNER, EXPERTS = 8, 16, 8, 12, 4
BFLOAT16 = jnp.dtype("bfloat16")


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


def draw_operands() -> list[jax.Array]:
    """Activations in bfloat16, and the weights of both products."""
    inner, outer = (EXPERTS, WIDTH, INNER), (EXPERTS, INNER, WIDTH)
    return [draw(BATCH, LENGTH, WIDTH).astype(BFLOAT16), draw(*inner), draw(*outer)]


def test_gradients_of_weights_are_not_rounded_to_bfloat16() -> None:
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
