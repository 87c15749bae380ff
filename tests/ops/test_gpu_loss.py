"""The loss for GPUs, where the twin test does not see a difference in bfloat16."""

import re
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from t2t.config.fields import MeshConfig
from t2t.ops import gpu_loss
from t2t.runtime.mesh import make_mesh, spec


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
