"""Numbers that a recipe leaves open until its text is known, such as those of configs/text.py.

Such a recipe returns a subclass of `OpenConfig`, with `OPEN` in place of these numbers. Flags may
set some of them. `check_config` lets the method `fit` choose the others when a run begins. From
then on the run's config has them all, and none is chosen again.
"""

from t2t.config.fields import Config, flatten

# Only sizes of a mesh and options of plugins have this value as well; no recipe leaves these open.
OPEN = -1


class Choices:
    """A config whose open numbers are filled in, each with a reason."""

    def __init__(self, config: Config):
        """`config` is changed."""
        self.config = config
        self.rows: list[tuple[str, str, str]] = []  # field, value, reason

    def choose(self, name: str, value: float, reason: str = "") -> None:
        """Sets a field, such as "model.dropout", if its number is open."""
        section, _, field = name.partition(".")
        owner = getattr(self.config, section)
        if getattr(owner, field) == OPEN:
            setattr(owner, field, value)
            self.rows.append((name, f"{value:,}" if type(value) is int else f"{value:.2g}", reason))

    def describe(self) -> str:
        """Formats what was chosen: a line for each field, with its reason."""
        return "\n".join(f"  {name:24}{value:>9}  {why}".rstrip() for name, value, why in self.rows)

    def list_open(self) -> list[str]:
        """Returns the names of the fields whose numbers are open."""
        return [
            name
            for name, value in flatten(self.config).items()
            if type(value) in (int, float) and value == OPEN
            if not name.startswith(("mesh.", "plugin."))
        ]


class OpenConfig(Config):
    """A config with open numbers; it may have fields that `Config` has not, for `fit` to read."""

    @property
    def machine_bound(self) -> str:
        """The wish that a machine decides, such as "minutes"; empty: there is none.

        Several processes would each choose other numbers.
        """
        return ""

    def fit(self, choices: Choices) -> None:
        """Chooses all numbers that are open.

        The types of the fields are checked, the rules between them are not.
        """
        raise NotImplementedError
