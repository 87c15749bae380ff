"""The `--config` flag, which names a recipe and overrides its fields."""

import ast
import dataclasses
import itertools
import re
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags
from ml_collections.config_flags.config_flags import ConfigFileFlagParser
from ml_collections.config_flags.tuple_parser import TupleParser

from t2t.config.field_types import FieldType
from t2t.config.fields import Config, ConfigError, DataConfig, Fields, explain_attribute, flatten
from t2t.config.files import complete_options
from t2t.config.open_numbers import OpenConfig, check_config, has_begun, list_open
from t2t.config.recipes import find_recipe

flags.disclaim_key_flags()  # --help shows a program the flags that it defines by these functions


class _RecipeParser(ConfigFileFlagParser):  # type: ignore[misc]
    """Loads a recipe from the current folder, or else one that comes with t2t."""

    def parse(self, recipe: str) -> Any:
        """Returns the result of the recipe's `get_config`."""
        try:
            return _register_options(super().parse(find_recipe(recipe)))
        except AttributeError as error:
            if fault := explain_attribute(error):
                raise fault from None
            if error.name != "get_config":
                raise
            raise ConfigError("the recipe has no function get_config()") from None
        except TypeError as error:  # with a traceback as its message
            call = r"get_config\(\*split_path\[1:\]\)\n[\s~^]*TypeError: (.*)"
            if found := re.search(call, str(error)):
                raise ConfigError(
                    f"the recipe needs a function get_config(), with one argument for what follows "
                    f"a colon: {found[1]}"
                ) from None
            raise


def _register_options(config: Any) -> Any:
    """Gives a config the options of its plugins, if a flag sets one, whose type is then known.

    The plugins are those of the flag --config.plugins, which is not read yet, or of the recipe.
    """
    arguments = flags.FLAGS.read_flags_from_files(sys.argv, force_gnu=False)
    is_option = re.compile(r"--?(no)?config\.plugin\.").match
    if not (isinstance(config, Config) and any(map(is_option, arguments))):
        return config
    given: tuple[str, ...] = ()
    for argument, value in itertools.pairwise([*arguments, ""]):
        if found := re.fullmatch(r"--?config\.plugins(?:=(.*))?", argument):
            given += _TextsParser().parse(value if found[1] is None else found[1])
    completed = complete_options(dataclasses.replace(config, plugins=given or config.plugins))
    for name, options in completed.plugin.items():
        config_flags.register_flag_parser_for_type(type(options), _SectionParser(f"plugin.{name}"))
        _register_parsers(type(options))
    return completed


class _IntegerParser(flags.IntegerParser):
    """Takes None as well, for fields that may be None; `build_config` checks which may."""

    def parse(self, argument: Any) -> Any:
        """Returns an int, or None."""
        return None if argument == "None" else super().parse(argument)


class _TextsParser(TupleParser):  # type: ignore[misc]
    """Reads a tuple of texts, such as file names.

    A Python text, tuple or list of texts is read as such: `('a', 'b')`. Anything else is one text
    as it stands, such as `my file.txt`, `123` and `None`; nothing is an empty tuple.
    """

    def parse(self, argument: Any) -> tuple[str, ...]:
        """Returns a tuple of texts."""
        if not isinstance(argument, str):
            return tuple(argument or ())
        try:
            value = ast.literal_eval(argument) if argument else ()
        except (ValueError, SyntaxError):
            return (argument,)
        values = tuple(value) if isinstance(value, tuple | list) else (value,)
        return values if all(isinstance(each, str) for each in values) else (argument,)


class _NumbersParser(TupleParser):  # type: ignore[misc]
    """Reads a tuple of numbers; nothing and None are an empty one."""

    def parse(self, argument: Any) -> tuple[Any, ...]:
        """Returns a tuple; `build_config` checks its elements."""
        return () if argument in ("", "None") else tuple(super().parse(argument))


class _SectionParser(flags.ArgumentParser[Any]):
    """Refuses a value for a whole section."""

    def __init__(self, name: str):
        self._name = name

    def parse(self, argument: Any) -> Any:
        """Returns the recipe's section, the default of the flag."""
        if isinstance(argument, str):
            raise ConfigError(f"write --config.{self._name}.FIELD=VALUE")
        return argument


_PARSERS: dict[Any, flags.ArgumentParser[Any]] = {
    int: _IntegerParser(),
    float: flags.FloatParser(),
    str: flags.ArgumentParser(),
    tuple[str, ...]: _TextsParser(),
    tuple[float, ...]: _NumbersParser(),
    dict[str, Any]: _SectionParser("plugin.NAME"),
}


