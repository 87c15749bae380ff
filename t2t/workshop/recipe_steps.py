"""Reads the steps of a recipe such as `configs/pipelines/distil.py`, and its settings."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import GenericAlias
from typing import Any

from absl.flags import BooleanParser

from t2t.config.field_types import FieldType
from t2t.config.fields import ConfigError, show
from t2t.config.recipes import call, find_function, find_recipe
from t2t.storage.paths import make_local_path, make_run_path
from t2t.workshop.steps import Step, Workshop

# How a text becomes a setting of a recipe, by its type.
_READERS: dict[type, Callable[[str], Any]] = {
    str: str, int: int, float: float, bool: BooleanParser().parse,
}  # fmt: skip


def open_workshop(recipe: str, settings: Sequence[str], workdir: Path) -> Workshop:
    """Reads the steps of a recipe, and sorts them.

    Raises:
        ConfigError: as `read_steps`, or steps do not go together.
        PathError: the folder is in a bucket, where not every program can write.
    """
    local = make_local_path(workdir, "the folder of a pipeline is a local or shared one")
    make_run_path(local)
    return Workshop(read_steps(recipe, settings), local)


def read_steps(recipe: str, settings: Sequence[str]) -> list[Step]:
    """Calls `get_steps` of a recipe with settings such as "seeds=0,1,2".

    Raises:
        ConfigError: the file or the function does not exist, a setting is unknown or has the wrong
            type, or the function returns something else than steps.
    """
    where = f"--recipe={recipe}"
    get_steps = find_function(find_recipe(recipe), "get_steps", where)
    given = _read_settings(inspect.signature(get_steps, eval_str=True), settings)
    steps = call(get_steps, where, **given)
    if not isinstance(steps, list) or not all(isinstance(each, Step) for each in steps):
        raise ConfigError(f"{where}: get_steps() has to return a list of Step, not {show(steps)}")
    if not steps:
        raise ConfigError(f"{where}: get_steps() returns no steps")
    return steps


def _read_settings(signature: inspect.Signature, settings: Sequence[str]) -> dict[str, Any]:
    """Returns the arguments of `get_steps`, each with the type of its parameter."""
    known, given = signature.parameters, dict[str, Any]()
    names = ", ".join(known) or "none"
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in known:
            raise ConfigError(f"--set={setting}: write NAME=VALUE; the recipe's names are {names}")
        if name in given:
            raise ConfigError(f"--set={setting}: {name} is given twice")
        given[name] = _read_setting(f"--set={setting}", text, known[name].annotation)
    missing = [name for name, each in known.items() if each.default is each.empty]
    if missing := [name for name in missing if name not in given]:
        shown = " ".join(f"--set={name}=VALUE" for name in missing)
        raise ConfigError(f"the recipe asks for {', '.join(missing)}; add {shown}")
    return given


def _read_setting(shown: str, text: str, hint: Any) -> Any:
    """Returns a setting with the type of its parameter; `shown` is how it was given."""
    kind = FieldType.of(hint)
    for plain, read in _READERS.items():
        try:
            if kind.plain in (plain, plain | None):
                value = None if kind.plain != plain and text == "None" else read(text)
            elif kind.plain == GenericAlias(tuple, (plain, ...)):
                value = tuple(map(read, filter(None, text.split(","))))
            else:
                continue
        except ValueError:
            raise ConfigError(f"{shown}: the value must be of type {kind}") from None
        for fault in kind.list_faults(value):
            raise ConfigError(f"{shown}: the value {fault}")
        return value
    raise ConfigError(
        f"{shown}: the recipe gives this parameter no type that a setting can have; annotate it "
        f"with {', '.join(each.__name__ for each in _READERS)}, one of these with | None, or a "
        "tuple such as tuple[int, ...]"
    )
