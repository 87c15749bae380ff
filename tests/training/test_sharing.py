"""Tasks with their own encoders and decoders: steps, trees of parameters, and sizes."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import tree_leaves_with_path

from t2t.config.fields import Config, ConfigError, DataConfig, MeshConfig
from t2t.config.rules import validate
from t2t.data.batch import Route
from t2t.model.parameters import find_name
from t2t.planning.compile_step import compile_step, count_bytes
from t2t.runtime.saved_programs import SavedPrograms
from t2t.training.optimizer import make_optimizer, make_run_optimizer
from t2t.training.sharing import Sharing, count_run_parameters, make_plain
from t2t.training.state import TrainState, abstract_state, init_state
from t2t.training.step import make_run_step, make_train_step
from tests.tiny_training import make_small_mesh
from tests.training.test_step import LENGTH, ROWS, VOCAB_SIZE, change, make_batch, on_device

pytestmark = pytest.mark.usefixtures("one_device")

# Encoders of two languages; the target of the second has its own decoder.
MIXTURE = (
    "en-de: encoder=en prefix=<2de>",
    "en-fr: encoder=en decoder=fr prefix=<2fr>",
    "de-fr: encoder=de decoder=fr prefix=<2fr>",
)
ROUTES = Route("en"), Route("en", "fr"), Route("de", "fr")
SIZES = VOCAB_SIZE, VOCAB_SIZE


def make_config(**sections: dict[str, Any]) -> Config:
    return change(**{"data": {"mixture": MIXTURE}, **sections})


def name_state(state: TrainState) -> dict[str, np.ndarray]:
    """Copies of all arrays by the names of their paths."""
    return {find_name(path): np.array(leaf) for path, leaf in tree_leaves_with_path(state)}


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"ema_decay": 0.5, "clip_norm": 1.0}},
        {"training": {"optimizer": "muon"}, "model": {"own_tables": True}},
        {"training": {"rate_factors": ("encoder@en.*=0.5", "decoder.*=2")}},
        {"model": {"kind": "rnn", "own_tables": True}},
    ],
    ids=str,
)
def test_step_of_a_batch_is_that_of_a_plain_model_and_leaves_other_stacks(
    sections: dict[str, Any],
) -> None:
    config = make_config(**sections)
    structure, state = init_state(config, make_run_optimizer(config), *SIZES)
    step = make_run_step(structure, config, SavedPrograms())
    for number, route in enumerate([*ROUTES, *ROUTES]):
        before = name_state(state)
        batch = on_device(make_batch(number))
        state, metrics = step(state, batch._replace(route=route))
        assert float(metrics.gradient_norm) > 0
        after = name_state(state)
        used = {f"@{name}" for name in (route.encoder, route.decoder) if name}
        for name, array in after.items():
            owner = next((part for part in name.split(".") if "@" in part), "")
            is_other = owner and f"@{owner.partition('@')[2]}" not in used
            is_common = any(
                f".{part}." in name and getattr(route, part) for part in ("encoder", "decoder")
            )
            if is_other or is_common:
                np.testing.assert_array_equal(array, before[name], err_msg=name)
            elif name.startswith("params.") and owner:
                assert (array != before[name]).any(), name
        if not sections.get("training", {}).get("rate_factors"):
            plain = step_plainly(config, before, batch, route)
            for name, array in plain.items():
                np.testing.assert_array_equal(array, after[rename(name, config, route)], name)


def rename(name: str, config: Config, route: Route) -> str:
    """The name in the run of an array of the plain model's state."""
    parts = [*name.split(".")]
    tables = {"src_embedding": "encoder", "tgt_embedding": "decoder"}
    tables |= {"own_output_embedding": "decoder"}
    sides = {"encoder": "encoder", "encoder_norm": "encoder", "decoder_norm": "decoder"}
    decoder = "decoder", "start", "start_bias", "attentive", "readout", "readout_bias"
    sides |= dict.fromkeys(decoder, "decoder")
    if config.model.own_tables:
        sides |= tables
    for number, part in enumerate(parts):
        if part in sides and (owner := getattr(route, sides[part])):
            parts[number] = f"{part}@{owner}"
            break
    return ".".join(parts)


