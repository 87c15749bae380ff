"""Frozen parameters, and factors on the learning rate: by patterns, with every optimiser."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t2t.config.fields import Config, ConfigError, TrainingConfig
from t2t.config.variants import register
from t2t.model.parameters import Params, name_leaves
from t2t.training.averages import start_average, update_average
from t2t.training.optimizer import apply_updates, describe_optimizer, make_optimizer
from t2t.training.state import init_training
from tests.training.toy_run import assert_same

RANDOM = np.random.default_rng(0)


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.normal(size=shape), jnp.float32)


PARAMS: Params = {
    "encoder": {
        layer: {"self_attention": {"output": draw(2, 3, 4)}, "bias": draw(6)} for layer in range(2)
    },
    "tgt_embedding": {"table": draw(5, 4)},
}
GRADIENTS = [jax.tree.map(lambda x: draw(*x.shape), PARAMS) for _ in range(3)]
BASE = TrainingConfig(schedule="constant", learning_rate=0.03, warmup_steps=2)
OPTIMIZERS = [
    {"optimizer": "adam"},
    {"optimizer": "nadamw", "weight_decay": 0.5},
    {"optimizer": "schedule_free_adamw", "weight_decay": 0.5},
    {"optimizer": "muon"},
]


def take_steps(
    training: TrainingConfig, params: Params, gradients: list[Params]
) -> tuple[Params, Params, Any]:
    """Returns parameters, those for evaluation, and the optimiser's state after some updates."""
    optimizer = make_optimizer(Config(training=training))
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update(gradient, state, params)
        params = apply_updates(params, updates, jnp.array(True))
    evaluate = optimizer.evaluation_params
    return params, evaluate(state, params) if evaluate else params, state


def count_values(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree) if leaf.ndim)


@pytest.mark.parametrize("clip_norm", [0.0, 0.1])
@pytest.mark.parametrize("fields", OPTIMIZERS, ids=lambda fields: fields["optimizer"])
def test_frozen_parameters_stay_and_the_others_move_as_if_alone(
    fields: dict[str, Any], clip_norm: float
) -> None:
    """No weight decay, no state, and no part in the norm for clipping."""
    training = dataclasses.replace(BASE, clip_norm=clip_norm, **fields)
    frozen = dataclasses.replace(training, frozen=("encoder.0.*", "*table"))
    params, evaluated, state = take_steps(frozen, PARAMS, GRADIENTS)
    alone = [{"encoder": {1: tree["encoder"][1]}} for tree in (PARAMS, *GRADIENTS)]
    wanted, wanted_evaluated, wanted_state = take_steps(training, alone[0], alone[1:])
    for found, own in ((params, wanted), (evaluated, wanted_evaluated)):
        assert_same(found["encoder"][1], own["encoder"][1])
        assert_same(found["encoder"][0], PARAMS["encoder"][0])
        assert_same(found["tgt_embedding"], PARAMS["tgt_embedding"])
    assert count_values(state) == count_values(wanted_state) > 0


@pytest.mark.parametrize("fields", OPTIMIZERS, ids=lambda fields: fields["optimizer"])
def test_factor_scales_the_learning_rate_of_its_parameters(fields: dict[str, Any]) -> None:
    training = dataclasses.replace(BASE, **fields)
    # The second pattern does not count for encoder.0.
    factors = dataclasses.replace(training, rate_factors=("encoder.0.*=0.5", "encoder.*=0.25"))
    found, evaluated, _ = take_steps(factors, PARAMS, GRADIENTS)
    for factor, names in ((0.5, "encoder.0"), (0.25, "encoder.1"), (1.0, "tgt_embedding")):
        slower = dataclasses.replace(training, learning_rate=factor * training.learning_rate)
        wanted, wanted_evaluated, _ = take_steps(slower, PARAMS, GRADIENTS)
        for one, other in ((found, wanted), (evaluated, wanted_evaluated)):
            for (name, x), y in zip(name_leaves(one).items(), jax.tree.leaves(other), strict=True):
                if name.startswith(names):
                    np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)


def test_clipping_counts_the_gradients_of_all_groups() -> None:
    training = dataclasses.replace(BASE, clip_norm=0.1, rate_factors=("encoder.*=0.5",))
    _, _, (_, states) = take_steps(training, PARAMS, GRADIENTS[:1])
    scale = (1 - training.adam_b1) * 0.1 / optax.tree.norm(GRADIENTS[0])
    found = {"encoder": optax.tree.get(states[0], "mu")["encoder"]}
    wanted = {"encoder": jax.tree.map(lambda g: scale * g, GRADIENTS[0]["encoder"])}
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), found, wanted)


def test_moving_average_keeps_parameters_that_stay() -> None:
    average = start_average(PARAMS)
    for step in range(3):
        average = update_average(average, PARAMS, 0.9, jnp.asarray(step), jnp.array(True))
    assert_same(average, PARAMS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"frozen": ("encodr.*",)},
            "training.frozen has 'encodr.*', which is no parameter's name; .*"
            r"patterns such as encoder\.\*\.bias, encoder\.\*\.self_attention\.output, tgt",
        ),
        ({"rate_factors": ("*.gamma=2",)}, r"training.rate_factors has '\*.gamma'.* no parameter"),
        ({"frozen": ("encoder.*", "tgt*")}, "training.frozen=.* leave some of them out"),
        (
            {"frozen": ("encoder.*",), "rate_factors": ("encoder.0.*=2",)},
            "training.rate_factors has 'encoder.0.*'.* leave it out",
        ),
        (
            {"rate_factors": ("encoder.*=3", "encoder.0.*=2")},
            "training.rate_factors has 'encoder.0.*'.* put it first",
        ),
    ],
)
def test_pattern_without_effect_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        init_training(Config(training=TrainingConfig(**fields)), make_optimizer(Config()), PARAMS)


@pytest.mark.usefixtures("own_variants")
def test_factors_on_a_rate_that_is_not_used_are_refused() -> None:
    register("training.optimizer", "constant rate")(lambda *_: optax.sgd(0.1))
    training = TrainingConfig(optimizer="constant rate", rate_factors=("encoder.*=0.1",))
    config = Config(training=training)
    with pytest.raises(ConfigError, match=re.escape("training.rate_factors=('encoder.*=0.1',)")):
        describe_optimizer(config, make_optimizer(config), PARAMS)
