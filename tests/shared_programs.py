"""Lets all tests of a file use the same traced and compiled programs.

Each translator, scorer and training run compiles its own programs, as it does for users. Tests that
make many of them over the same model only differ in parameters and text.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from t2t.api import train_run
from t2t.config.fields import Config, DecodingConfig
from t2t.decoding.staged_search import BatchSearch
from t2t.evaluation import validation_scores
from t2t.ops import build_model
from t2t.runtime.saved_programs import SavedPrograms
from t2t.training import state, step
from t2t.training.optimizer import Optimizer
from t2t.training.sharing import Sharing


def copy_tree(described: tuple[Any, Any]) -> tuple[Any, Any]:
    """The structure, and a tree whose dicts the caller may change."""
    structure, tree = described
    return structure, jax.tree.map(lambda leaf: leaf, tree)


@contextlib.contextmanager
def share_programs() -> Iterator[dict[Any, Any]]:
    """Until it ends, programs are made once for each structure, setting and mesh; yields them."""
    made: dict[Any, Any] = {}

    def once(make: Callable[..., Any], describe: Callable[..., Any]) -> Callable[..., Any]:
        """`make`, called once for each value of `describe`."""

        def find(*arguments: Any, **named: Any) -> Any:
            key = make, jax.sharding.get_mesh(), describe(*arguments), *named.items()
            if key not in made:
                made[key] = make(*arguments, **named)
            return made[key]

        return find

    abstract_model = once(build_model.abstract_model, lambda *arguments: repr(arguments))

    create = BatchSearch.__init__

    def create_search(
        search: BatchSearch, structure: Any, config: DecodingConfig, programs: Any = None
    ) -> None:
        create(search, structure, config, programs)
        setting = structure, search._beam_size, search._sampler, jax.sharding.get_mesh()
        search.programs = made.setdefault(setting, SavedPrograms())

    def describe_training(config: Config) -> Any:
        training = config.training
        if training.schedule == "noam" and not training.cooldown_steps:
            training = dataclasses.replace(training, steps=1)  # on which its rate does not depend
        return repr((config.seed, config.model, training))

    def describe_start(config: Config, _: Optimizer, *sizes: int) -> Any:
        return describe_training(config), (*Sharing(config).tasks,), sizes

    init_state = once(state.init_state, describe_start)
    abstract_state = once(state.abstract_state, describe_start)

    def init_anew(*arguments: Any) -> Any:
        structure, first = init_state(*arguments)
        return structure, jax.tree.map(jnp.copy, first)  # the step donates it

    make_train_step = once(
        step.make_train_step,
        lambda structure, config, _, name_of=str: (
            structure, describe_training(config), name_of("encoder"), name_of("decoder"),
        ),
    )  # fmt: skip

    with pytest.MonkeyPatch.context() as patch:
        for module in (build_model, validation_scores, state):
            patch.setattr(module, "abstract_model", lambda *x: copy_tree(abstract_model(*x)))
        make_eval_step = once(step.make_eval_step, lambda structure: structure)
        patch.setattr(validation_scores, "make_eval_step", make_eval_step)
        patch.setattr(train_run, "init_state", init_anew)
        patch.setattr(train_run, "abstract_state", lambda *x: copy_tree(abstract_state(*x)))
        patch.setattr(step, "make_train_step", make_train_step)
        patch.setattr(BatchSearch, "__init__", create_search)
        yield made
