"""Groups of parameters by patterns of their names: `training.frozen`, `training.rate_factors`.

A name is the path of a parameter in the model's tree, such as encoder.0.self_attention.output. `*`
in a pattern stands for any text, dots included. A tree of a part of the parameters has the same
names and lacks the others.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
from jax.tree_util import tree_leaves_with_path, tree_map_with_path

from t2t.config.fields import ConfigError, TrainingConfig
from t2t.model.interface import Params
from t2t.ops.build_model import find_names


def find_factor(training: TrainingConfig, name: str) -> float | None:
    """Returns the factor on a parameter's learning rate; None if the parameter is frozen."""
    if any(fnmatchcase(name, pattern) for pattern in training.frozen):
        return None
    factors = training.factor_by_pattern.items()
    return next((factor for pattern, factor in factors if fnmatchcase(name, pattern)), 1.0)


def check_patterns(training: TrainingConfig, names: Collection[str]) -> None:
    """Checks that each pattern has an effect on a model with parameters of these names.

    Raises:
        ConfigError: a pattern does not, or all parameters are frozen.
    """
    for field, patterns in (
        ("frozen", training.frozen),
        ("rate_factors", training.factor_by_pattern),
    ):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                shapes = dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.)", "*", name) for name in names)
                raise ConfigError(
                    f"training.{field} has {pattern!r}, which is no parameter's name; use names of "
                    f"this model, or patterns such as {', '.join(shapes)}"
                )
    rest = [name for name in names if find_factor(training, name) is not None]
    if not rest:
        raise ConfigError(
            f"training.frozen={training.frozen} are all parameters, so nothing would be trained; "
            "leave some of them out"
        )
    for pattern in training.factor_by_pattern:
        found = [name for name in rest if fnmatchcase(name, pattern)]
        if not found:
            raise ConfigError(
                f"training.rate_factors has {pattern!r}, which matches only parameters of earlier "
                "patterns or of training.frozen; put it first, or leave it out"
            )
        rest = [name for name in rest if name not in found]


def freeze(training: TrainingConfig, params: Params) -> Params:
    """Returns the parameters, of which the frozen ones have no gradient."""
    frozen = {
        path: jax.lax.stop_gradient(leaf)
        for path, leaf in flatten(params).items()
        if find_factor(training, join_path(path)) is None
    }
    return replace(params, unflatten(frozen)) if frozen else params


def divide(params: Params, groups: Sequence[Collection[tuple[Any, ...]]]) -> list[Params]:
    """Returns the part of the tree that has the parameters of each group."""
    flat = flatten(params)
    return [unflatten({path: flat[path] for path in group}) for group in groups]


def join(parts: Sequence[Params]) -> Params:
    """Returns the tree of all parts."""
    return unflatten({path: leaf for part in parts for path, leaf in flatten(part).items()})


def replace(params: Params, part: Params) -> Params:
    """Returns the tree with the parameters of `part` in place of its own."""
    leaves = flatten(part)
    replaced: Params = tree_map_with_path(
        lambda path, leaf: leaves.get(find_names(path), leaf), params
    )
    return replaced


def list_names(params: Params) -> list[str]:
    """Returns the names of all parameters."""
    return [join_path(path) for path in flatten(params)]


def join_path(path: Sequence[Any]) -> str:
    """Returns the name of the parameter at a path."""
    return ".".join(map(str, path))


def flatten(params: Params) -> dict[tuple[Any, ...], Any]:
    """Returns the leaves of nested dictionaries by their path."""
    return {find_names(path): leaf for path, leaf in tree_leaves_with_path(params)}


def unflatten(leaves: Mapping[tuple[Any, ...], Any]) -> Params:
    """Returns the nested dictionaries that `flatten` took apart."""
    tree: Params = {}
    for (*outer, last), leaf in leaves.items():
        node = tree
        for key in outer:
            node = node.setdefault(key, {})
        node[last] = leaf
    return tree
