"""Requests: the typed arguments of a program, given as flags, or as arguments in Python.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class ShowRequest(Request):
        # plot --figure by step to this file: .svg, .png or .pdf
        plot: str = ""
        figure: Annotated[str, Flag(needs="plot")] = "validation/loss"  # the figure to plot

Each field is a flag of its name, with its type and default; the comment is its help. Rules between
fields are in `list_problems`. `command_line.run` makes a request from the flags of a program,
`make_request` from the arguments of a function of the public API. Both check alike.
"""

import contextlib
import dataclasses
import functools
import re
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from t2t.config.field_types import REGISTERED, FieldType, Rule
from t2t.config.fields import (
    FIELD_TYPES,
    ConfigError,
    DecodingConfig,
    Fields,
    describe_unknown_field,
    show,
)
from t2t.config.files import read_argument
from t2t.config.variants import CHOICES
from t2t.storage.paths import make_path, make_run_path

Made = TypeVar("Made", bound="Request")


class Flag(NamedTuple):
    """The flag of a request's field, as metadata of `Annotated`; by default it has its name."""

    name: str = ""  # default: the field's
    # given once for each value of a tuple, since a value may hold commas; False: given once, with
    # the values joined by commas
    is_repeated: bool = False
    needs: str = ""  # another field, without which this one has no effect
    # not a flag: the field holds the arguments that are not flags, by this name in messages
    operands: str = ""
    # not a flag: the field holds values of `config.decoding`, each of `Request.searched` a flag
    is_search: bool = False
    # Added by `list_flags`, in whose result a field with an empty `name` is no flag:
    field: str = ""  # its name, by which Python gives it
    holder: str = ""  # of a field of `config.decoding`: the field of the request that holds it
    kind: FieldType = FieldType(str)
    default: Any = None  # dataclasses.MISSING: it must be given

    @property
    def is_joined(self) -> bool:
        """True if the flag is a list with commas."""
        kinds = self.kind.plain, *typing.get_args(self.kind.plain)  # such as a list, or None
        return not self.is_repeated and any(typing.get_origin(each) is tuple for each in kinds)


RUN = "a run directory"
RunPath = Annotated[Path, RUN]
RunPaths = Annotated[tuple[Path, ...], RUN]
Counts = Annotated[tuple[int, ...], Rule("be positive", lambda value: all(n > 0 for n in value))]
RunsByName = Annotated[Mapping[str, Path], RUN]  # flags are NAME=RUN
Measure = Annotated[str, Literal[CHOICES["evaluation.measure"]], REGISTERED]
_TEXTS = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request(Fields):
    """Base of requests: dataclasses whose fields are the arguments of a program."""

    # the fields of `config.decoding` that a field with `Flag.is_search` accepts
    searched: ClassVar[tuple[str, ...]] = tuple(vars(DecodingConfig()))

    def __post_init__(self) -> None:
        """Raises `ConfigError` if fields exclude each other."""
        for problem in self.list_problems():
            raise ConfigError(problem)

    def list_problems(self) -> Iterable[str]:
        """Yields a line for each rule between fields that is broken, by the names of flags."""
        for flag in list_flags(type(self)):
            lacks = flag.needs and getattr(self, flag.needs) in (None, False, "")
            if lacks and getattr(self, flag.field) != flag.default:
                yield f"--{flag.name} is for --{flag.needs}; add it, or leave this out"


def find_request(main: Callable[..., object]) -> type[Request] | None:
    """Returns the request that a program's `main` takes; None: it takes no argument."""
    hints = typing.get_type_hints(main)
    return next((hint for name, hint in hints.items() if name != "return"), None)


def list_flags(kind: type[Request]) -> list[Flag]:
    """Lists the flag of each field of a request, and of each field of `config.decoding` in it."""
    found, hints = [], typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        shown = FieldType.of(hints[field.name])
        flag = next((note for note in shown.notes if isinstance(note, Flag)), Flag())
        name = "" if flag.operands or flag.is_search else flag.name or field.name
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found.append(flag._replace(name=name, field=field.name, kind=shown, default=default))
        found += [
            Flag(each.name, field=each.name, holder=field.name, kind=FieldType.of(each.type))
            for each in dataclasses.fields(DecodingConfig)
            if flag.is_search and each.name in kind.searched
        ]
    return found


