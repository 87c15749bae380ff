"""Builds a config from plain values, saves and loads it as JSON, and compares two configs."""

import copy
import dataclasses
import json
import os
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from t2t.config.field_types import FieldType, Role
from t2t.config.fields import (
    FIELD_TYPES,
    Config,
    ConfigError,
    DecodingConfig,
    Fields,
    Section,
    describe_unknown_field,
    fields_with,
    flatten,
    show,
)
from t2t.config.languages import fill_languages
from t2t.config.plain_values import is_ordered, simplify
from t2t.config.rules import list_unused, validate
from t2t.config.variants import (
    describe_options,
    find_options,
    find_type,
    import_plugins,
    list_options,
    open_plugins,
)
from t2t.storage.atomic_files import write_file
from t2t.storage.paths import make_run_path

Built = TypeVar("Built")
AnyConfig = TypeVar("AnyConfig", bound=Config)
Checked = TypeVar("Checked", bound=Fields)


def build_config(values: Any, where: str = "") -> Config:
    """Builds a config from {"model": {"d_model": 512, ...}, "seed": 0, ...}, and checks its types.

    Values of recipes, of Python, of the command line and of JSON all pass through here: Python
    checks no types, the command line accepts tuples of any type, and JSON has no tuples.
    Missing fields get their defaults. Lists become tuples, and integers floats, where the field's
    type asks for it. `where` is a prefix of every error message.

    Raises:
        ConfigError: names every field that does not exist or whose value has the wrong type.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}expected an object, found {values!r}")
    problems: list[str] = []
    config = _build(Config, values, "", problems)
    if problems:
        raise ConfigError("\n".join(f"{where}{problem}" for problem in problems))
    return config


def _build(
    kind: type[Built], values: Mapping[str, Any], section: str, problems: list[str]
) -> Built:
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]  # all are dataclasses
    hints: dict[str, Any] = {field.name: field.type for field in fields}
    if unknown := sorted(f"{section}{name}" for name in values.keys() - hints.keys()):
        problems.append(f"unknown fields {', '.join(unknown)}; written by another version?")
    built = dict[str, Any]()
    for name in filter(hints.__contains__, values):
        value, hint = values[name], hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
            built[name] = _build(typing.cast(type, hint), value, f"{name}.", problems)
            continue
        try:
            built[name] = check_type(f"{section}{name}", value, hint)
        except ConfigError as error:
            problems.append(str(error))
    return kind(**built)


def complete_options(config: Config) -> Config:
    """Imports the plugins of a config; returns it with all of their options, checked by type.

    Raises:
        ConfigError: a module cannot be imported, or an option does not exist or has a wrong type.
    """
    import_plugins(config.plugins)
    given = {name: {} for name in list_options(config.plugins)} | config.plugin
    built, problems = dict[str, Any](), list[str]()
    for name, value in given.items():
        fields, kind = vars(value) if isinstance(value, Fields) else value, find_options(name)
        if not isinstance(fields, Mapping):
            problems.append(f"plugin.{name}={show(value)} is no object with fields")
        elif kind is None:
            problems.append(describe_options(name))
        else:
            known = len(problems)
            built[name] = _build(kind, fields, f"plugin.{name}.", problems)
            problems[known:] = [f"{line}; {describe_options(name)}" for line in problems[known:]]
    if problems:
        raise ConfigError("\n".join(problems))
    sections: dict[str, Any] = {
        name: dataclasses.replace(value, plugin=built)  # type: ignore[call-arg]  # see `Section`
        for name, value in vars(config).items()
        if isinstance(value, Section)
    }
    return dataclasses.replace(config, plugin=built, **sections)


def read_argument(name: str, value: Any, hint: Any) -> Any:
    """Returns an argument of a Python function with the type of a config's field, `hint`.

    One text or number is a tuple of one.

    Raises:
        ConfigError: the value has the wrong type or breaks a rule of it; the message has the
            argument's `name`.
    """
    kind, plain = FieldType.of(hint), _simplify(value)
    is_one = typing.get_origin(kind.plain) is tuple and isinstance(plain, str | float | int)
    found = check_type(name, (plain,) if is_one else value, kind, shown=value)
    for fault in kind.list_faults(found):
        text = ",".join(map(str, found)) if isinstance(found, tuple) else repr(found)
        raise ConfigError(f"{name}={text} {fault}")
    return found


def check_type(name: str, value: Any, hint: Any, *, shown: Any = None) -> Any:
    """Returns the value of a field with the type `hint`, for example a list as a tuple.

    Paths become text; arrays, columns and numbers of other libraries are those of Python.

    Raises:
        ConfigError: it has another type; the message has the field's `name`, and shows `shown`,
            or else the value.
    """
    kind = FieldType.of(hint)
    try:
        return _convert(value, kind.plain)
    except (TypeError, ValueError, OverflowError):
        given = value if shown is None else shown
        raise ConfigError(f"{name}={show(given)} is not of type {kind}") from None


def check_types(part: Checked) -> Checked:
    """Returns a dataclass, such as a row of a sweep, whose fields have their types.

    Raises:
        ConfigError: as `check_type`.
    """
    hints = typing.get_type_hints(type(part))
    values = {name: check_type(name, getattr(part, name), hint) for name, hint in hints.items()}
    return type(part)(**values)


def _simplify(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else simplify(value)


def _convert(value: Any, hint: Any) -> Any:
    value = _simplify(value)
    origin, options = typing.get_origin(hint), typing.get_args(hint) or (hint,)
    if origin in (tuple, Sequence):
        if is_ordered(value):
            items = tuple(_convert(item, options[0]) for item in value)
            if origin is Sequence or options[-1] is ... or len(items) == len(options):
                return items
    elif origin in (Mapping, dict):
        if isinstance(value, Mapping) and all(type(key) is options[0] for key in value):
            return value
    elif type(value) in options:
        return value
    elif type(value) is int and float in options:
        return float(value)
    raise TypeError


class Difference(NamedTuple):
    """A field with its values in two configs; None: derived from other fields."""

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        """Formats it: "model.d_model: 512 -> 256"."""
        old, new = ("default" if value is None else repr(value) for value in self[1:])
        return f"{self.name}: {old} -> {new}"


def differences(old: Config, new: Config) -> list[Difference]:
    """Returns the fields that differ."""
    before, after = flatten(old), flatten(new)
    found = (Difference(k, before.get(k), after.get(k)) for k in dict.fromkeys([*before, *after]))
    return [each for each in found if each.old != each.new]


def overrides(config: Config) -> dict[str, Any]:
    """The fields whose values differ from the defaults, and all options of plugins."""
    defaults = flatten(Config())
    return {
        name: value
        for name, value in flatten(config).items()
        if name not in defaults or value != defaults[name]
    }


def set_fields(config: AnyConfig, values: Mapping[str, Any]) -> AnyConfig:
    """A copy of a config with the given values: {"model.num_heads": 1}; types are not checked.

    Raises:
        ConfigError: a field does not exist, or is one that only a recipe sets.
    """
    changed = copy.deepcopy(config)
    for name, value in values.items():
        section, _, field = name.rpartition(".")
        outer, _, option = section.partition(".")
        if outer == "plugin" and option:
            if find_options(option) and not find_type(name):
                raise ConfigError(f"{name}={show(value)}: {describe_options(option)}")
            known = changed.plugin.get(option, {})
            fields = vars(known) if isinstance(known, Fields) else known
            changed.plugin[option] = {**fields, field: value}
        elif "plugin" in (outer, name):
            raise ConfigError(f"{name}={show(value)}: set one of its options, plugin.NAME.FIELD")
        elif name in fields_with(Role.WISHES):
            raise ConfigError(
                f"{name}={show(value)}: the recipe sets it; write --config=RECIPE:WISHES"
            )
        elif name in FIELD_TYPES:
            setattr(getattr(changed, section) if section else changed, field, value)
        else:
            raise ConfigError(f"{name}={show(value)}: {describe_unknown_field(name)}")
    return changed


def override(config: Config, values: Mapping[str, Any]) -> Config:
    """A copy of the config with the given values: {"model.num_heads": 1}.

    Raises:
        ConfigError: a field does not exist, or its value has the wrong type or breaks a rule.
    """
    changed = dataclasses.asdict(set_fields(config, values))
    return validate(complete_options(build_config(changed)))


def format_config(config: Config) -> str:
    """Formats the config as JSON, one field per line."""
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def save_config(config: Config, path: Path) -> None:
    """Writes the config as `format_config` formats it."""
    write_file(path, format_config(config))


def override_decoding(config: Config, given: Mapping[str, Any], *, searches: bool = True) -> Config:
    """Returns the config with the fields of `config.decoding` that a user gives; None is not given.

    What else the config has is not the user's choice: a field of it that rules refuse beside those
    that are given, such as the temperature of samples for a beam, gets its default. Without a
    search, as in reranking, each field may have an effect.

    Raises:
        ConfigError: a field does not exist or has no effect, or its value has the wrong type or
            breaks a rule.
    """
    decoding, names = dataclasses.replace(config.decoding), set[str]()
    known = [f"decoding.{name}" for name in vars(decoding)]
    for name, value in given.items():
        whole = f"decoding.{name}"
        if whole not in known:
            raise ConfigError(f"{whole}={show(value)}: {describe_unknown_field(whole, known)}")
        if value is not None:
            setattr(decoding, name, check_type(whole, value, FIELD_TYPES[whole]))
            names.add(whole)
    changed = dataclasses.replace(config, decoding=decoding)
    for name, cause in list_unused(changed, refused=True).items():
        if cause in names and name not in names:
            field = name.removeprefix("decoding.")
            setattr(decoding, field, getattr(DecodingConfig(), field))
    values = flatten(validate(changed))
    if problems := [
        f"{name}={values[name]!r} is not used by {cause}={values[cause]!r}; leave it out"
        for name, cause in list_unused(changed).items()
        if searches and name in names
    ]:
        raise ConfigError("\n".join(problems))
    return changed


def load_config(
    path: Path, decoding: Mapping[str, Any] | None = None, *, searches: bool = True
) -> Config:
    """Reads the config of a run, which `save_config` wrote, and imports its plugins if allowed.

    `decoding` has other values of a user, for a program that `searches` or not, as in
    `override_decoding`.

    Raises:
        ConfigError: the file is missing or no JSON, a field is unknown or breaks a rule, or the
            user does not allow a plugin (`variants.open_plugins`).
    """
    config = read_saved_config(path)
    open_plugins(config.plugins, path.parent)
    return override_decoding(complete_options(config), decoding or {}, searches=searches)


def load_run_config(run: str) -> Config:
    """Reads the config of a run for a recipe, with the languages that its source implies.

    Raises:
        ConfigError: as `load_config`.
        PathError: `run` cannot be a run directory.
    """
    config = load_config(make_run_path(run, "the recipe's run") / "config.json")
    return dataclasses.replace(config, data=fill_languages(config.data))


def read_saved_config(path: Path) -> Config:
    """Reads the config that `save_config` wrote, without its plugins and rules; imports nothing.

    Raises:
        ConfigError: the file is missing or no JSON, or a field is unknown or of the wrong type.
    """
    try:
        values = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{path} does not exist; is this a run directory?") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    return build_config(values, f"{path}: ")
