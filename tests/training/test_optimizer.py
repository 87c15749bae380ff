"""The optimiser: clipping, and an update in shares that equals the whole one."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t2t.config.fields import Config, MeshConfig, TrainingConfig
from t2t.model.interface import Params
from t2t.runtime.mesh import make_mesh, shard_over_data, spec
from t2t.training.optimizer import apply_updates, make_optimizer, shard_update


def make_params() -> Params:
    """Cut as the model's are; of the last no dimension can be cut."""
    numbers = np.random.default_rng(0).normal(size=(3, 16, 8)).astype(np.float32)
    return {
        "table": jax.device_put(numbers[0], spec("vocabulary", "d_model")),
        "inner": jax.device_put(numbers, spec(None, "d_model", "d_ff")),
        "scale": jax.device_put(numbers[0, 0, :3], spec(None)),
    }


def test_gradient_is_clipped_for_the_update() -> None:
    training = TrainingConfig(clip_norm=0.1)
    optimizer = make_optimizer(Config(training=training))
    params = {"a": jnp.ones((3, 4)), "b": jnp.ones(5)}
    gradient = jax.tree.map(lambda x: 2 * x, params)
    _, opt_state = optimizer.update(gradient, optimizer.init(params), params)
    factor = (1 - training.adam_b1) * 0.1 / (2 * 17**0.5)
    for clipped, whole in zip(
        jax.tree.leaves(optax.tree.get(opt_state, "mu")), jax.tree.leaves(gradient), strict=True
    ):
        np.testing.assert_allclose(clipped, factor * whole, rtol=1e-6)


@pytest.mark.parametrize("optimizer", [optax.adam(0.1), optax.lion(0.1), optax.sgd(0.1, 0.9)])
def test_sharded_update_equals_the_whole_update(optimizer: optax.GradientTransformation) -> None:
    def take_steps(wrapped: optax.GradientTransformation) -> tuple[Params, optax.OptState]:
        params = make_params()
        state = jax.jit(wrapped.init)(params)

        @jax.jit
        def step(params: Params, state: optax.OptState) -> tuple[Params, optax.OptState]:
            gradient = jax.tree.map(jnp.sin, params)
            updates, state = wrapped.update(gradient, state, params)
            return apply_updates(params, updates, where=jnp.array(True)), state

        for _ in range(3):
            params, state = step(params, state)
        return params, state

    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        whole, in_shares = take_steps(optimizer), take_steps(shard_update(optimizer))
        shares = jax.tree.map(shard_over_data, make_params())
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), in_shares, whole)
    params, state = in_shares
    assert find_specs(params) == find_specs(whole[0]) != find_specs(shares)
    moments = [leaf.sharding.spec for leaf in jax.tree.leaves(state) if leaf.ndim]
    assert moments == jax.tree.leaves(find_specs(shares)) * (len(moments) // 3)


def test_update_that_is_not_applied_leaves_the_parameters() -> None:
    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        params = make_params()
        updates = jax.tree.map(lambda x: jnp.full_like(shard_over_data(x), jnp.nan), params)
        kept = jax.jit(apply_updates)(params, updates, jnp.array(False))
    jax.tree.map(np.testing.assert_array_equal, kept, params)
    assert find_specs(kept) == find_specs(params)


def find_specs(params: Params) -> Params:
    specs: Params = jax.tree.map(lambda leaf: leaf.sharding.spec, params)
    return specs
