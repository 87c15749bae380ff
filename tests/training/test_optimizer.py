"""The optimisers: their formulas, clipping, and an update in shares that equals the whole one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t2t.config.fields import Config, MeshConfig, TrainingConfig
from t2t.model.interface import Params
from t2t.runtime.mesh import make_mesh, shard_over_data, spec
from t2t.training.optimizer import Optimizer, apply_updates, make_optimizer, shard_update


def make_params() -> Params:
    """Cut as the model's are; of the last no dimension can be cut."""
    numbers = np.random.default_rng(0).normal(size=(3, 16, 8)).astype(np.float32)
    return {
        "table": jax.device_put(numbers[0], spec("vocabulary", "d_model")),
        "inner": jax.device_put(numbers, spec(None, "d_model", "d_ff")),
        "scale": jax.device_put(numbers[0, 0, :3], spec(None)),
    }


@pytest.mark.parametrize(
    "optimizer",
    [optax.adam(0.1), optax.lion(0.1), optax.sgd(0.1, 0.9), optax.contrib.schedule_free_adamw(0.1)],
)
def test_sharded_update_equals_the_whole_update(optimizer: optax.GradientTransformation) -> None:
    def take_steps(wrapped: Optimizer) -> tuple[Params, optax.OptState]:
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

    own = Optimizer(*optimizer)
    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        whole, in_shares = take_steps(own), take_steps(shard_update(own))
        shares = jax.tree.map(shard_over_data, make_params())
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), in_shares, whole)
    params, state = in_shares
    assert find_specs(params) == find_specs(whole[0]) != find_specs(shares)
    moments = [leaf.sharding.spec for leaf in jax.tree.leaves(state) if leaf.ndim]
    assert moments == jax.tree.leaves(find_specs(shares)) * (len(moments) // 3)


def take_updates(
    optimizer: Optimizer, start: np.ndarray, gradients: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns the parameters after each update, and those for evaluation."""
    params = {"weight": jnp.asarray(start, jnp.float32)}
    state = optimizer.init(params)
    found, evaluated = [], []
    for gradient in gradients:
        own = {"weight": jnp.asarray(gradient, jnp.float32)}
        updates, state = optimizer.update(own, state, params)
        params = optax.apply_updates(params, updates)
        found.append(np.asarray(params["weight"]))
        if optimizer.evaluation_params:
            evaluated.append(np.asarray(optimizer.evaluation_params(state, params)["weight"]))
    return found, evaluated


RANDOM = np.random.default_rng(1)
START, GRADIENTS = RANDOM.normal(size=4), RANDOM.normal(size=(5, 4))
WARM_UP = TrainingConfig(
    schedule="constant", warmup_steps=3, learning_rate=0.03,
    adam_b1=0.8, adam_b2=0.95, adam_eps=0.01, weight_decay=0.2,
)  # fmt: skip


def find_rate(updates: int) -> float:
    """The rate after so many updates."""
    return WARM_UP.learning_rate * min(updates / WARM_UP.warmup_steps, 1)


def test_nadamw_follows_its_formula() -> None:
    """Dozat 2016, algorithm 2 with decoupled weight decay."""
    training = dataclasses.replace(WARM_UP, optimizer="nadamw")
    found, evaluated = take_updates(make_optimizer(Config(training=training)), START, GRADIENTS)
    b1, b2 = training.adam_b1, training.adam_b2
    weight, mean, square = START, np.zeros(4), np.zeros(4)
    for t, gradient in enumerate(GRADIENTS, start=1):
        mean = b1 * mean + (1 - b1) * gradient
        square = b2 * square + (1 - b2) * gradient**2
        ahead = b1 * mean / (1 - b1 ** (t + 1)) + (1 - b1) * gradient / (1 - b1**t)
        step = ahead / (np.sqrt(square / (1 - b2**t)) + training.adam_eps)
        weight = weight - find_rate(t - 1) * (step + training.weight_decay * weight)
        np.testing.assert_allclose(found[t - 1], weight, rtol=1e-5)
    assert not evaluated


@pytest.mark.parametrize("clip_norm", [0.0, 1e9])
def test_schedule_free_adamw_follows_its_formula(clip_norm: float) -> None:
    """Defazio et al. 2024, algorithm 1; clipping wraps the state."""
    training = dataclasses.replace(WARM_UP, optimizer="schedule_free_adamw", clip_norm=clip_norm)
    found, evaluated = take_updates(make_optimizer(Config(training=training)), START, GRADIENTS)
    beta, b2 = training.adam_b1, training.adam_b2
    x = y = z = START
    square, total = np.zeros(4), 0.0
    for t, gradient in enumerate(GRADIENTS, start=1):
        square = b2 * square + (1 - b2) * gradient**2
        step = gradient / (np.sqrt(square / (1 - b2**t)) + training.adam_eps)
        z = z - find_rate(t - 1) * (step + training.weight_decay * y)
        weight = find_rate(t) ** 2  # optax weights z by the rate of the next update
        total += weight
        x = x + weight / total * (z - x)
        y = (1 - beta) * z + beta * x
        np.testing.assert_allclose(found[t - 1], y, rtol=1e-5)
        np.testing.assert_allclose(evaluated[t - 1], x, rtol=1e-5)
    assert np.abs(x - y).max() > 1e-3


def test_evaluation_parameters_are_placed_as_the_parameters() -> None:
    training = dataclasses.replace(WARM_UP, optimizer="schedule_free_adamw")
    optimizer = make_optimizer(Config(training=training))
    assert optimizer.evaluation_params is not None
    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        params = make_params()
        state = jax.jit(optimizer.init)(params)
        evaluated = optimizer.evaluation_params(state, params)
    assert find_specs(evaluated) == find_specs(params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), evaluated, params)


def find_specs(params: Params) -> Params:
    specs: Params = jax.tree.map(lambda leaf: leaf.sharding.spec, params)
    return specs
