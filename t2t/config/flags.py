"""The `--config` flag: a recipe, and overrides of its fields.

Typed values of recipes and of the command line are checked here.
"""

import dataclasses
import sys
import types
import typing
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags
from ml_collections.config_flags.config_flags import ConfigFileFlagParser

from t2t.config.fields import Config, ConfigError
from t2t.config.recipes import find_recipe
from t2t.config.rules import validate


class _RecipeParser(ConfigFileFlagParser):  # type: ignore[misc]
    """Loads a recipe of the current folder, or one of t2t's own."""

    def parse(self, recipe: str) -> Any:
        """The result of the recipe's `get_config`."""
        return super().parse(find_recipe(recipe))


def define_config(required: bool = True) -> None:
    """Adds `--config=configs/base.py`, and `--config.SECTION.FIELD=VALUE` for every field."""
    config_flags.DEFINE_config_file(
        "config",
        None,
        "A recipe, as configs/base.py or configs/multi30k.py:en-de, of the current folder or else "
        "one of t2t's own; --config.SECTION.FIELD=VALUE changes any field of t2t/config/fields.py.",
    )
    flags.FLAGS["config"].parser = _RecipeParser("config")
    if required:
        flags.mark_flag_as_required("config")
    show_in_help("config")


def read_config() -> Config:
    """The recipe with its overrides, validated."""
    recipe = config_flags.get_config_filename(flags.FLAGS["config"])
    if not Path(find_recipe(recipe).split(":")[0]).is_file():
        raise ConfigError(f"--config={recipe} is no file; name a recipe, as configs/base.py")
    chosen = flags.FLAGS["config"].value
    if not isinstance(chosen, Config):
        raise ConfigError(
            f"get_config() of the recipe returned {type(chosen).__name__}, not t2t.config.Config"
        )
    if problems := _find_wrong_types(chosen):
        raise ConfigError("\n".join(problems))
    return validate(chosen)


def read_recipe() -> tuple[str, dict[str, Any]]:
    """As the command line names them: the recipe, and the fields that it overrides."""
    flag = flags.FLAGS["config"]
    return config_flags.get_config_filename(flag), dict(config_flags.get_override_values(flag))


def _find_wrong_types(config: Any, section: str = "") -> list[str]:
    """Recipes are code, and a tuple on the command line takes anything."""
    problems = []
    for name, hint in typing.get_type_hints(type(config)).items():
        value = getattr(config, name)
        if type(value) is hint and dataclasses.is_dataclass(hint):
            problems += _find_wrong_types(value, f"{name}.")
        elif not _fits(value, hint):
            kind = hint.__name__ if isinstance(hint, type) else hint
            problems.append(f"{section}{name}={value!r} is not of type {kind}")
    return problems


def _fits(value: Any, hint: Any) -> bool:
    options = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return any(_fits(value, option) for option in options)
    if typing.get_origin(hint) is tuple:
        return type(value) is tuple and all(_fits(item, options[0]) for item in value)
    return type(value) is hint or (hint is float and type(value) is int)


def show_in_help(name: str) -> None:
    """`--help` lists the flags of the program's own module, and this is another."""
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
