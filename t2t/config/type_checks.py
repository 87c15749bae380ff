"""A config from plain values, each checked against its field's type.

Recipes are code, the command line makes a tuple of anything, and JSON knows neither tuples nor
floats without a fraction; so the values of all three pass through here.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from t2t.config.fields import Config, ConfigError

# Fields of earlier versions that changed no number; files that still have them can be read.
REMOVED_FIELDS = frozenset({"model.attention_kernel"})


Section = TypeVar("Section")


def build_config(values: Any, where: str = "") -> Config:
    """A config from {"model": {"d_model": 512, ...}, "seed": 0, ...}; other fields have defaults.

    Lists serve as tuples, and whole numbers as floats. `where` begins each message.

    Raises:
        ConfigError: names every field that does not exist, or whose value is of another type.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}expected an object, found {values!r}")
    problems: list[str] = []
    config = _build(Config, values, "", problems)
    if problems:
        raise ConfigError("\n".join(f"{where}{problem}" for problem in problems))
    return config


def _build(
    kind: Callable[..., Section], values: Mapping[str, Any], section: str, problems: list[str]
) -> Section:
    hints = typing.get_type_hints(kind)
    unknown = {f"{section}{name}" for name in values if name not in hints} - REMOVED_FIELDS
    if unknown:
        problems.append(f"unknown fields {', '.join(sorted(unknown))}; written by another version?")
    built = {}
    for name, value in values.items():
        hint = hints.get(name)
        try:
            if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
                built[name] = _build(typing.cast(type, hint), value, f"{name}.", problems)
            elif hint is not None:
                built[name] = _convert(value, hint)
        except TypeError:
            expected = hint.__name__ if isinstance(hint, type) else hint
            problems.append(f"{section}{name}={value!r} is not of type {expected}")
    return kind(**built)


def _convert(value: Any, hint: Any) -> Any:
    """The value as a field of this type holds it; TypeError where it is of another."""
    options = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            return tuple(_convert(item, options[0]) for item in value)
        raise TypeError
    options = options if isinstance(hint, types.UnionType) else (hint,)
    if type(value) in options:
        return value
    if type(value) is int and float in options:
        return float(value)
    raise TypeError
