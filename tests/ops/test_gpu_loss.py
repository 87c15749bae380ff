"""The loss for GPUs, where the twin test does not see a difference in bfloat16."""

import jax
import jax.numpy as jnp

from t2t.ops import gpu_loss


def test_share_of_the_target_is_not_rounded_to_bfloat16() -> None:
    """With equal rows in the table no hidden state changes the loss; 0.8 would be 0.8008."""
    hidden, table = jnp.ones((1, 1, 8), jnp.bfloat16), jnp.ones((2, 8))
    targets, weights = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1))
    gradient = jax.grad(
        lambda x: gpu_loss.smoothed_cross_entropy(x, table, targets, weights, 0.2)[0]
    )
    assert not gradient(hidden).any()
