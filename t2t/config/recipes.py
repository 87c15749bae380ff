"""Looks up recipes: files of the current folder, or those that come with t2t.

The latter are in `configs/`, beside the package in a checkout and inside the installed package.
"""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
_INSTALLED = PACKAGE / "configs"
RECIPES = _INSTALLED if _INSTALLED.is_dir() else PACKAGE.parent / "configs"


def find_recipe(recipe: str) -> str:
    """The recipe with the path of its file, for `--config=configs/multi30k.py:en-de`.

    A file of the current folder comes first, then the recipe of that name that comes with t2t. A
    path that exists nowhere is returned as it is.
    """
    path, colon, argument = recipe.partition(":")
    own = RECIPES.parent / path
    if Path(path).exists() or not own.is_file() or RECIPES not in own.parents:
        return recipe
    return f"{own}{colon}{argument}"
