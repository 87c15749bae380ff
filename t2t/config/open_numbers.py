"""Values that a recipe leaves open until its text is known, such as those of configs/text.py.

Such a recipe returns a subclass of `OpenConfig`, with `OPEN` in place of numbers and `OPEN_NAME` in
place of names. Flags may set some of them. `check_config` lets the method `fit` choose the others
when a run begins. Once the run has a vocabulary or a checkpoint, its config has them all.
"""

import dataclasses
import logging
from collections.abc import Callable, Collection
from decimal import Decimal
from pathlib import Path
from typing import Any

from t2t.config.data_rules import text_problems
from t2t.config.field_types import SETTLED, Role
from t2t.config.fields import (
    FIELD_TYPES,
    Config,
    ConfigError,
    DataConfig,
    Fields,
    Section,
    fields_with,
    flatten,
    show,
)
from t2t.config.files import build_config, complete_options, load_config
from t2t.config.rules import check_fields, list_unused, validate


class _OpenNumber(int):
    """A number of its own type, since a flag may give a field the same value."""


class _OpenName(str):
    """A name of its own type, for the same reason."""

    __slots__ = ()


OPEN = _OpenNumber(-1)
OPEN_NAME = _OpenName("open")

# Fields that a vocabulary belongs to: how many sentinels it has depends on the length.
_OF_VOCABULARY = {*fields_with(Role.VOCABULARY, Role.COPIED), "data.max_length"}
# Fields whose value the start of a run may replace by what it stands for.
_FILLED = {name for name, kind in FIELD_TYPES.items() if SETTLED in kind.notes}

_log = logging.getLogger(__name__)


def _is_open(value: object) -> bool:
    return isinstance(value, _OpenNumber | _OpenName)


def list_open(recipe: Config) -> list[str]:
    """Returns the names of the fields that a recipe leaves open, such as "model.dropout"."""
    return [name for name, value in flatten(recipe).items() if _is_open(value)]


class Choices:
    """A config whose open values are filled in, each with a reason."""

    def __init__(self, config: Config, left: Collection[str]):
        """`choose` changes `config`, and removes the name from those that are left."""
        self.config = config
        self.left = [*left]  # names of fields without a value of their own
        self.vocabulary: Path | None = None  # the one that the run has already
        self.rows: list[tuple[str, str, str]] = []  # field, value, reason

    def is_open(self, name: str) -> bool:
        """Returns whether a field, such as "model.dropout", has no value yet."""
        return name in self.left

    def choose(self, name: str, value: float | str, reason: str = "") -> None:
        """Sets a field if it is open; one that has no effect gets its default."""
        if self.is_open(name):
            self.left.remove(name)
            if name in list_unused(self.config):
                value, reason = flatten(Config())[name], "not used"
            section, _, field = name.partition(".")
            setattr(getattr(self.config, section), field, value)
            shown = value if isinstance(value, str) else show_number(value)
            self.rows.append((name, shown, reason))

    def describe(self) -> str:
        """Formats what was chosen: a line for each field, with its reason."""
        width = max((len(value) for _, value, _ in self.rows), default=0)
        lines = (f"  {name:24}{value:>{width}}  {why}" for name, value, why in self.rows)
        return "\n".join(map(str.rstrip, lines))


def show_number(value: float) -> str:
    """Formats a number for a reader: an integer whole, others with three digits, no exponent."""
    return f"{value:,}" if isinstance(value, int) else f"{Decimal(f'{value:.3g}'):,f}"


class OpenConfig(Config):
    """A config with open values; it may have fields that `Config` has not, for `fit` to read."""

    @property
    def asked(self) -> str:
        """The wishes that `fit` follows, such as "minutes=30"; they become `Config.wishes`."""
        return ""

    @property
    def machine_bound(self) -> str:
        """The wish that depends on the machine, such as "minutes"; empty: there is none.

        Several processes would each choose other numbers for it.
        """
        return ""

    def fit(self, choices: Choices) -> None:
        """Chooses all values that are open. The other fields have been checked, each by itself."""
        raise NotImplementedError


