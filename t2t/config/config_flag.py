"""The `--config` flag, which names a recipe and overrides its fields.

`ml_collections` reads the flags as texts. The functions that load a recipe, and set and check its
fields, are the same as in Python.
"""

import ast
import functools
import itertools
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags
from ml_collections.config_flags.tuple_parser import TupleParser

from t2t.config.field_types import FieldType
from t2t.config.fields import (
    Config,
    ConfigError,
    DataConfig,
    describe_unknown_field,
    flatten,
)
from t2t.config.files import set_fields
from t2t.config.fitted_config import check_config, list_open
from t2t.config.recipes import load_recipe
from t2t.config.variants import find_type, import_plugins

flags.disclaim_key_flags()  # so --help lists these flags under the program that defines them


class _Placeholder:
    """Stands for a recipe, or a section, while `ml_collections` reads the flags of its fields.

    It has fields of all names: booleans, whose flags need no value, and fields that take texts.
    `load` loads the recipe, once.
    """

    def __init__(self, load: Callable[[], Config], name: str = ""):
        self._load, self._name = load, name

    def __getitem__(self, field: str) -> "_Placeholder | bool":
        name = f"{self._name}.{field}" if self._name else field
        if name == "plugin":  # the types of its options are known when it is imported
            import_plugins(_read_plugins() or self._load().plugins)
        return bool in _list_types(name) or _Placeholder(self._load, name)

    def __contains__(self, field: str) -> bool:
        return True

    def __setitem__(self, field: str, value: Any) -> None:
        """Sets nothing: the flag keeps the texts."""


class _TextParser(TupleParser):  # type: ignore[misc]  # whose flags may be repeated
    """Takes each text of a flag as it is."""

    def parse(self, text: Any) -> tuple[str, ...]:
        """Returns the text as a tuple; `ml_collections` joins the tuples of a repeated flag."""
        if isinstance(text, str) and text.startswith("--") and text in _list_arguments():
            raise ValueError("this is the next flag; give a value after =")
        return (text,) if isinstance(text, str) else ()  # the default is not a text


config_flags.register_flag_parser_for_type(_Placeholder, _TextParser())


class _RecipeParser(flags.ArgumentParser[Any]):
    """Takes the name of a recipe, which is loaded later."""

    def parse(self, recipe: str) -> _Placeholder:
        """Returns the recipe's placeholder; raises `ConfigError` for a flag that names no field."""
        for argument in _list_arguments():
            found = re.match(r"--?(?:no)?config\.([^=]*)", argument)
            parts = found[1].split(".") if found else []
            depth = 3 if parts[:1] == ["plugin"] else 2
            if found and not (len(parts) <= depth and all(map(str.isidentifier, parts))):
                raise ConfigError(f"{found[1]}: {describe_unknown_field(found[1])}")
        return _Placeholder(functools.cache(functools.partial(load_recipe, recipe)))


def _list_arguments() -> list[str]:
    """Returns the arguments of the program, with the content of files named by --flagfile."""
    return list(flags.FLAGS.read_flags_from_files(sys.argv[1:], force_gnu=False))


def _read_plugins() -> Any:
    """Returns the modules of --config.plugins, which may stand after the flags of their options."""
    texts = [
        after if found[1] is None else found[1]
        for argument, after in itertools.pairwise([*_list_arguments(), ""])
        if (found := re.fullmatch(r"--?config\.plugins(?:=(.*))?", argument))
    ]
    return _read_value("plugins", texts)


def _list_types(name: str) -> tuple[Any, ...]:
    """Returns the plain type of a field, and the parts of a union, such as int and None."""
    plain = (find_type(name) or FieldType(str)).plain
    return plain, *typing.get_args(plain)


def _read_texts(text: str) -> tuple[str, ...]:
    """Reads a tuple of texts, such as file names.

    A Python text, tuple or list of texts is read as such: `('a', 'b')`. Anything else is one text
    as it stands, such as `my file.txt`, `123` and `None`; nothing is an empty tuple.
    """
    values = _read_literals(text)
    return values if all(isinstance(each, str) for each in values) else (text,)


