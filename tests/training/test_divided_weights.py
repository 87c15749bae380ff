"""Matrices that data parallelism divides on GPUs: their values, and checkpoints of them."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from t2t.config.fields import Config, MeshConfig, ModelConfig
from t2t.model.parameters import name_leaves
from t2t.runtime.mesh import make_mesh
from t2t.training.checkpoint_manager import Checkpoints
from t2t.training.divided_weights import divide, gather
from t2t.training.optimizer import make_optimizer
from t2t.training.state import abstract_state, init_params, init_state
from tests.training.toy_run import CONFIG, assert_same

SIZES = 48, 48


def make_config(dtype: str, frozen: tuple[str, ...] = ()) -> Config:
    model = ModelConfig(num_layers=1, d_model=16, d_ff=32, num_heads=2, dtype=dtype)
    training = dataclasses.replace(CONFIG.training, frozen=frozen)
    return dataclasses.replace(CONFIG, model=model, training=training)


@contextlib.contextmanager
def on_gpus() -> Iterator[None]:
    """Four devices with the operations of GPUs."""
    mesh = make_mesh(MeshConfig(data=4), jax.devices()[:4])
    with pytest.MonkeyPatch.context() as patch, jax.set_mesh(mesh):
        patch.setattr("t2t.ops.select_kernels.platform", lambda: "gpu")
        yield


def test_trained_matrices_are_divided_and_gathered_as_products_round_them() -> None:
    config = make_config("bfloat16", frozen=("encoder.*",))
    with on_gpus():
        _, params = init_params(config, *SIZES)
        divided = divide(config, params)
        gathered = name_leaves(gather(config, divided))
    for name, param in name_leaves(params).items():
        is_matrix = param.ndim > 1 and not name.endswith(("table", "bias"))
        parts = 4 if is_matrix and name.startswith("decoder") else 1
        (own, *_) = name_leaves(divided)[name].addressable_shards
        assert own.data.size == param.size // parts
        rounded = param.astype(jnp.bfloat16).astype(jnp.float32) if parts > 1 else param
        assert_same(gathered[name], rounded)
        assert jax.typeof(gathered[name]) == jax.typeof(param)


def test_checkpoint_of_divided_matrices_is_that_of_whole_ones(
    tmp_path: Path,
) -> None:
    config = make_config("float32")
    optimizer = make_optimizer(config)
    with on_gpus():
        _, saved = init_state(config, optimizer, *SIZES)
        with contextlib.closing(Checkpoints(tmp_path, config, optimizer)) as checkpoints:
            checkpoints.save(saved)
            whole = checkpoints.evaluation_params(saved)
        _, params = init_params(config, *SIZES)
    assert jax.tree.map(jax.typeof, whole) == jax.tree.map(jax.typeof, params)
    with jax.set_mesh(make_mesh(MeshConfig(data=1, fsdp=2), jax.devices()[:2])):
        _, described = abstract_state(config, optimizer, *SIZES)
        with contextlib.closing(Checkpoints(tmp_path, config, optimizer)) as checkpoints:
            assert_same(checkpoints.restore(described), saved)
