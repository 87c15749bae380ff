"""Finds recipes in the current folder, or else among those that come with t2t.

t2t's own are in `configs/`: beside the package in a checkout, inside it when it is installed.
"""

from pathlib import Path

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
