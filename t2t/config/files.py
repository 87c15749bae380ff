"""A config as JSON in the run directory, and what differs between two of them."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t2t.config.fields import Config, ConfigError, flatten
from t2t.config.rules import validate
from t2t.storage.atomic_files import write_file


def differences(old: Config, new: Config) -> list[str]:
    """One line for each field that differs: "model.d_model: 512 -> 256"."""
    before, after = flatten(old), flatten(new)
    return [f"{k}: {before[k]!r} -> {after[k]!r}" for k in before if before[k] != after[k]]


def overrides(config: Config) -> dict[str, Any]:
    """The fields that differ from the defaults."""
    defaults = flatten(Config())
    return {name: value for name, value in flatten(config).items() if value != defaults[name]}


def override(config: Config, values: Mapping[str, Any]) -> Config:
    """A copy with other values of some fields: {"model.num_heads": 1}.

    Raises:
        ConfigError: there is no such field, or the value is of another type or breaks a rule.
    """
    sections = dataclasses.asdict(config)
    for name, value in values.items():
        section, _, field = name.rpartition(".")
        target = sections.get(section) if section else sections
        if not isinstance(target, dict) or field not in target:
            raise ConfigError(f"{name}={value!r}: no such field")
        target[field] = value
    return validate(_build(Config, json.loads(json.dumps(sections)), "overrides"))


def save_config(config: Config, path: Path) -> None:
    """Writes JSON, one field a line."""
    write_file(path, json.dumps(dataclasses.asdict(config), indent=2) + "\n")


def load_config(path: Path) -> Config:
    """Reads what `save_config` wrote; `ConfigError` names what does not fit this version."""
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; is this a run directory?") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    return validate(_build(Config, values, str(path)))


def _build(kind: type, values: Any, where: str) -> Any:
    """A dataclass from plain JSON values, each checked against its field's type."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: expected an object, found {values!r}")
    hints = typing.get_type_hints(kind)
    if unknown := sorted(set(values) - set(hints)):
        raise ConfigError(
            f"{where}: unknown fields {', '.join(unknown)}; written by another version?"
        )
    built = {}
    for name, value in values.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            built[name] = _build(typing.cast(type, hint), value, f"{where}: {name}")
            continue
        is_tuple = typing.get_origin(hint) is tuple
        items = value if is_tuple and isinstance(value, list) else [value]
        options = typing.get_args(hint) or (hint,)  # of `int | None`, and of `tuple[float, ...]`
        items = [float(x) if float in options and type(x) is int else x for x in items]
        if isinstance(value, list) != is_tuple or any(type(x) not in options for x in items):
            raise ConfigError(f"{where}: {name}={value!r} is not of type {hint}")
        built[name] = tuple(items) if is_tuple else items[0]
    return kind(**built)
