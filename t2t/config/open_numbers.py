"""Values that a recipe leaves open until its text is known, such as those of configs/text.py.

Such a recipe returns a subclass of `OpenConfig`, with `OPEN` in place of numbers and `OPEN_NAME` in
place of names. Flags may set some of them. `check_config` lets the method `fit` choose the others
when a run begins. From then on the run's config has them all, and none is chosen again.
"""

from t2t.config.fields import Config, flatten

# Sizes of a mesh and options of plugins have these values as well; no recipe leaves those open.
OPEN = -1
OPEN_NAME = "open"


class Choices:
    """A config whose open values are filled in, each with a reason."""

    def __init__(self, config: Config):
        """`config` is changed."""
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
        """Chooses all values that are open; the others are checked, each by itself."""
        raise NotImplementedError
