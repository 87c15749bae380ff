"""Finds and loads recipes, and makes the config of what a recipe returns.

A recipe is found in the current folder, or else among t2t's own in `configs/`: beside the package
in a checkout, inside it when it is installed.
"""

import logging
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from t2t.config.data_rules import text_problems
from t2t.config.fields import (
    Config,
    ConfigError,
    DataConfig,
    Fields,
    explain_attribute,
    flatten,
    show,
)
from t2t.config.files import build_config, complete_options, load_config
from t2t.config.open_numbers import Choices, OpenConfig
from t2t.config.rules import check_fields, validate

PACKAGE = Path(__file__).parents[1]
_INSTALLED = PACKAGE / "configs"
RECIPES = _INSTALLED if _INSTALLED.is_dir() else PACKAGE.parent / "configs"

_log = logging.getLogger(__name__)


def find_recipe(recipe: str) -> str:
    """Resolves the path in a recipe such as `configs/multi30k.py:en-de`; keeps the part after `:`.

    A file in the current folder comes first, then t2t's own recipe of that name. A path that exists
    in neither place is returned unchanged.
    """
    path, colon, argument = recipe.partition(":")
    own = RECIPES.parent / path
    if Path(path).exists() or not own.is_file() or RECIPES not in own.parents:
        return recipe
    return f"{own}{colon}{argument}"


def load_recipe(recipe: str) -> Config:
    """Returns what `get_config` of a recipe returns: `configs/multi30k.py:en-de`; open values stay.

    Raises:
        ConfigError: the file or the function does not exist, or returns something else.
    """
    path, colon, argument = find_recipe(recipe).partition(":")
    if not Path(path).is_file():
        raise ConfigError(f"config={recipe} is no file; name a recipe, such as configs/base.py")
    try:
        config = runpy.run_path(path)["get_config"](*[argument] * bool(colon))
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"config={recipe}: the recipe needs a function get_config(), with one argument for "
            f"what follows a colon: {error}"
        ) from None
    except AttributeError as error:
        raise explain_attribute(error) or error from None
    if not isinstance(config, Config):
        raise ConfigError(f"config={recipe}: get_config() returned {show(config)}, not a Config")
    return config


def check_config(
    config: object,
    workdir: Path | None = None,
    fetch: Callable[[DataConfig], None] | None = None,
) -> Config:
    """Returns a copy of a config that Python has made, with checked types and rules.

    Open values are those of the run in `workdir`, if it has begun. Else they are chosen and logged,
    after a call of `fetch`, which may bring the text here.

    Raises:
        ConfigError: it is no `Config`, or as `build_config` and `validate`.
        DataError: no values can be chosen for its text.
    """
    if type(config) is not Config and not isinstance(config, OpenConfig):
        raise ConfigError(f"config={show(config)} is not of type t2t.config.Config; make one")
    # Anew, for an error about what was set past `Fields`; without a recipe's own fields.
    values: dict[str, Any] = {
        name: type(value)(**vars(value)) if isinstance(value, Fields) else value
        for name, value in vars(config).items()
        if name in Config.__dataclass_fields__ or not isinstance(config, OpenConfig)
    }
    sections = vars(Config(**values)).items()
    built = complete_options(
        build_config(
            {n: vars(value) if isinstance(value, Fields) else value for n, value in sections}
        )
    )
    if isinstance(config, OpenConfig):
        fill_open_values(built, config, workdir, fetch)
    return validate(built)


def fill_open_values(
    config: Config,
    recipe: OpenConfig,
    workdir: Path | None,
    fetch: Callable[[DataConfig], None] | None,
) -> None:
    """Sets the open values of a config as `check_config` says."""
    choices = Choices(config)
    left = choices.list_open()
    if workdir and (workdir / "config.json").exists():
        saved = flatten(load_config(workdir / "config.json"))
        for name in left:
            choices.choose(name, saved[name])
        _log.info("the recipe's open fields are as in %s", workdir / "config.json")
        return
    if not left:
        return  # as in a row of a sweep, which has the values of its base
    check_fields(config, without=left)
    if problems := text_problems(config.data):
        raise ConfigError("\n".join(problems))
    if fetch:
        fetch(config.data)
    recipe.fit(choices)
    if left := choices.list_open():
        raise ConfigError(f"the recipe chose no value for {', '.join(left)}")
    if choices.rows:
        _log.info("chosen for this text:\n%s", choices.describe())
