"""Groups of parameters: `training.frozen`, `training.rate_factors`, `model.parametrization`.

The first two have patterns of names. A name is the path of a parameter in the model's tree, such as
encoder.0.self_attention.output.weight. `*` in a pattern stands for any text, dots included. A tree
of a part of the parameters has the same names and lacks the others.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.tree_util import tree_map_with_path

from t2t.config.fields import Config, ConfigError, TrainingConfig
from t2t.model.parameters import Params, find_name
from t2t.model.parametrization import Factors, Growth, find_factors
from t2t.ops.build_model import Parameter, list_parameters
from t2t.training.sharing import remove_owner


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
                shapes = dict.fromkeys(map(generalize, names))
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


def group_parameters(
    config: Config, name_of: Callable[[str], str] = str
) -> tuple[Callable[[str], Factors], list[Factors]]:
    """Returns the factors of a parameter's settings by its name, and those of all groups.

    Of a frozen parameter the factor on the rate is 1. The patterns mean `name_of(name)`.
    """
    training, of_model = config.training, dict[str, Factors]()
    if Growth.of(config.model) != Growth():
        of_model = {
            name: find_factors(
                config.model,
                parameter.kind,
                in_block=any(part.isdigit() for part in name.split(".")),
                by_muon=training.optimizer == "muon" and parameter.matrix is not None,
            )
            for name, parameter in list_parameters(config.model).items()
        }

    def find(name: str) -> Factors:
        own = of_model.get(remove_owner(name), Factors())
        factor = find_factor(training, name_of(name))
        return own if factor is None else own._replace(rate=own.rate * factor)

    by_pattern = training.factor_by_pattern.values()
    return find, sorted({find(n) for n in of_model} or {Factors(f) for f in (1.0, *by_pattern)})


def scale_settings(config: Config, factors: Factors) -> Config:
    """Returns the config with the settings of one group, but for the rate."""
    training = dataclasses.replace(
        config.training,
        adam_eps=config.training.adam_eps * factors.epsilon,
        weight_decay=config.training.weight_decay * factors.decay,
    )
    return dataclasses.replace(config, training=training)


def label_matrices(
    parameters: Mapping[str, Parameter], matrix: str, other: str
) -> Callable[[Params], Any]:
    """Returns the labels of `optax.partition` that tell matrices from all other parameters."""

    def label(path: Sequence[Any], _: object) -> str:
        declared = parameters.get(find_name(path))
        return matrix if declared and declared.matrix else other

    return lambda params: tree_map_with_path(label, params)


def generalize(name: str) -> str:
    """Returns the pattern of a parameter's name that stands for all layers."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def freeze(training: TrainingConfig, params: Params, name_of: Callable[[str], str] = str) -> Params:
    """Returns the parameters, of which the frozen ones have no gradient."""

    def stop(path: Sequence[Any], leaf: jax.Array) -> jax.Array:
        is_frozen = find_factor(training, name_of(find_name(path))) is None
        return jax.lax.stop_gradient(leaf) if is_frozen else leaf

    return tree_map_with_path(stop, params) if training.frozen else params


def select(params: Params, is_chosen: Callable[[str], bool]) -> Params:
    """Returns the part of the tree that has the parameters with these names."""
    leaves = flatten_dict(params)
    return unflatten_dict(
        {path: leaf for path, leaf in leaves.items() if is_chosen(".".join(map(str, path)))}
    )


def combine(parts: Iterable[Params]) -> Params:
    """Joins parts to one tree; of a parameter in several parts the last one is kept."""
    return unflatten_dict({path: leaf for p in parts for path, leaf in flatten_dict(p).items()})
