"""Parameters as a tree of arrays: their names, and the check that a checkpoint fits its model."""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
from flax import nnx

from t2t.config.fields import ConfigError

AnyModel = TypeVar("AnyModel", bound=nnx.Module)
Params = dict[str, Any]  # nested by module and parameter name; the leaves are float32 arrays


def merge(structure: nnx.GraphDef[AnyModel], params: Params) -> AnyModel:
    """Returns the model with these parameters; called inside pure functions such as a step."""
    return nnx.merge(structure, nnx.State(params))


def find_name(path: Sequence[Any]) -> str:
    """Returns a parameter's name from its path in JAX's tree functions, such as encoder.0.inner."""
    return jax.tree_util.keystr(tuple(path), simple=True, separator=".")


def name_leaves(params: Params) -> dict[str, Any]:
    """Returns the leaves of a tree of parameters by their names, in the order of the tree."""
    return {find_name(path): x for path, x in jax.tree_util.tree_leaves_with_path(params)}


def check_params(expected: Params, params: Params) -> None:
    """Raises `ConfigError` if the parameters do not have the names and shapes of `expected`."""
    wanted, found = name_leaves(expected), name_leaves(params)
    for name in wanted | found:
        shapes = [getattr(tree.get(name), "shape", None) for tree in (found, wanted)]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"the checkpoint does not fit its config and vocabulary: parameter {name} has "
                f"shape {shapes[0]} instead of {shapes[1]}; use the config.json and "
                "the vocab/ that were written with it"
            )
