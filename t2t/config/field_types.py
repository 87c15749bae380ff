"""The types of the config's fields: the values that a field may have, and what it decides.

    d_model: PositiveInt = 512
    norm: Annotated[str, Literal["layer", "rms", "none"], REGISTERED] = "layer"
    norm_epsilon: Annotated[PositiveFloat, beside("model.norm", "none")] = 1e-6
    log_every: Annotated[PositiveInt, Role.LOGGING] = 100

To type checkers these are int and str, so a recipe may compute them. `files.py` checks the types,
`rules.py` the values; flags and the page of the config read them, too.
"""

import enum
import math
import re
import typing
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple


class Rule(NamedTuple):
    """A rule for the values of a field, as metadata of `Annotated`; None satisfies every rule."""

    text: str  # what a value must do, such as "be positive"
    holds: Callable[[Any], bool]
    more: str = ""  # the end of the message: a reason, or a remedy


class Role(enum.Enum):
    """The role of a field: the subject that its value decides.

    Resume, comparisons, sweeps and exports ask for the fields with a role, so that none of them
    lists fields by name. A field without a role has the role of its section.
    """

    MODEL = "what the model computes"
    REGULARIZATION = "what the model computes in training alone"
    COMPUTATION = "how it is computed: number formats and programs, which change the rounding"
    TEXT = "which text is read, how often and with which tags; a vocabulary is made of it"
    LANGUAGES = "the languages of the text"
    FILES = "files of text, and how they are read; they may move, but their content counts"
    STORE = "where a machine keeps text; nothing depends on it"
    HELD_OUT = "the text of other splits than train"
    BATCHES = "how batches are made of the text"
    VOCABULARY = "how a vocabulary is made"
    COPIED = "a vocabulary that exists and is copied into the run"
    LOSS = "the loss, and so what the probabilities of a trained model mean"
    UPDATES = "what a step of training computes"
    SCHEDULE = "how long training goes on, and the learning rate of each step"
    VALIDATION = "when training validates"
    LOGGING = "when training reports or gives up"
    CHECKPOINTS = "which checkpoints are written and kept"
    DEVICES = "how devices share the work"
    SEARCH = "which output a search finds"
    SEARCH_BATCHES = "how a search is cut into batches"
    SEED = "the random numbers"
    CODE = "code of the user"
    OPTIONS = "options of the user's code, which may decide anything"
    WISHES = "what the user asked of a recipe, such as minutes=30"


# Metadata: the start of a run may replace the value, such as "auto", by the one that it stands for.
SETTLED = "settled when a run starts"

REGISTERED = "or a registered one"  # metadata: the field accepts other values than its Literal


class Unused(NamedTuple):
    """Metadata: the field has no effect with some values of another field, the cause."""

    cause: str  # such as "model.kind"
    values: tuple[Any, ...]  # of the cause; REGISTERED stands for all values of plugins
    is_beside: bool  # True: no effect with these values; False: no effect with all others
    # The end of an error message, in which {default!r} stands for the field's default. With a
    # remedy every config that changes the field is refused, without one ("") only a new run or a
    # request that sets the field.
    remedy: str = ""
    also: "Unused | None" = None  # a second condition: the field has an effect unless both hold


LEAVE = "leave it at {default!r}"


def beside(cause: str, *values: Any, remedy: str = "", also: Unused | None = None) -> Unused:
    """Returns the note of a field that has no effect with these values of another one."""
    return Unused(cause, values, True, remedy, also)


def unless(cause: str, *values: Any, remedy: str = "", also: Unused | None = None) -> Unused:
    """Returns the note of a field that has an effect only with these values of another one."""
    return Unused(cause, values, False, remedy, also)


# NaN satisfies no comparison, so it breaks each of these rules.
PositiveInt = Annotated[int, Rule("be positive", lambda value: value > 0)]
PositiveFloat = Annotated[float, Rule("be positive and finite", lambda value: 0 < value < math.inf)]
NonNegativeInt = Annotated[int, Rule("not be negative", lambda value: value >= 0)]
NonNegativeFloat = Annotated[float, Rule("not be negative", lambda value: value >= 0)]
_BELOW = Rule("be below 2**31", lambda value: value < 2**31)
_AT_MOST = Rule("be at most 2**20", lambda value: value <= 2**20, ": no machine holds more")
Int32 = Annotated[NonNegativeInt, _BELOW]  # enters JAX's integers
PositiveInt32 = Annotated[PositiveInt, _BELOW]
Size = Annotated[PositiveInt, _AT_MOST]  # of an array's dimension
SourcePrefix = Annotated[
    str,
    Rule(
        "have angle brackets around whole words alone",
        lambda value: not re.search(r"<\w|\w>", re.sub(r"(?<!\S)<[^<>\s]+>(?!\S)", "", value)),
    ),
]
StackName = Annotated[
    str,
    Rule(
        "hold letters, digits, '_' and '-', or {src}, {tgt} and {pair} for languages",
        lambda value: re.fullmatch(r"([\w-]|\{(src|tgt|pair)\})*", value) is not None,
    ),
]
Probability = Annotated[float, Rule("lie in [0, 1)", lambda value: 0 <= value < 1)]

