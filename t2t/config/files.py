"""Saves and loads a config as JSON, and compares two configs."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t2t.config.fields import Config, ConfigError, flatten
from t2t.config.rules import validate
from t2t.config.type_checks import build_config
from t2t.config.variants import open_plugins
from t2t.storage.atomic_files import write_file


def differences(old: Config, new: Config) -> list[str]:
    """One line for each field that differs: "model.d_model: 512 -> 256"."""
    before, after = flatten(old), flatten(new)
    return [
        f"{k}: {_format(before[k])} -> {_format(after[k])}" for k in before if before[k] != after[k]
    ]


def _format(value: Any) -> str:
    return "default" if value is None else repr(value)  # None: derived from other fields


def overrides(config: Config) -> dict[str, Any]:
    """The fields whose values differ from the defaults."""
    defaults = flatten(Config())
    return {name: value for name, value in flatten(config).items() if value != defaults[name]}


def override(config: Config, values: Mapping[str, Any]) -> Config:
    """A copy of the config with the given values: {"model.num_heads": 1}.

    Raises:
        ConfigError: a field does not exist, or its value has the wrong type or breaks a rule.
    """
    sections = dataclasses.asdict(config)
    for name, value in values.items():
        section, _, field = name.rpartition(".")
        target = sections.get(section) if section else sections
        if not isinstance(target, dict) or field not in target:
            raise ConfigError(f"{name}={value!r}: no such field")
        target[field] = value
    return validate(build_config(sections))


def save_config(config: Config, path: Path) -> None:
    """Writes the config as JSON, one field per line."""
    write_file(path, json.dumps(dataclasses.asdict(config), indent=2) + "\n")


def load_config(path: Path) -> Config:
    """Reads the config of a run, which `save_config` wrote, and imports its plugins if allowed.

    Raises:
        ConfigError: the file is missing or no JSON, a field is unknown or breaks a rule, or the
            user does not allow a plugin (`variants.open_plugins`).
    """
    config = read_saved_config(path)
    open_plugins(config.plugins, path.parent)
    return validate(config)


def read_saved_config(path: Path) -> Config:
    """Reads the same without its plugins and rules; nothing is imported.

    Raises:
        ConfigError: the file is missing or no JSON, or a field is unknown or of the wrong type.
    """
    try:
        values = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; is this a run directory?") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    return build_config(values, f"{path}: ")
