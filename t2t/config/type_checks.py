"""Builds a config from plain values and checks each against its field's type.

Values from recipes, the command line and JSON all pass through here: recipes are unchecked code,
the command line accepts tuples of any type, and JSON has no tuples and writes 1.0 as 1 at times.
"""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from t2t.config.fields import Config, ConfigError

Section = TypeVar("Section")


def build_config(values: Any, where: str = "") -> Config:
    """Builds a config from {"model": {"d_model": 512, ...}, "seed": 0, ...}.

    Missing fields get their defaults. Lists become tuples, and integers floats, where the field's
    type asks for it. `where` is a prefix of every error message.

    Raises:
        ConfigError: names every field that does not exist or whose value has the wrong type.
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
    if unknown := sorted(f"{section}{name}" for name in values.keys() - hints.keys()):
        problems.append(f"unknown fields {', '.join(unknown)}; written by another version?")
    built = {}
    for name in filter(hints.__contains__, values):
        value, hint = values[name], hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
            built[name] = _build(typing.cast(type, hint), value, f"{name}.", problems)
            continue
        try:
            built[name] = _convert(value, hint)
        except TypeError:
            expected = hint.__name__ if isinstance(hint, type) else hint
            problems.append(f"{section}{name}={value!r} is not of type {expected}")
    return kind(**built)


def _convert(value: Any, hint: Any) -> Any:
    """Converts a value to the field type `hint`; raises TypeError if it cannot."""
    options = typing.get_args(hint) or (hint,)
    if typing.get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            return tuple(_convert(item, options[0]) for item in value)
    elif type(value) in options:
        return value
    elif type(value) is int and float in options:
        return float(value)
    raise TypeError