def make_request(kind: type[Made], given: Mapping[str, Any], dashes: str = "") -> Made:
    """Makes a request from values by field; fields of `config.decoding` stand beside its own.

    `dashes` stand before names in messages: "--" if flags gave the values, "" in Python.

    Raises:
        ConfigError: a name is unknown, a value has the wrong type or breaks a rule, or fields
            exclude each other.
        PathError: a value cannot be the path of a run directory.
    """
    flags, values = list_flags(kind), dict[str, Any]()
    if unknown := given.keys() - {flag.field for flag in flags}:
        name = min(unknown)
        known = describe_unknown_field(name, [flag.field for flag in flags])
        raise ConfigError(f"{name}={show(given[name])}: {known}")
    for flag in flags:
        if flag.field not in given:
            continue
        value = given[flag.field]
        if flag.holder:  # `load_config` checks the value
            values[flag.holder] = {**values.get(flag.holder, {}), flag.field: value}
        else:
            values[flag.field] = _read_value(flag, value, dashes)
    with name_as(kind, dashes):
        return kind(**values)


@contextlib.contextmanager
def name_as(kind: type[Request] | Collection[str], dashes: str = "") -> Iterator[None]:
    """A context that removes the dashes of flags from error messages, unless flags were given.

    Errors name flags, since most users give flags; in Python the names have no dashes. `kind` is a
    request, or the names of its fields.
    """
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if not dashes and type(error).__module__.startswith("t2t."):
            flags = [flag.name for flag in list_flags(kind)] if isinstance(kind, type) else kind
            # Commands are shown as they are typed.
            pattern = rf"`[^`]*`|python -m .*|(?<![\w-])--({'|'.join(filter(None, flags))})\b(?!\.)"
            error.args = (re.sub(pattern, lambda found: found[1] or found[0], str(error)),)
        raise


def _read_value(flag: Flag, value: Any, dashes: str) -> Any:
    """Returns the value of a field, as a flag or Python gave it, with the field's type.

    Texts become paths, run directories and numbers; operands are joined to one text if the field is
    one; an optional value may be None. All other values are checked as they are.

    Raises:
        ConfigError, PathError: as `make_request`.
    """
    name = f"{dashes}{flag.name}" if flag.name else flag.field
    kind, is_run = flag.kind, RUN in flag.kind.notes
    plain, options = kind.plain, typing.get_args(kind.plain)
    if NoneType in options:
        [plain] = (each for each in options if each is not NoneType)
        if value is None or (value == "" and plain is Path and not is_run):
            return None
    if plain is Path:
        text = read_argument(name, value, str)
        if not (text or is_run):
            raise ConfigError(f"{name} is empty; name a file or folder")
        return make_run_path(text, name) if is_run else make_path(text)
    if plain == tuple[Path, ...]:
        return tuple(make_run_path(each, name) for each in read_argument(name, value, _TEXTS))
    if plain == Mapping[str, Path]:
        return _read_runs(name, value)
    if dashes and plain in (tuple[int, ...], tuple[float, ...]):
        value = _read_numbers(name, value, typing.get_args(plain)[0])
    if flag.operands and plain is str and isinstance(value, list):
        value = " ".join(value)
    return read_argument(name, value, kind._replace(plain=plain))


def _read_runs(name: str, value: Any) -> dict[str, Path]:
    """Returns run directories by name, from a mapping or from texts such as NAME=RUN."""
    if not isinstance(value, Mapping):
        texts = read_argument(name, value, _TEXTS)
        value = dict(text.partition("=")[::2] for text in texts)
        if len(value) < len(texts) or "" in (*value, *value.values()):
            raise ConfigError(f"{name}={','.join(texts)}: write NAME=RUN, and each name once")
    found = dict[str, Path]()
    for key, run in value.items():
        shown = f"{name}={key}"
        found[key] = make_run_path(read_argument(shown, run, str), shown)
    return found


def _read_numbers(name: str, values: list[Any], kind: type[float]) -> list[Any]:
    """Returns the numbers that a flag gives as texts."""
    try:
        return [kind(value) if isinstance(value, str) else value for value in values]
    except ValueError:
        raise ConfigError(f"{name}={','.join(map(str, values))} is not a list of numbers") from None


def list_help(kind: type[Request]) -> dict[str, str]:
    """Returns the help of each flag: the comment of its field, and the rules of its type."""
    texts, searches = read_help(kind), read_help(DecodingConfig)
    described, flags = dict[str, str](), list_flags(kind)
    names = {f"decoding.{flag.field}": flag.name for flag in flags if flag.holder}

    def write_flag(cause: str, values: Sequence[str]) -> str:
        """Returns a field of `config.decoding` with its values, if it is a flag, too."""
        return f"--{names[cause]}={' or '.join(values)}" if cause in names else ""

    for flag in flags:
        text = texts.get(flag.field, "")
        if flag.holder:
            text = add_conditions(searches[flag.field], flag.kind, write_flag)
            text += ". Default: the config's"
        if flag.name:
            described[flag.name] = _describe(flag.kind, text)
    return described