def step_plainly(
    config: Config, before: dict[str, np.ndarray], batch: Any, route: Route
) -> dict[str, np.ndarray]:
    """One step of a model that knows no tasks, from the arrays of a run."""
    plain = dataclasses.replace(config, data=DataConfig())
    optimizer = make_optimizer(plain)
    structure, state = init_state(plain, optimizer, *SIZES)
    filled = {name: before[rename(name, config, route)] for name in name_state(state)}
    paths, shape = jax.tree.flatten(state)
    assert len(paths) == len(filled)
    state = jax.tree.unflatten(shape, [*map(jnp.asarray, filled.values())])
    state, _ = make_train_step(structure, plain, optimizer)(state, batch)
    return name_state(state)


def test_first_route_begins_as_a_plain_model_and_no_two_stacks_begin_alike() -> None:
    config = make_config()
    _, state = init_state(config, make_run_optimizer(config), *SIZES)
    plain = dataclasses.replace(config, data=DataConfig())
    _, alone = init_state(plain, make_optimizer(plain), *SIZES)
    sharing = Sharing(config)
    jax.tree.map(np.testing.assert_array_equal, sharing.pick(state.params, ROUTES[0]), alone.params)
    stacks = [state.params[f"encoder@{name}"] for name in ("en", "de")]
    stacks += [state.params[name] for name in ("decoder", "decoder@fr")]
    weights = [leaf for stack in stacks for leaf in jax.tree.leaves(stack) if leaf.std() > 0]
    assert len({np.asarray(leaf).tobytes() for leaf in weights}) == len(weights)
    # A run continues with what `abstract_state` describes.
    _, described = abstract_state(config, make_run_optimizer(config), *SIZES)
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, described)


def test_one_stack_is_frozen_and_the_others_learn() -> None:
    """The state has no moments of it."""
    config = make_config(training={"frozen": ("encoder@en.*",)})
    structure, state = init_state(config, make_run_optimizer(config), *SIZES)
    assert "encoder@en" not in str(jax.tree.structure(state.opt_state))
    first, step = name_state(state), make_run_step(structure, config, SavedPrograms())
    for number, route in enumerate(ROUTES):
        batch = on_device(make_batch(number))
        state, _ = step(state, batch._replace(route=route))
    last = name_state(state)
    still = {
        name for name in last if name.startswith("params.") if (first[name] == last[name]).all()
    }
    assert still == {name for name in last if name.startswith("params.encoder@en.")}


def test_sizes_and_memory_are_those_of_all_stacks() -> None:
    config = make_config(model={"own_tables": True})
    _, state = init_state(config, make_run_optimizer(config), *SIZES)
    size = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert count_run_parameters(config, *SIZES) == size
    config = dataclasses.replace(
        config, tokenizer=dataclasses.replace(config.tokenizer, vocab_size=VOCAB_SIZE)
    )
    mesh = make_small_mesh(MeshConfig())
    memory = compile_step(config, mesh, ROWS, LENGTH, LENGTH).memory
    assert memory.parameters == 4 * size
    assert memory.parameters + memory.optimizer == count_bytes(state)


def test_plain_config_is_of_one_task_without_own_stacks() -> None:
    config = make_config(model={"own_tables": True})
    task = next(iter(Sharing(config).tasks))
    assert task == ROUTES[0]
    own = make_plain(config, dataclasses.replace(config.data, mixture=("en-de",), encoder="en"))
    assert Sharing(own).is_plain
    assert not own.model.own_tables
    validate(own)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"model": {"kind": "decoder_only"}, "data": {"encoder": "en"}},
            r"data\.encoder='en' is not used by model\.kind='decoder_only'",
        ),
        ({"data": {"encoder": "a b"}}, r"data\.encoder='a b' must hold letters"),
        (
            {"training": {"optimizer": "schedule_free_adamw"}, "data": {"decoder": "en"}},
            "averages over the steps of the run, and a stack of some tasks",
        ),
        ({"model": {"own_tables": True}}, "has no effect, since no task has its own encoder"),
        (
            {"model": {"own_tables": True, "tie_embeddings": "all"}, "data": {"decoder": "en"}},
            r"model\.own_tables=True needs a table for each side",
        ),
        (
            {"data": {"mixture": MIXTURE, "stages": ("5: 1,1,0", "1,0,0")}},
            "in data.mixture, de-fr: nothing trains its encoder 'de', since its weight is 0",
        ),
    ],
    ids=str,
)
def test_stacks_that_cannot_be_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(change(**sections))
