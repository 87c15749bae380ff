"""The flags of a program's request: their definition, and the request that they make."""

import dataclasses
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from t2t.config.fields import ConfigError
from t2t.config.requests import Made, Request, find_operands, list_arguments, make_request
from t2t.storage.paths import make_path

flags.disclaim_key_flags()  # --help shows a program the flags that it defines by these functions


def define_request(kind: type[Request]) -> None:
    """Adds the flags of a request."""
    kinds: dict[Any, Any] = {bool: flags.DEFINE_bool, int: flags.DEFINE_integer}
    kinds |= {float: flags.DEFINE_float}
    for argument in list_arguments(kind):
        name, (plain, _, names, is_open) = argument.flag.name, argument.kind
        required = argument.default is dataclasses.MISSING
        default = None if required or argument.default in ("", ()) else argument.default
        types = [plain, *typing.get_args(plain)]  # such as int | None, int and None
        several = any(typing.get_origin(each) is tuple for each in types)
        if name == "config":
            from t2t.config.flags import define_config  # its import takes time

            define_config(required)
        elif argument.flag.is_repeated:
            flags.DEFINE_multi_string(name, default, argument.help)
        elif several:
            values = None if default is None else [*default]
            flags.DEFINE_list(name, values, argument.help, required=required)
        elif names and not is_open:
            flags.DEFINE_enum(name, default, names, argument.help)
        else:
            define = next((kinds[each] for each in kinds if each in types), flags.DEFINE_string)
            define(name, default, argument.help, required=required)


def read_request(kind: type[Made], operands: Sequence[str] = ()) -> Made:
    """Makes a request of its flags and the arguments that are none; raises as `make_request`."""
    given: dict[str, Any] = dict.fromkeys(find_operands(kind), operands)
    arguments = [*list_arguments(kind)]
    for name, flag, *_ in arguments:
        value: Any
        if flag.name == "config":
            from t2t.config.flags import read_recipe

            value = read_recipe()[0] if flags.FLAGS["config"].present else None
        else:
            value = flags.FLAGS[flag.name].value
        if flag.name == "workdir" and isinstance(value, list):
            joined = make_path(",".join(value))  # its name holds commas, of earlier versions
            is_one = len(value) > 1 and (joined / "config.json").exists()
            value = [str(joined)] if is_one else value or [""]
        if value is not None:
            given[name] = value
    return make_request(kind, given, {each.name: f"--{each.flag.name}" for each in arguments})


def combine_repeated(arguments: Sequence[str]) -> None:
    """Joins the values of list flags that are given several times.

    Without this the last value would replace the others. `flags.FLAGS` has parsed the arguments.

    Raises:
        ConfigError: another flag has several values.
    """
    given: dict[str, list[str]] = {}
    for name, value in _read_values(arguments):
        given.setdefault(name, []).append(value)
    for name, values in given.items():
        flag = flags.FLAGS[name]
        if len(values) == 1 or isinstance(flag, flags.MultiFlag):  # which adds up itself
            continue
        if isinstance(flag.parser, flags.BaseListParser) and all(values):
            flag.value = [each for value in values for each in flag.parser.parse(value)]
        elif len(set(values)) > 1:
            shown = " and as ".join(value or "''" for value in values)
            raise ConfigError(f"--{name} is given as {shown}; give it once")


def _read_values(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields name and value of each flag, by the rules of absl."""
    known = flags.FLAGS
    rest = iter(known.read_flags_from_files(list(arguments[1:]), force_gnu=False))
    for argument in rest:
        name, has_value, value = argument.lstrip("-").partition("=")
        if argument == "--" or not (argument.startswith("-") or known.is_gnu_getopt()):
            return
        if not argument.startswith("-") or not name:
            continue
        if name not in known:  # of a Boolean one, such as --noscores
            yield name.removeprefix("no"), "false"
        elif known[name].boolean:
            yield name, str(known[name].parser.parse(value if has_value else "true")).lower()
        else:
            yield name, value if has_value else next(rest)
