"""Muon: what an orthogonal update is, of which parameters, and the same on every mesh."""

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
from t2t.model.interface import find_name
from t2t.ops.build_model import Parameter, describe_model, describe_parameters
from t2t.runtime.mesh import make_mesh, spec
from t2t.training.muon import MOMENTUM, SIZE, make_muon, orthogonalize
from t2t.training.optimizer import Optimizer, shard_update

TINY = ModelConfig(num_layers=1, d_model=16, d_ff=24, num_heads=4)
MATRICES = {"query": (0, 2), "output": (1, 2), "inner": (1, 2), "outer": (0, 1)}
PARAMETERS = {name: Parameter((), matrix) for name, matrix in (*MATRICES.items(), ("table", None))}
CONFIG = Config(training=TrainingConfig(adam_b1=0.9, adam_b2=0.999, adam_eps=1e-8))


def make_optimizer() -> Optimizer:
    return shard_update(Optimizer(*make_muon(CONFIG, lambda _: 1.0, PARAMETERS)))


def draw(*shape: int) -> Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("shape", [(8, 24), (24, 8), (3, 8, 24)])
def test_singular_values_become_about_one_and_singular_vectors_stay(shape: tuple[int, ...]) -> None:
    matrices = draw(*shape)
    u, _, v = jnp.linalg.svd(matrices, full_matrices=False)
    inside = u.mT @ orthogonalize(matrices) @ v.mT  # S of the result, if U and V have not changed
    values = jnp.diagonal(inside, axis1=-2, axis2=-1)
    assert 0.6 < values.min() < values.max() < 1.3
    np.testing.assert_allclose(inside - values[..., None] * jnp.eye(8), 0, atol=1e-4)


def test_zero_gradient_gives_a_zero_update() -> None:
    assert not orthogonalize(jnp.zeros((4, 8))).any()


def test_update_is_that_of_optax() -> None:
    """From step 100 on: optax corrects the bias of its average, which then makes no difference."""
    params = {"outer": draw(24, 16)}

    def find_update(optimizer: optax.GradientTransformation) -> Array:
        def step(state: optax.OptState, number: Array) -> tuple[optax.OptState, Array]:
            gradient = {"outer": jnp.sin(number * params["outer"])}
            updates, state = optimizer.update(gradient, state, params)
            return state, updates["outer"]

        _, updates = jax.lax.scan(step, optimizer.init(params), jnp.arange(200.0))
        return updates[100:]

    update = find_update(make_muon(CONFIG, lambda _: 0.1, PARAMETERS))
    expected = find_update(contrib.muon(0.1, beta=MOMENTUM, consistent_rms=SIZE))
    np.testing.assert_allclose(update, expected, atol=5e-3 * 0.1 * SIZE)
    assert float(jnp.sqrt(jnp.mean(update**2))) == pytest.approx(0.1 * SIZE, rel=0.2)


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
    _, params = describe_model(config, 50, 50)
    matrices = {n: p.matrix for n, p in describe_parameters(config).items() if p.matrix}
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
        optimizer = make_optimizer()
        state = optimizer.init(params)
        analysis = jax.jit(optimizer.update).lower(params, state, params).compile().cost_analysis()
        assert analysis
        return float(analysis["flops"])

    alone = count_flops()
    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        assert count_flops() < alone / 6
