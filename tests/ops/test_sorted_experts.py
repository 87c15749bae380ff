"""Gradients of experts' weights against NumPy, and on a mesh."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from t2t.config.fields import MeshConfig
from t2t.ops.sorted_experts import apply_experts
from t2t.runtime.mesh import make_mesh, reshard, spec

BATCH, LENGTH, WIDTH, INNER, EXPERTS = 8, 16, 8, 12, 4
BFLOAT16 = jnp.dtype("bfloat16")
NAMES = (("batch", None, None), ("experts", "d_model", None), ("experts", None, "d_model"))


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


def draw_operands() -> list[jax.Array]:
    """Activations in bfloat16, and the weights of both products."""
    inner, outer = (EXPERTS, WIDTH, INNER), (EXPERTS, INNER, WIDTH)
    return [draw(BATCH, LENGTH, WIDTH).astype(BFLOAT16), draw(*inner), draw(*outer)]


def differentiate(x: jax.Array, inner: jax.Array, outer: jax.Array) -> Any:
    """The gradients of the weights, and the choices: one expert a token, with the factor 1."""
    chosen = jnp.asarray(np.random.default_rng(0).integers(0, EXPERTS, (BATCH, LENGTH, 1)))

    def total(inner: jax.Array, outer: jax.Array) -> jax.Array:
        factors = reshard(jnp.ones(chosen.shape), "batch", None, None)
        choices = reshard(chosen, "batch", None, None)
        found = apply_experts(x, factors, choices, inner, outer, dtype=BFLOAT16)
        return jnp.sum(found.astype(jnp.float32))

    return jax.jit(jax.grad(total, (0, 1)))(inner, outer), np.asarray(chosen)[..., 0]


def test_gradients_of_weights_are_not_rounded_to_bfloat16() -> None:
    x, inner, outer = draw_operands()
    (_, found), chosen = differentiate(x, inner, outer)
    for expert in range(EXPERTS):
        rows = np.asarray(x, np.float64)[chosen == expert]
        hidden = np.maximum(rows @ np.asarray(inner[expert].astype(BFLOAT16), np.float64), 0)
        rounded = np.asarray(jnp.asarray(hidden, BFLOAT16), np.float64)
        wanted = np.broadcast_to(rounded.sum(axis=0)[:, None], (INNER, WIDTH))  # the cotangent is 1
        np.testing.assert_allclose(found[expert], wanted, rtol=1e-5)


@pytest.mark.slow
def test_devices_add_up_gradients_of_weights_that_are_not_rounded() -> None:
    operands = draw_operands()
    wanted, _ = differentiate(*operands)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    with jax.set_mesh(mesh):
        placed = [
            jax.device_put(each, NamedSharding(mesh, spec(*names) or PartitionSpec()))
            for each, names in zip(operands, NAMES, strict=True)
        ]
        found, _ = differentiate(*placed)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


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
