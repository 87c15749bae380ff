"""Finds recipes in the current folder, or else among those that come with t2t, and loads them.

t2t's own are in `configs/`: beside the package in a checkout, inside it when it is installed.
"""

import inspect
import runpy
from pathlib import Path
from typing import Any

from t2t.config.fields import Config, ConfigError, explain_attribute, show

PACKAGE = Path(__file__).parents[1]
_INSTALLED = PACKAGE / "configs"
RECIPES = _INSTALLED if _INSTALLED.is_dir() else PACKAGE.parent / "configs"


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
    """Returns what `get_config` of a recipe returns: `configs/multi30k.py:en-de`.

    Raises:
        ConfigError: the file or the function does not exist, or returns something else.
    """
    path, colon, argument = find_recipe(recipe).partition(":")
    if not Path(path).is_file():
        raise ConfigError(f"config={recipe} is no file; name a recipe, such as configs/base.py")
    arguments = [argument] * bool(colon)
    get_config: Any = runpy.run_path(path).get("get_config")
    try:
        inspect.signature(get_config).bind(*arguments)
    except TypeError as error:
        raise ConfigError(
            f"config={recipe}: the recipe needs a function get_config(), with one argument for "
            f"what follows a colon: {error}"
        ) from None
    try:
        config = get_config(*arguments)
    except AttributeError as error:
        raise explain_attribute(error) or error from None
    if not isinstance(config, Config):
        raise ConfigError(f"config={recipe}: get_config() returned {show(config)}, not a Config")
    return config
