"""Configs with open fields, whose values a recipe chooses for a text when a run begins.

Such a recipe, as configs/text.py, returns a subclass of `FittedConfig`. `del config.model.dropout`
opens a field; reading it gives the default. A flag, or Python, closes a field by setting it.
`check_config` lets the method `fit` choose the values of fields that are still open. Once the run
has a vocabulary or a checkpoint, its config.json has all values.
"""

import dataclasses
import logging
from collections.abc import Callable, Collection
from decimal import Decimal
from pathlib import Path

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

_log = logging.getLogger(__name__)


class Choices:
    """The open fields of a config, and the values that are chosen for them, each with a reason."""

    def __init__(self, config: Config, left: Collection[str]):
        """`left` are the names of the open fields; `choose` sets them in `config`."""
        self.config = config
        self.left = [*left]  # names of fields that are still open
        self.vocabulary: Path | None = None  # of the run, if it has one already
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


@dataclasses.dataclass
class FittedConfig(Config):
    """A config with open fields; a subclass may have more fields than `Config`, for `fit` to read.

    The recipe's wishes, such as "minutes=30", are in the field `wishes`. A section that the user
    replaces as a whole has no open field.
    """

    # the wish that depends on the machine, such as "minutes": several processes would each choose
    # other values for it
    machine_bound: str = ""

    def fit(self, choices: Choices) -> None:
        """Chooses the values of open fields; all other fields have been checked one by one."""
        raise NotImplementedError


def list_open(config: Config) -> list[str]:
    """Returns the names of the open fields, such as "model.dropout"."""
    return [
        f"{section}.{field.name}"
        for section, value in vars(config).items()
        if isinstance(value, Fields)
        for field in dataclasses.fields(value)  # type: ignore[arg-type]  # all are dataclasses
        if field.name not in vars(value)
    ]


def check_config(
    config: object,
    workdir: Path | None = None,
    fetch: Callable[[DataConfig], None] | None = None,
    *,
    trains_alone: bool = True,
) -> Config:
    """Checks the types and rules of a config that Python has made; returns a complete copy.

    Open fields get the values of the run in `workdir` if it has a checkpoint, or if it has a
    vocabulary and all other fields are as they were. Else values are chosen and logged; a run that
    has a vocabulary keeps it. `fetch` is called before that, to bring the text to this machine.
    `trains_alone`: this is the only process that trains, of the run or the sweep.

    Raises:
        ConfigError: it is not a `Config`, the run began with other wishes, the wishes are for a
            process that trains alone, or as `build_config` and `validate`.
        DataError: no values can be chosen for its text.
    """
    if type(config) is not Config and not isinstance(config, FittedConfig):
        raise ConfigError(f"config={show(config)} is not of type t2t.config.Config; make one")
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(Config)}
    for name, value in values.items():
        if isinstance(value, Fields):  # an open field gets its default
            fields = dataclasses.fields(value)  # type: ignore[arg-type]  # all are dataclasses
            values[name] = {field.name: getattr(value, field.name) for field in fields}
    built = complete_options(build_config(values))
    for name, value in vars(config).items():
        if isinstance(value, Section) and (lost := value.plugin.keys() - config.plugin.keys()):
            raise ConfigError(
                f"{name} comes from a config with the options plugin.{min(lost)}; set plugin, too"
            )
    if isinstance(config, FittedConfig):
        _fit(built, config, workdir, fetch, trains_alone=trains_alone)
    return validate(built)


def _has_checkpoint(workdir: Path) -> bool:
    folder = workdir / "checkpoints"
    return folder.exists() and any(path.name.isdecimal() for path in folder.iterdir())


def _has_begun(workdir: Path) -> bool:
    """Returns whether the run has a checkpoint or a vocabulary, so its values are chosen."""
    has_vocabulary = any((workdir / "vocab").glob("*.model"))
    return (workdir / "config.json").exists() and (has_vocabulary or _has_checkpoint(workdir))


def _fit(
    config: Config,
    recipe: FittedConfig,
    workdir: Path | None,
    fetch: Callable[[DataConfig], None] | None,
    *,
    trains_alone: bool,
) -> None:
    """Sets the open fields of a config as `check_config` says."""
    choices = Choices(config, list_open(recipe))
    if workdir and _has_begun(workdir):
        _take_values(choices, workdir)
    elif recipe.machine_bound and not trains_alone:
        raise ConfigError(
            f"{config.wishes}: {recipe.machine_bound} depend on the machine, so they are for one "
            "process that trains; choose steps=NUMBER"
        )
    if not choices.left:
        return  # as in a row of a sweep, which has the values of its base
    check_fields(config)
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

    If other fields have new values and there is no checkpoint, only the vocabulary's fields are
    taken, and the rest is chosen anew.
    """
    config, path = choices.config, workdir / "config.json"
    saved = load_config(path)
    if config.wishes and config.wishes != saved.wishes:
        raise ConfigError(
            f"{workdir} began with {saved.wishes or 'no wishes'} and has its values, so "
            f"{config.wishes} cannot change them; leave that out, or choose another --workdir"
        )
    config.wishes = saved.wishes
    values, given = flatten(saved), flatten(config)
    settled = {name for name, kind in FIELD_TYPES.items() if SETTLED in kind.notes}
    others = given.keys() - {*choices.left} - settled
    if _has_checkpoint(workdir) or all(values.get(name) == given[name] for name in others):
        taken = {*choices.left}
        _log.info("the recipe's open fields are as in %s", path)
    else:
        choices.vocabulary = workdir / "vocab"
        # How many sentinels a vocabulary has depends on the length.
        taken = {*fields_with(Role.VOCABULARY, Role.COPIED), "data.max_length"}
    for name in [name for name in choices.left if name in taken]:
        choices.choose(name, values[name])
    choices.rows.clear()  # `describe` lists only what is chosen now
