"""Defines the flags of a program's request, and makes the request from their values."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from t2t.config.fields import ConfigError
from t2t.config.requests import Made, Request, list_flags, make_request

flags.disclaim_key_flags()  # so --help lists these flags under the program that defines them


def define_request(
    kind: type[Request], texts: Mapping[str, str], known: flags.FlagValues = flags.FLAGS
) -> None:
    """Adds the flags of a request to `known`; `texts` are their help, as of `list_help`."""
    own: Any = {"flag_values": known}
    kinds: dict[Any, Any] = {bool: flags.DEFINE_bool, int: flags.DEFINE_integer}
    kinds |= {float: flags.DEFINE_float}
    for flag in list_flags(kind):
        if not flag.name:
            continue
        required = flag.default is dataclasses.MISSING
        default = None if required or flag.default in ("", (), {}) else flag.default
        types = [flag.kind.plain, *typing.get_args(flag.kind.plain)]  # such as int | None, int
        text = texts.get(flag.name, "")
        if flag.name == "config" and known is flags.FLAGS:
            try:
                from t2t.config.config_flag import define_config  # its import takes time
            except Exception:  # in ml_collections; it is raised again where the recipe is read
                flags.DEFINE_string("config", None, "A recipe, a Python file.", required=required)
            else:
                define_config(required)
        elif flag.is_repeated:
            flags.DEFINE_multi_string(flag.name, default, text, required=required, **own)
        elif flag.is_joined:
            values = None if default is None else [*default]
            flags.DEFINE_list(flag.name, values, text, required=required, **own)
        elif flag.kind.names and not flag.kind.takes_registered:
            flags.DEFINE_enum(flag.name, default, flag.kind.names, text, **own)
        else:
            define = next((kinds[each] for each in kinds if each in types), flags.DEFINE_string)
            define(flag.name, default, text, required=required, **own)


def parse_request(kind: type[Made], arguments: Sequence[str]) -> Made:
    """Makes the request that a program would make from its arguments.

    Of --config it keeps the name; the recipe is not loaded.

    Raises:
        ConfigError: the program would refuse them.
        PathError: as `make_request`.
    """
    known = flags.FlagValues()
    define_request(kind, {}, known)
    try:
        known(["", *arguments])
    except flags.Error as error:
        raise ConfigError(str(error)) from None
    combine_repeated(["", *arguments], known)
    return read_request(kind, known=known)


def read_request(
    kind: type[Made], operands: Sequence[str] = (), known: flags.FlagValues = flags.FLAGS
) -> Made:
    """Makes a request from its flags and operands, the arguments that are not flags.

    It raises what `make_request` raises.
    """
    given: dict[str, Any] = {}
    for flag in list_flags(kind):
        value: Any = operands if flag.operands else None
        if flag.name == "config" and known is flags.FLAGS:
            if known["config"].present:
                from t2t.config.config_flag import read_name

                value = read_name()
        elif flag.name:
            value = known[flag.name].value
        if flag.name == "workdir" and value == []:
            value = [""]  # an empty name, which is refused
        if value is not None:
            given[flag.field] = value
    return make_request(kind, given, "--")


def combine_repeated(arguments: Sequence[str], known: flags.FlagValues = flags.FLAGS) -> None:
    """Joins the values of list flags that are given several times.

    Without this the last value would replace the others. `known` has parsed the arguments.

    Raises:
        ConfigError: another flag has several values.
    """
    several = [known[name] for name in known if known[name].present > 1]
    pairs = [*_read_values(arguments, known)] if several else []
    for flag in several:
        values = [value for name, value in pairs if name == flag.name]
        if isinstance(flag, flags.MultiFlag):  # which collects its values itself
            continue
        if isinstance(flag.parser, flags.BaseListParser) and all(values):
            flag.value = [each for value in values for each in flag.parser.parse(value)]
        elif len(set(values)) > 1:
            shown = " and as ".join(value or "''" for value in values)
            raise ConfigError(f"--{flag.name} is given as {shown}; give it once")


def _read_values(arguments: Sequence[str], known: flags.FlagValues) -> Iterator[tuple[str, str]]:
    """Yields name and value of each flag, by the rules of absl."""
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