def _read_literals(text: str) -> tuple[Any, ...]:
    """Reads a tuple of Python's literals, such as `2,0.5`; another text is one element."""
    try:
        value = ast.literal_eval(text) if text else ()
    except (ValueError, SyntaxError):
        return (text,)
    return tuple(value) if isinstance(value, tuple | list) else (value,)


_PARSERS: dict[Any, Callable[[str], Any]] = {
    str: str,
    bool: flags.BooleanParser().parse,
    int: flags.IntegerParser().parse,
    float: flags.FloatParser().parse,
}


def read_overrides(given: Mapping[str, Any], plugins: Sequence[str]) -> dict[str, Any]:
    """Reads the values that flags give to fields as texts; imports the plugins that they name.

    A text that is not a value of the field's type stays a text, which the check of types refuses.

    Args:
        given: the texts of each field's flag, or a bool.
        plugins: the recipe's plugins, imported if no flag names others.

    Raises:
        ConfigError: a field has two values, or a plugin cannot be imported.
    """
    import_plugins(_read_value("plugins", given.get("plugins", ())) or plugins)
    return {
        name: texts if isinstance(texts, bool) else _read_value(name, texts)
        for name, texts in given.items()
    }


def _read_value(name: str, texts: Sequence[str]) -> Any:
    """Returns a field's value from the texts of its flag; `None` is an empty tuple of numbers."""
    types = _list_types(name)
    for kind in types:
        if typing.get_origin(kind) is tuple:
            is_text = str in typing.get_args(kind)
            read = _read_texts if is_text else _read_literals
            none = () if is_text else ("None",)
            return tuple(each for text in texts if text not in none for each in read(text))
    if len({*texts}) > 1:
        raise ConfigError(f"--config.{name} is given as {' and as '.join(texts)}; give it once")
    parse = next((_PARSERS[each] for each in types if each in _PARSERS), str)
    try:
        return None if texts[0] == "None" and parse is not str else parse(texts[0])
    except ValueError:
        return texts[0]


def define_config(required: bool = True, known: flags.FlagValues = flags.FLAGS) -> None:
    """Adds `--config=configs/base.py`, and `--config.SECTION.FIELD=VALUE` for every field."""
    config_flags.DEFINE_config_file(
        "config",
        None,
        "A recipe, such as configs/base.py or configs/multi30k.py:en-de, from the current folder "
        "or else from t2t itself; --config.SECTION.FIELD=VALUE overrides a field of "
        "t2t/config/fields.py.",
        flag_values=known,
        sys_argv=sys.argv[1:],  # with the program's name, --flagfile would not be read
    )
    known["config"].parser = _RecipeParser()
    if required:
        flags.mark_flag_as_required("config", known)


def read_config(
    steps: int | None = None,
    workdir: Path | None = None,
    *,
    fetch: Callable[[DataConfig], None] | None = None,
    trains_alone: bool = True,
) -> Config:
    """Returns the recipe with its overrides, validated.

    Args:
        steps: replaces `training.steps`.
        workdir: a run directory; if the run has begun, its values take the place of those that the
            recipe leaves open.
        fetch: brings the text that a recipe has to read to this machine.
        trains_alone: this is the only process that trains, of the run or the sweep.
    """
    config = read_recipe()
    if steps is not None:
        config.training.steps = steps
    return check_config(config, workdir, fetch, trains_alone=trains_alone)


def read_recipe(known: flags.FlagValues = flags.FLAGS) -> Config:
    """Returns the recipe with the values that flags give; their types are not checked."""
    flag: Any = known["config"]
    return set_fields(flag.value._load(), read_given(known))


def read_name() -> str:
    """Returns the recipe as the command line names it, such as configs/multi30k.py:en-de."""
    return config_flags.get_config_filename(flags.FLAGS["config"])


def read_given(known: flags.FlagValues = flags.FLAGS) -> dict[str, Any]:
    """Returns the values that flags give to fields, by the names of the fields."""
    flag: Any = known["config"]
    return read_overrides(config_flags.get_override_values(flag), flag.value._load().plugins)


def read_chosen(config: Config) -> dict[str, Any]:
    """Returns the values of fields that the recipe and the flags leave open, after `read_config`.

    `config` is the result of `read_config`.
    """
    values = flatten(config)
    return {name: values[name] for name in list_open(read_recipe())}