def _describe(kind: FieldType, text: str) -> str:
    """Returns a field's help with its rules; NAMES stands for the library's own values."""
    text = "; must ".join([text, *(rule.text for rule in kind.rules)])
    has_names = "NAMES" in text or all(name in text for name in kind.names)
    if kind.takes_registered and not has_names:
        text += ". Known: NAMES, and those of plugins"
    text = text.replace("NAMES", ", ".join(kind.names))
    if text.split(" ")[0] not in kind.names:
        text = text[:1].upper() + text[1:]
    return text if text.endswith("...") else f"{text}."


def add_conditions(text: str, kind: FieldType, write: Callable[[str, Sequence[str]], str]) -> str:
    """Adds to the help of a field with which values of other fields it has an effect, or has none.

    `write` formats the name and values of such another field; "": it is not mentioned.
    """
    shown: dict[bool, list[str]] = {True: [], False: []}
    for note in kind.unused:
        values = [each for each in note.values if each in FIELD_TYPES[note.cause].names]
        if values and (cause := write(note.cause, values)):
            shown[note.is_beside].append(cause)
    before = f"with {' and '.join(shown[False])}: " if shown[False] else ""
    return before + text + (f"; not with {' or '.join(shown[True])}" if shown[True] else "")


def read_help(kind: type) -> dict[str, str]:
    """Reads the comments above and behind the fields of a dataclass and its bases."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        own = _read_comments(each.__module__).get(each.__name__, {})
        found |= {name: text for name, text in own.items() if text or name not in found}
    return found


@functools.cache
def _read_comments(module: str) -> dict[str, dict[str, str]]:
    """Returns the comments of the fields of each class of a module."""
    path = getattr(sys.modules[module], "__file__", None)
    _, *parts = re.split(r"^class (\w+)", Path(path).read_text("utf-8") if path else "", flags=re.M)
    found: dict[str, dict[str, str]] = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        fields = re.findall(r"^((?: +# .*\n)*)    (\w+): .*?(?:  # (.*))?$", body, re.M)
        found[name] = {
            field: re.sub(r"\s+(# )?", " ", f"{above}{behind}").removeprefix(" # ").strip("# ")
            for above, field, behind in fields
        }
    return found


@dataclasses.dataclass(frozen=True)
class OneRun(Request):
    """A request about one run."""

    workdir: RunPath  # the run directory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plugins(Request):
    """The plugins of a run that may be imported: modules named by its config, which are code."""

    # modules on your path that may be imported because the run's config names them as plugins
    plugins: tuple[str, ...] = ()
    # import the copies of its plugins that the run directory holds. They are programs: use it only
    # for runs whose author you trust
    trust_plugins: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hosts(Request):
    """The processes that compute together."""

    # this is one of several processes. They find each other under SLURM, Open MPI and GKE and on
    # TPU pods; elsewhere give --coordinator, --num_processes and --process_id
    distributed: bool = False
    coordinator: str | None = None  # HOST:PORT on which process 0 waits for the others
    num_processes: int | None = None  # number of processes on all hosts
    process_id: int | None = None  # number of this process, from 0

    def list_problems(self) -> Iterator[str]:
        """Yields what is wrong with the address or the numbers."""
        yield from super().list_problems()
        values = self.coordinator, self.num_processes, self.process_id
        named = zip(HOSTS[1:], values, strict=True)
        missing = [f"--{name}" for name, value in named if value is None]
        if 0 < len(missing) < 3:
            yield (
                f"{' and '.join(missing)} missing: give --coordinator, --num_processes and "
                "--process_id, or only --distributed where the cluster provides them"
            )
        if self.coordinator is None or self.num_processes is None or self.process_id is None:
            return
        if not re.fullmatch(r".+:\d+", self.coordinator):
            yield f"--coordinator={self.coordinator}: write HOST:PORT, such as node1:8476"
        if not 0 <= self.process_id < self.num_processes:
            yield (
                f"--process_id={self.process_id} must be from 0 to --num_processes - 1 = "
                f"{self.num_processes - 1}"
            )

    @property
    def hosts(self) -> dict[str, Any]:
        """The arguments of `t2t.runtime.distributed.join`."""
        return {name: getattr(self, name) for name in HOSTS} | {
            "distributed": self.distributed or self.coordinator is not None
        }


HOSTS = tuple(field.name for field in dataclasses.fields(Hosts))