# Metadata of texts: what depends on the field depends on the content of this file or folder.
INPUT = "a file or folder that is read"
LOCAL = "a file or folder that is read, if there is one, or a name elsewhere, such as on the Hub"
WRITTEN = "a folder that is written"
# Metadata: the field is common to all tasks of data.mixture, although its role is that of a text
# (`mixture.SET_BY_TASKS`); or a task sets it, although it decides how batches are made.
OF_RUN = "one value for all tasks of a run"
OF_TASK = "a task may have its own value"
InputPath = Annotated[str, INPUT]
InputPaths = Annotated[tuple[str, ...], INPUT]

# Types of one field.
Depth = Annotated[
    PositiveInt,
    Rule("be at most 4096", lambda value: value <= 4096, ": no machine trains a deeper model"),
]
Sentinels = Annotated[NonNegativeInt, _AT_MOST]
Folder = Annotated[
    str, Rule("not be empty", lambda value: value != "", "; '.' is the current folder")
]
WrittenFolder = Annotated[Folder, WRITTEN]
MAX_ALPHA = 10.0  # 1,000 ** alpha is still a float32
FILTERS = ("duplicates", "identical", "script", "overlap")  # in t2t/data/text_filters.py
Exponent = Annotated[
    NonNegativeFloat,
    Rule(
        f"be at most {MAX_ALPHA}",
        lambda value: value <= MAX_ALPHA,
        ": more makes the length penalty of a long output overflow",
    ),
]
Share = Annotated[float, Rule("lie in (0, 1)", lambda value: 0 < value < 1)]
SpanLength = Annotated[
    float, Rule("be at least 1", lambda value: value >= 1, ", the length of the shortest span")
]
Coverage = Annotated[
    float,
    Rule(
        "lie in [0.98, 1]",
        lambda value: 0.98 <= value <= 1,
        ", the shares of characters that SentencePiece can cover",
    ),
]
TopShare = Annotated[
    float,
    Rule(
        "lie in (0, 1]",
        lambda value: 0 < value <= 1,
        ": with 0 no sub-word could be drawn, and 1 draws from all",
    ),
]
Language = Annotated[
    str,
    Rule(
        "be a language",
        lambda value: value.lower() != "none",
        "; leave it empty if it is unknown",
    ),
]
LanguagePair = Annotated[
    str,
    Rule(
        "be SOURCE-TARGET",
        lambda value: re.fullmatch(r"[^-<>{}\s]+-[^-<>{}\s]+", value) is not None,
        ", such as en-de",
    ),
]
Seeds = Annotated[
    tuple[int, ...],
    Rule(
        "name one seed or more, each once",
        lambda values: len({*values}) == len(values) > 0,
        ", such as 0,1,2",
    ),
]
Weights = Annotated[
    tuple[float, ...],
    Rule(
        "all be positive and finite",
        lambda values: all(0 < value < math.inf for value in values),
        "; to skip a corpus, remove it",
    ),
]
Filters = Annotated[
    tuple[str, ...],
    Rule(
        f"be some of {', '.join(FILTERS)}, each once",
        lambda names: {*names} <= {*FILTERS} and len({*names}) == len(names),
        "; on the command line as --config.data.filters=duplicates --config.data.filters=script",
    ),
]


class FieldType(NamedTuple):
    """The parts of a field's type."""

    plain: Any  # such as int, int | None or tuple[str, ...]
    notes: tuple[Any, ...] = ()  # the metadata of `Annotated`, the outermost last

    @classmethod
    def of(cls, hint: Any) -> "FieldType":
        """Takes a type hint apart."""
        if isinstance(hint, cls):
            return hint
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Literal:
            return cls(str, (hint,))
        if origin is Annotated:
            found = cls.of(arguments[0])
            return found._replace(notes=found.notes + arguments[1:])
        if NoneType in arguments:
            [given] = (each for each in arguments if each is not NoneType)
            inner = cls.of(given)
            return inner._replace(plain=inner.plain | None)
        return cls(hint)

    @property
    def names(self) -> tuple[str, ...]:
        """The library's own values; empty: any text, or another type."""
        literals = [note for note in self.notes if typing.get_origin(note) is Literal]
        return typing.get_args(literals[-1]) if literals else ()

    @property
    def takes_registered(self) -> bool:
        """True if values that plugins register are allowed, too."""
        return REGISTERED in self.notes

    @property
    def rules(self) -> list[Rule]:
        """The rules for its values."""
        return [note for note in self.notes if isinstance(note, Rule)]

    @property
    def role(self) -> Role | None:
        """The outermost role in its type."""
        return next((note for note in reversed(self.notes) if isinstance(note, Role)), None)

    @property
    def unused(self) -> list[Unused]:
        """The notes that say with which values of other fields this one has no effect."""
        return [note for note in self.notes if isinstance(note, Unused)]

    def __str__(self) -> str:
        """The plain type as Python writes it."""
        return self.plain.__name__ if isinstance(self.plain, type) else str(self.plain)

    def list_faults(self, value: Any) -> Iterator[str]:
        """Yields what is wrong with a value of this type, such as "must be positive"."""
        if value is None:
            return
        if self.names and not self.takes_registered and value not in self.names:
            yield f"is unknown; use one of {', '.join(self.names)}"
        for rule in self.rules:
            if not rule.holds(value):
                yield f"must {rule.text}{rule.more}"