def parse_override(name: str, texts: Sequence[str], hint: Any) -> Any:
    """Returns the value of a field with the type `hint`, as --config.NAME=TEXT for each text sets.

    Raises:
        ConfigError: it has another type.
    """
    options = _list_plain(hint)
    parser: Any = next((_PARSERS[each] for each in options if each in _PARSERS), TupleParser())
    parser = flags.BooleanParser() if bool in options else parser
    try:
        values = [parser.parse(text) for text in texts]
    except ValueError as error:
        raise ConfigError(f"--config.{name}={','.join(texts)}: {error}") from None
    if isinstance(parser, TupleParser):
        return tuple(itertools.chain.from_iterable(values))
    if len({*values}) > 1:
        raise ConfigError(f"--config.{name} is given as {' and as '.join(texts)}; give it once")
    return values[0]


def _list_plain(hint: Any) -> list[Any]:
    """Returns the plain type of a field, and int for int | None."""
    plain = FieldType.of(hint).plain
    return [plain] if typing.get_origin(plain) is tuple else [plain, *typing.get_args(plain)]


def _register_parsers(section: type[Fields]) -> None:
    """Chooses a parser for each field of a section by its plain type: `check_config` checks it."""
    for field in dataclasses.fields(section):  # type: ignore[arg-type]  # all are dataclasses
        for hint in (field.type, *typing.get_args(field.type)):  # such as int, of int | None
            for plain in filter(_PARSERS.__contains__, _list_plain(hint)):
                config_flags.register_flag_parser_for_type(hint, _PARSERS[plain])
        if dataclasses.is_dataclass(field.type):
            config_flags.register_flag_parser_for_type(field.type, _SectionParser(field.name))
            _register_parsers(typing.cast(type[Fields], field.type))


_register_parsers(Config)


def define_config(required: bool = True) -> None:
    """Adds `--config=configs/base.py`, and `--config.SECTION.FIELD=VALUE` for every field."""
    config_flags.DEFINE_config_file(
        "config",
        None,
        "A recipe, such as configs/base.py or configs/multi30k.py:en-de, from the current folder "
        "or else from t2t itself; --config.SECTION.FIELD=VALUE overrides a field of "
        "t2t/config/fields.py.",
    )
    flags.FLAGS["config"].parser = _RecipeParser("config")
    if required:
        flags.mark_flag_as_required("config")


def read_config(
    steps: int | None = None,
    workdir: Path | None = None,
    *,
    fetch: Callable[[DataConfig], None] | None = None,
    trains_here: bool = True,
) -> Config:
    """Returns the recipe with its overrides, validated.

    Args:
        steps: replaces `training.steps`.
        workdir: a run directory; if the run has begun, its values take the place of those that the
            recipe leaves open.
        fetch: brings a text here that a recipe has to read.
        trains_here: whether this machine is the one that trains.
    """
    recipe = config_flags.get_config_filename(flags.FLAGS["config"])
    if not Path(find_recipe(recipe).split(":")[0]).is_file():
        raise ConfigError(f"--config={recipe} is no file; name a recipe, such as configs/base.py")
    config = flags.FLAGS["config"].value
    if not isinstance(config, Config):
        raise ConfigError(
            f"get_config() of the recipe returned {type(config).__name__}, not t2t.config.Config"
        )
    if isinstance(config, OpenConfig) and (wish := config.machine_bound):
        # processes of one computation, or of a sweep's job array
        several = any(_is_given(name) for name in ("distributed", "coordinator", "index"))
        is_new = workdir is None or not has_begun(workdir)
        if is_new and (several or not trains_here):
            raise ConfigError(
                f"{recipe}: {wish} are those of the machine that trains, and of one process; "
                "choose steps=NUMBER"
            )
    if steps is not None:
        config.training.steps = steps
    return check_config(config, workdir, fetch)


def _is_given(name: str) -> bool:
    """Returns whether a flag exists and has a value, such as 0, but not False."""
    value = flags.FLAGS[name].value if name in flags.FLAGS else None
    return value is not None and value is not False


def read_recipe() -> tuple[str, dict[str, Any]]:
    """Returns the recipe and the overridden fields, as given on the command line."""
    flag = flags.FLAGS["config"]
    return config_flags.get_config_filename(flag), dict(config_flags.get_override_values(flag))


def read_chosen(config: Config) -> dict[str, Any]:
    """Returns the values of `read_config`'s result that the recipe had left open."""
    values, recipe = flatten(config), flags.FLAGS["config"].value
    return {name: values[name] for name in list_open(recipe)} if recipe else {}
