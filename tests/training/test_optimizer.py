"""The optimisers: their formulas, and their shares on a mesh."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array
from optax import contrib

from t2t.config.fields import Config, MeshConfig, ModelConfig, TrainingConfig
from t2t.model.parameters import find_name
from t2t.ops.build_model import Parameter, abstract_model, list_parameters
from t2t.runtime.mesh import make_mesh, spec
from t2t.training.muon import MOMENTUM, SIZE, make_muon, orthogonalize
from t2t.training.optimizer import Optimizer, make_optimizer, shard_update
from tests.model.small_models import draw


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
    return WARM_UP.learning_rate * min((updates + 1) / WARM_UP.warmup_steps, 1)


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
        numbers = np.random.default_rng(0).normal(size=(3, 16, 8)).astype(np.float32)
        params = {
            "inner": jax.device_put(numbers, spec(None, "d_model", "d_ff")),
            "scale": jax.device_put(numbers[0, 0, :3], spec(None)),  # which cannot be cut
        }
        state = jax.jit(optimizer.init)(params)
        evaluated = optimizer.evaluation_params(state, params)
    for one, other in zip(jax.tree.leaves(evaluated), jax.tree.leaves(params), strict=True):
        assert one.sharding.spec == other.sharding.spec
        np.testing.assert_allclose(one, other, rtol=1e-5)


TINY = ModelConfig(num_layers=1, d_model=16, d_ff=24, num_heads=4)
PARAMETERS = {"query": Parameter((), (0, 2)), "outer": Parameter((), (0, 1))}
CONFIG = Config(training=TrainingConfig(adam_b1=0.9, adam_b2=0.999, adam_eps=1e-8))


def test_matrix_without_a_gradient_has_no_update() -> None:
    assert not orthogonalize(jnp.zeros((3, 8, 24))).any()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_update_is_that_of_optax(weight_decay: float) -> None:
    """From step 100 on: optax corrects the bias of its average, which then makes no difference."""
    params = {"outer": draw(24, 16)}
    training = dataclasses.replace(CONFIG.training, optimizer="muon", weight_decay=weight_decay)

    def find_update(optimizer: optax.GradientTransformation) -> Array:
        def step(state: optax.OptState, number: Array) -> tuple[optax.OptState, Array]:
            gradient = {"outer": jnp.sin(number * params["outer"])}
            updates, state = optimizer.update(gradient, state, params)
            return state, updates["outer"]

        _, updates = jax.lax.scan(step, optimizer.init(params), jnp.arange(200.0))
        return updates[100:]

    update = find_update(make_muon(Config(training=training), lambda _: 0.1, PARAMETERS))
    expected = contrib.muon(0.1, beta=MOMENTUM, consistent_rms=SIZE, weight_decay=weight_decay)
    np.testing.assert_allclose(update, find_update(expected), atol=5e-3 * 0.1 * SIZE)
    of_muon = update + 0.1 * weight_decay * params["outer"]
    assert float(jnp.sqrt(jnp.mean(of_muon**2))) == pytest.approx(0.1 * SIZE, rel=0.2)


def test_weight_decay_of_muon_is_that_of_all_parameters() -> None:
    params = {"outer": draw(24, 16), "bias": draw(16)}
    found = []
    for weight_decay in (0.0, 0.1):
        training = dataclasses.replace(CONFIG.training, weight_decay=weight_decay)
        optimizer = make_muon(Config(training=training), lambda _: 0.5, PARAMETERS)
        updates, _ = optimizer.update(params, optimizer.init(params), params)
        found.append(updates)
    for plain, decayed, own in zip(*map(jax.tree.leaves, (*found, params)), strict=True):
        np.testing.assert_allclose(decayed - plain, -0.5 * 0.1 * own, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"feed_forward": "swiglu", "norm": "rms", "num_kv_heads": 2},
        {"position": "learned", "tie_embeddings": "none"},
        {"position": "relative", "d_k": 6, "d_v": 10},
    ],
)
def test_every_matrix_is_known_with_its_inputs_and_outputs(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(TINY, **changes)
    _, params = abstract_model(config, 50, 50)
    matrices = {n: p.matrix for n, p in list_parameters(config).items() if p.matrix}
    found = set()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = find_name(path)
        if leaf.ndim >= 2 and not name.endswith(("table", "bias")):
            found.add(name)
            dimensions = matrices[name]
            assert len(dimensions) == 2
            assert leaf.ndim == 2 or leaf.shape[({0, 1, 2} - {*dimensions}).pop()] <= 4
    assert found == {*matrices}


def test_devices_share_the_work() -> None:
    def count_flops() -> float:
        params = {"query": jax.device_put(draw(32, 8, 16), spec("d_model", "heads", None))}
        optimizer = shard_update(Optimizer(*make_muon(CONFIG, lambda _: 1.0, PARAMETERS)))
        state = optimizer.init(params)
        analysis = jax.jit(optimizer.update).lower(params, state, params).compile().cost_analysis()
        assert analysis
        return float(analysis["flops"])

    alone = count_flops()
    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        assert count_flops() < alone / 6