def check_config(
    config: object,
    workdir: Path | None = None,
    fetch: Callable[[DataConfig], None] | None = None,
) -> Config:
    """Returns a copy of a config that Python has made, with checked types and rules.

    Open values are those of the run in `workdir`, if it has a checkpoint, or a vocabulary and the
    same other values. Else they are chosen and logged, after a call of `fetch`, which may bring the
    text here; a vocabulary is kept.

    Raises:
        ConfigError: it is no `Config`, the run began with other wishes, or as `build_config` and
            `validate`.
        DataError: no values can be chosen for its text.
    """
    if type(config) is not Config and not isinstance(config, OpenConfig):
        raise ConfigError(f"config={show(config)} is not of type t2t.config.Config; make one")
    # Anew, for an error about what was set past `Fields`; without a recipe's own fields.
    values: dict[str, Any] = {
        name: type(value)(**vars(value)) if isinstance(value, Fields) else value
        for name, value in vars(config).items()
        if name in Config.__dataclass_fields__ or not isinstance(config, OpenConfig)
    }
    sections = vars(Config(**values)).items()
    built = complete_options(
        build_config(
            {n: _drop_open(value) if isinstance(value, Fields) else value for n, value in sections}
        )
    )
    for name, value in sections:
        if isinstance(value, Section) and (lost := value.plugin.keys() - config.plugin.keys()):
            raise ConfigError(
                f"{name} comes from a config with the options plugin.{min(lost)}; set plugin, too"
            )
    if isinstance(config, OpenConfig):
        _fill_open_values(built, config, workdir, fetch)
    return validate(built)


def _drop_open(section: Fields) -> dict[str, Any]:
    """Returns the values of a section's fields that are not open; the others get defaults."""
    names = [field.name for field in dataclasses.fields(section)]  # type: ignore[arg-type]
    return {name: value for name in names if not _is_open(value := getattr(section, name))}


def _has_checkpoint(workdir: Path) -> bool:
    folder = workdir / "checkpoints"
    return folder.exists() and any(path.name.isdecimal() for path in folder.iterdir())


def has_begun(workdir: Path) -> bool:
    """Returns whether the run has a checkpoint or a vocabulary, so that it has its numbers."""
    has_vocabulary = any((workdir / "vocab").glob("*.model"))
    return (workdir / "config.json").exists() and (has_vocabulary or _has_checkpoint(workdir))


def _fill_open_values(
    config: Config,
    recipe: OpenConfig,
    workdir: Path | None,
    fetch: Callable[[DataConfig], None] | None,
) -> None:
    """Sets the open values of a config as `check_config` says."""
    choices = Choices(config, list_open(recipe))
    config.wishes = recipe.asked
    if workdir and has_begun(workdir):
        _take_values(choices, workdir)
    if not choices.left:
        return  # as in a row of a sweep, which has the values of its base
    check_fields(config, without=choices.left)
    if problems := text_problems(config.data):
        raise ConfigError("\n".join(problems))
    if fetch:
        fetch(config.data)
    recipe.fit(choices)
    if choices.left:
        raise ConfigError(f"the recipe chose no value for {', '.join(choices.left)}")
    if choices.rows:
        _log.info("chosen for this text:\n%s", choices.describe())


def _take_values(choices: Choices, workdir: Path) -> None:
    """Fills in the values of a run that has begun.

    Without a checkpoint, and with new values of other fields, only those of the vocabulary are
    taken: the rest is chosen anew.
    """
    config, path = choices.config, workdir / "config.json"
    saved = load_config(path)
    if config.wishes and config.wishes != saved.wishes:
        raise ConfigError(
            f"{workdir} began with {saved.wishes or 'no wishes'} and has its numbers, so "
            f"{config.wishes} cannot change them; leave that out, or choose another --workdir"
        )
    config.wishes = saved.wishes
    values, given = flatten(saved), flatten(config)
    others = given.keys() - {*choices.left, *_FILLED}
    is_same = all(values.get(name) == given[name] for name in others)
    if _has_checkpoint(workdir) or is_same:
        taken = [*choices.left]
        _log.info("the recipe's open fields are as in %s", path)
    else:
        choices.vocabulary = workdir / "vocab"
        taken = [name for name in choices.left if name in _OF_VOCABULARY]
    for name in taken:
        choices.choose(name, values[name])
    choices.rows.clear()  # `describe` is of what is chosen now
