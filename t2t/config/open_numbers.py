"""Values that a recipe leaves open until its text is known, such as those of configs/text.py.

Such a recipe returns a subclass of `OpenConfig`, with `OPEN` in place of numbers and `OPEN_NAME` in
place of names. Flags may set some of them. `check_config` lets the method `fit` choose the others
when a run begins. From then on the run's config has them all, and none is chosen again.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from t2t.config.data_rules import text_problems
from t2t.config.fields import Config, ConfigError, DataConfig, Fields, flatten, show
from t2t.config.files import build_config, complete_options, load_config
from t2t.config.rules import check_fields, validate

# Sizes of a mesh and options of plugins have these values as well; no recipe leaves those open.
OPEN = -1
OPEN_NAME = "open"

_log = logging.getLogger(__name__)


class Choices:
    """A config whose open values are filled in, each with a reason."""

    def __init__(self, config: Config):
        """`choose` changes `config`."""
        self.config = config
        self.rows: list[tuple[str, str, str]] = []  # field, value, reason

    def is_open(self, name: str) -> bool:
        """Returns whether a field, such as "model.dropout", has no value yet."""
        section, _, field = name.partition(".")
        return getattr(getattr(self.config, section), field) in (OPEN, OPEN_NAME)

    def choose(self, name: str, value: float | str, reason: str = "") -> None:
        """Sets a field if it is open."""
        if self.is_open(name):
            section, _, field = name.partition(".")
            setattr(getattr(self.config, section), field, value)
            formats = {float: ".2g", int: ","}
            shown = format(value, formats.get(type(value), ""))
            self.rows.append((name, shown, reason))

    def describe(self) -> str:
        """Formats what was chosen: a line for each field, with its reason."""
        return "\n".join(f"  {name:24}{value:>9}  {why}".rstrip() for name, value, why in self.rows)

    def list_open(self) -> list[str]:
        """Returns the names of the fields that are open."""
        names = (name for name in flatten(self.config) if "." in name)
        own = (name for name in names if not name.startswith(("mesh.", "plugin.")))
        return [name for name in own if self.is_open(name)]


class OpenConfig(Config):
    """A config with open values; it may have fields that `Config` has not, for `fit` to read."""

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

    Open values are those of the run in `workdir`, if it has begun. Else they are chosen and logged,
    after a call of `fetch`, which may bring the text here.

    Raises:
        ConfigError: it is no `Config`, or as `build_config` and `validate`.
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
            {n: vars(value) if isinstance(value, Fields) else value for n, value in sections}
        )
    )
    if isinstance(config, OpenConfig):
        _fill_open_values(built, config, workdir, fetch)
    return validate(built)


def _fill_open_values(
    config: Config,
    recipe: OpenConfig,
    workdir: Path | None,
    fetch: Callable[[DataConfig], None] | None,
) -> None:
    """Sets the open values of a config as `check_config` says."""
    choices = Choices(config)
    left = choices.list_open()
    if workdir and (workdir / "config.json").exists():
        saved = flatten(load_config(workdir / "config.json"))
        for name in left:
            choices.choose(name, saved[name])
        _log.info("the recipe's open fields are as in %s", workdir / "config.json")
        return
    if not left:
        return  # as in a row of a sweep, which has the values of its base
    check_fields(config, without=left)
    if problems := text_problems(config.data):
        raise ConfigError("\n".join(problems))
    if fetch:
        fetch(config.data)
    recipe.fit(choices)
    if left := choices.list_open():
        raise ConfigError(f"the recipe chose no value for {', '.join(left)}")
    if choices.rows:
        _log.info("chosen for this text:\n%s", choices.describe())
