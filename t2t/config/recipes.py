"""Finds recipes in the current folder, or else among those that come with t2t, and loads them.

t2t's own are in `configs/`: beside the package in a checkout, inside it when it is installed.
"""

import inspect
import runpy
from collections.abc import Callable
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


def find_function(path: str | Path, name: str, where: str) -> Callable[..., Any]:
    """Runs a file, and returns its function `name`.

    Raises:
        ConfigError: there is no such file or function; the message begins with `where`.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        example = {"get_rows": "sweeps/table3.py", "get_steps": "pipelines/distil.py"}
        shown = f"configs/{example.get(name, 'base.py')}"
        raise ConfigError(f"{where} is no file; name a recipe, such as {shown}")
    function: Any = runpy.run_path(str(file)).get(name)
    if not callable(function):
        raise ConfigError(f"{where}: there is no function {name}()")
    return function


def call(function: Callable[..., Any], refusal: str, *arguments: Any, **named: Any) -> Any:
    """Calls a function of a recipe.

    Raises:
        ConfigError: it takes other arguments, and the message begins with `refusal`; or it reads a
            field that does not exist.
    """
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError as error:
        raise ConfigError(f"{refusal}: {error}") from None
    try:
        return function(*arguments, **named)
    except AttributeError as error:
        raise explain_attribute(error) or error from None


def load_recipe(recipe: str) -> Config:
    """Returns what `get_config` of a recipe returns: `configs/multi30k.py:en-de`.

    Raises:
        ConfigError: the file or the function does not exist, or returns something else.
    """
    path, colon, argument = find_recipe(recipe).partition(":")
    refusal = (
        f"config={recipe}: get_config() of a recipe takes one argument for what follows a colon, "
        "and else none"
    )
    get_config = find_function(path, "get_config", f"config={recipe}")
    config = call(get_config, refusal, *[argument] * bool(colon))
    if not isinstance(config, Config):
        raise ConfigError(f"config={recipe}: get_config() returned {show(config)}, not a Config")
    return config
