"""Checkpoints of a state that is small and known, in a run directory."""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2t.config.fields import CheckpointConfig, Config, TrainingConfig
from t2t.config.files import save_config
from t2t.training.checkpoint import list_scored_measures
from t2t.training.checkpoint_manager import Checkpoints
from t2t.training.optimizer import make_optimizer
from t2t.training.state import TrainState

CONFIG = Config(
    # With clipping, for then the optimiser's state is the deepest.
    training=TrainingConfig(clip_norm=1.0, validate_every=1),
    checkpoints=CheckpointConfig(every=10),
)
OPTIMIZER = make_optimizer(CONFIG)
Scores = Mapping[str, float] | None


def make_state(step: int, *, averaged: bool = False) -> TrainState:
    """Parameters and moments that are different at each step; `averaged`: a moving average, too."""
    random = np.random.default_rng(step)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(random.standard_normal(shape), jnp.float32)

    params = {"table": draw(16, 8), "encoder": {layer: {"bias": draw(6)} for layer in range(11)}}
    opt_state = OPTIMIZER.init(params)
    _, opt_state = OPTIMIZER.update(params, opt_state, params)
    skipped, in_a_row = jnp.asarray(3), jnp.asarray(1)
    ema = jax.tree.map(lambda x: x / 2, params) if averaged else None
    key = jax.random.key_data(jax.random.key(step))
    return TrainState(jnp.asarray(step), params, opt_state, key, skipped, in_a_row, ema)


def assert_same(one: Any, other: Any) -> None:
    def compare(left: np.ndarray, right: np.ndarray) -> None:
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)

    jax.tree.map(compare, one, other)


def write_run(
    workdir: Path, scores: Mapping[int, Scores], config: CheckpointConfig | None = None
) -> Path:
    """A run directory with a checkpoint for each step; by default each tenth is a regular one."""
    training = dataclasses.replace(CONFIG.training, translate_every=1)
    own = Config(training=training, checkpoints=config or CONFIG.checkpoints)
    workdir.mkdir(exist_ok=True)
    save_config(own, workdir / "config.json")
    with contextlib.closing(Checkpoints(workdir, own, make_optimizer(own))) as checkpoints:
        for step, metrics in scores.items():
            checkpoints.save(make_state(step), metrics)
    return workdir


def restore_state(workdir: Path) -> TrainState:
    """As training does."""
    list_scored_measures(workdir)
    with contextlib.closing(Checkpoints(workdir, CONFIG, OPTIMIZER)) as checkpoints:
        return checkpoints.restore(make_state(0))
