"""The requests of programs: typed fields that are flags, and arguments of functions in Python.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class ShowRequest(Request):
        # plot --figure by step to this file: .svg, .png or .pdf
        plot: str = ""
        figure: Annotated[str, Needs("plot")] = "validation/loss"  # the figure to plot

Each field is a flag of its name, with its type and default; the comment is its help. Rules between
fields are in `list_problems`. `command_line.run` makes a program's request of its flags, a function
of the public API makes one of its arguments by `make_request`, and both refuse the same.
"""

import dataclasses
import functools
import itertools
import math
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from t2t.config.field_types import FieldType, NonNegativeInt, PositiveInt, Rule, Variants
from t2t.config.fields import ConfigError, DecodingConfig, Fields
from t2t.config.files import read_argument
from t2t.config.variants import CHOICES
from t2t.storage.paths import make_path, make_run_path

Made = TypeVar("Made", bound="Request")


class Flag(NamedTuple):
    """The flag of a field that has not the field's name, or is given in another way."""

    name: str
    # may be given several times, with one value each, since a value may hold commas; else the
    # values of a tuple are joined by commas
    is_repeated: bool = False
    takes: str = "all"  # of the values of the flag: all | first | rest


class Operands(NamedTuple):
    """Marks the field of the arguments that are no flags; `name` describes them in messages."""

    name: str


class Needs(NamedTuple):
    """Marks a field that has an effect only with another one."""

    name: str


class Overrides(NamedTuple):
    """Marks a mapping of fields of `config.decoding`, of which each has a flag; empty: all."""

    names: tuple[str, ...] = ()

    @property
    def fields(self) -> list["dataclasses.Field[Any]"]:
        """The fields that have a flag."""
        known = dataclasses.fields(DecodingConfig)
        return [field for field in known if not self.names or field.name in self.names]


RUN = "a run directory"
RunPath = Annotated[Path, RUN]
RunPaths = Annotated[tuple[Path, ...], RUN]
Counts = Annotated[tuple[int, ...], Rule("be positive", lambda value: all(n > 0 for n in value))]
Measure = Annotated[str, Variants(*CHOICES["evaluation.measure"])]
_TEXTS = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request(Fields):
    """Base of the requests."""

    def __post_init__(self) -> None:
        """Raises `ConfigError` if fields exclude each other."""
        for problem in self.list_problems():
            raise ConfigError(problem)

    def list_problems(self) -> Iterable[str]:
        """Yields a line for each rule between fields that is broken, by the names of flags."""
        hints = typing.get_type_hints(type(self), include_extras=True)
        for field in dataclasses.fields(self):
            for note in list_notes(hints[field.name]):
                is_given = getattr(self, field.name) != field.default
                lacks = isinstance(note, Needs) and getattr(self, note.name) in (None, False, "")
                if lacks and is_given:
                    yield (
                        f"--{field.name} is for --{note.name}; add --{note.name} or leave it out"
                    )


class Argument(NamedTuple):
    """A field of a request as the command line takes it."""

    name: str  # of the field
    flag: Flag
    kind: FieldType
    default: Any  # dataclasses.MISSING: it must be given
    help: str


def list_arguments(kind: type[Request]) -> Iterator[Argument]:
    """Yields the fields of a request that are flags."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        notes = list_notes(hints[field.name])
        for part in (note for note in notes if isinstance(note, Overrides)):
            for each in part.fields:
                text = re.sub(r'(\w+)="(\w+)"', r"with --\1=\2", read_help(DecodingConfig)[each.name])
                text += ". Default: the config's"
                shown = FieldType.of(each.type)
                if not shown.names and each.name != "mbr":
                    shown = shown._replace(names=CHOICES.get(f"decoding.{each.name}", ()))
                yield Argument(each.name, Flag(each.name), shown, None, text)
        if not any(isinstance(note, Operands | Overrides) for note in notes):
            flag = next((note for note in notes if isinstance(note, Flag)), Flag(field.name))
            shown = FieldType.of(hints[field.name])
            rules = [f"; must {rule.text}" for rule in shown.rules]
            text = "".join([read_help(kind)[field.name], *rules])
            if shown.is_open:
                text += f". Known: {', '.join(shown.names)}, and those of plugins"
            yield Argument(field.name, flag, shown, field.default, text)


def list_notes(hint: Any) -> list[Any]:
    """Lists the metadata of a type hint, and of its parts."""
    own = getattr(hint, "__metadata__", ())
    return [*own, *itertools.chain(*map(list_notes, typing.get_args(hint)))]


def find_operands(kind: type[Request]) -> dict[str, str]:
    """Returns field and description of the arguments that are no flags, if there are any."""
    return {
        name: note.name
        for name, hint in typing.get_type_hints(kind, include_extras=True).items()
        for note in list_notes(hint)
        if isinstance(note, Operands)
    }


def make_request(
    kind: type[Made], given: Mapping[str, Any], shown: Mapping[str, str] | None = None
) -> Made:
    """Makes a request of its fields; those of `config.decoding` may stand beside the others.

    `shown` are the names of flags in messages; None: the fields are arguments of Python.

    Raises:
        ConfigError: a name is unknown, a value has the wrong type or breaks a rule, or fields
            exclude each other.
        PathError: a value cannot be the path of a run directory.
    """
    hints, names = typing.get_type_hints(kind, include_extras=True), shown or {}
    values = {
        name: _read_value(names.get(name, name), value, hints[name]) if name in hints else value
        for name, value in given.items()
    }
    for name, hint in hints.items():
        for part in (note for note in list_notes(hint) if isinstance(note, Overrides)):
            own = [each.name for each in part.fields if each.name in values.keys() - hints.keys()]
            values[name] = {**values.get(name, {}), **{each: values.pop(each) for each in own}}
    try:
        return kind(**values)
    except ConfigError as error:
        if shown:
            raise
        raise ConfigError(re.sub(r"(?<!\w)--(?=\w)", "", str(error))) from None


def _read_value(name: str, value: Any, hint: Any) -> Any:
    """Returns a value with the type of a field; `name` is for messages."""
    kind, notes = FieldType.of(hint), list_notes(hint)
    plain = kind.plain
    if plain in (Path, Path | None):
        text = read_argument(name, value, str | None)
        return make_run_path(text, name) if RUN in notes else text and make_path(text)
    if plain == tuple[Path, ...]:
        return tuple(make_run_path(each, name) for each in read_argument(name, value, _TEXTS))
    if plain in (tuple[int, ...], tuple[float, ...]) and isinstance(value, list):
        value = _read_numbers(name, value, typing.get_args(plain)[0])
    if any(isinstance(note, Operands) for note in notes) and plain is str:
        value = value if isinstance(value, str) else " ".join(value)
    value = read_argument(name, value, plain)
    if kind.names and not kind.is_open and value not in (None, *kind.names):
        raise ConfigError(f"{name}={value!r} is unknown; use {' or '.join(kind.names)}")
    for broken in kind.list_broken(value):
        text = ",".join(map(str, value)) if isinstance(value, tuple) else value
        raise ConfigError(f"{name}={text} must {broken}")
    return value


def _read_numbers(name: str, values: list[Any], kind: type[float]) -> list[Any]:
    """Returns the numbers that a flag has as text."""
    try:
        return [kind(value) if isinstance(value, str) else value for value in values]
    except ValueError:
        raise ConfigError(f"{name}={','.join(values)} is not a list of numbers") from None


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plugins(Request):
    """The modules that a run's config may name, which are programs."""

    # modules on your path that may be imported because the run's config names them as plugins
    plugins: tuple[str, ...] = ()
    # import the copies of its plugins that the run directory holds. They are programs: use it only
    # for runs whose author you trust
    trust_plugins: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Direction(Request):
    """A direction of a run that may have several."""

    # source and target language, such as en-de; if the run has several
    direction: str = ""


@dataclasses.dataclass(frozen=True)
class OneRun(Plugins):
    """A run directory."""

    workdir: RunPath  # the run directory


@dataclasses.dataclass(frozen=True)
class OneCheckpoint(OneRun):
    """A checkpoint of a run."""

    _: dataclasses.KW_ONLY
    # last, best, a step, avg:5 for the mean of the last 5, or ema (ema:STEP) for the moving average
    # of training.ema_decay
    checkpoint: str = "best"


@dataclasses.dataclass(frozen=True)
class ModelRequest(Direction):
    """The checkpoints of one run or several, which form an ensemble."""

    # the run directory. Several, joined by commas, form an ensemble; so do several values of
    # --checkpoint
    workdirs: Annotated[RunPaths, Flag("workdir")]
    # last, best, a step, avg:5 for the mean of the last 5, or ema (ema:STEP) for the moving average
    # of training.ema_decay
    checkpoint: str = "best"
    _: dataclasses.KW_ONLY
    weights: tuple[float, ...] = ()  # weights of an ensemble's models; default: equal
    # an ensemble averages these; the mean of log-probabilities is normalised again
    mean: Literal["probabilities", "log_probs"] = "probabilities"

    @property
    def members(self) -> list[tuple[Path, str]]:
        """Run directory and checkpoint of each model.

        Raises:
            ConfigError: their numbers or the weights do not fit together.
        """
        checkpoints = self.checkpoint.split(",")
        workdirs = list(self.workdirs)
        count = max(len(workdirs), len(checkpoints))
        if len(checkpoints) not in (1, count) or len(workdirs) not in (1, count):
            raise ConfigError(
                f"{len(workdirs)} run directories and {len(checkpoints)} checkpoints; give one of "
                "them, or equally many of both"
            )
        if self.weights and len(self.weights) != count:
            raise ConfigError(f"{len(self.weights)} weights for {count} models; give one for each")
        if count == 1 and (self.weights or self.mean != ModelRequest.mean):
            raise ConfigError("--weights and --mean are for an ensemble; leave them out")
        if not all(weight > 0 and math.isfinite(weight) for weight in self.weights):
            raise ConfigError(f"--weights={','.join(map(str, self.weights))} must be positive")
        shares = checkpoints * (count // len(checkpoints))
        return list(zip(workdirs * (count // len(workdirs)), shares, strict=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backend(Request):
    """The translation engine."""

    # translation engine; ctranslate2 runs on the CPU and supports fewer kinds of model
    backend: Literal["jax", "ctranslate2"] = "jax"
    # precision with --backend=ctranslate2: float32 (the default), int8, int16, ...
    compute_type: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search(Request):
    """Fields of a run's `config.decoding` with other values; None keeps the config's."""

    decoding: Annotated[Mapping[str, float | str | None], Overrides()] = dataclasses.field(
        default_factory=dict
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricX(Request):
    """An imported MetricX, for the measure of this name."""

    # a run that t2t.import_model made of MetricX: adds the measure metricx, which --mbr takes, too
    metricx: RunPath | None = None
    # version of MetricX; qe: without reference. Default: that of the imported model's name, for 24
    # with reference
    metricx_input: Annotated[Literal["23", "23-qe", "24", "24-qe"] | None, Needs("metricx")] = None


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bulk(Request):
    """Files, which several processes may share."""

    # files, also .gz, .bz2, .xz, .zst; patterns such as 'in/*'
    input: tuple[str, ...] | None = None
    output: Annotated[str, Needs("input")] = ""  # with --input: the folder of the results
    # with --input: lines that are saved together
    shard_lines: Annotated[PositiveInt, Needs("input")] = 10_000
    # with --input: I/N does the I-th of N parts; start N processes
    part: Annotated[str, Needs("input")] = "1/1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lines(Bulk):
    """Lines of standard input, or of files, and what is printed for each."""

    n_best: int = 1  # outputs per line; above 1 each is preceded by the line's number
    scores: bool = False  # print log-probability divided by length penalty before the text
    # lines that are read before they are processed together; 1: each line from a pipe is answered
    # at once. Default: 16 batches, or 1 on a terminal
    read_ahead: PositiveInt | None = None

    def list_problems(self) -> Iterator[str]:
        """Yields what is for standard input."""
        yield from super().list_problems()
        for name in ("prefixes", "read_ahead"):
            if self.input is not None and getattr(self, name, None):
                yield f"--{name} is for standard input; leave it out with --input"


@dataclasses.dataclass(frozen=True)
class EvaluationRequest(Search, Backend, Direction):
    """The run, checkpoint, test set and search of an evaluation."""

    # the run directory. Several, joined by commas, form an ensemble; so do several values of
    # --checkpoint
    workdir: Annotated[RunPath, Flag("workdir", takes="first")]
    # last, best, a step, avg:5 for the mean of the last 5, or ema for the moving average of
    # training.ema_decay; default: best. Several form an ensemble. With --watch: last (the default),
    # avg:5, or several joined by commas, each scored for every new checkpoint
    checkpoint: str = ""
    # a split of the run's corpus; default: test, or validation with --watch, --average,
    # --beam_sizes and --alphas, whose scores are for choosing among settings
    split: str = ""
    _: dataclasses.KW_ONLY
    # a text file to translate instead of a split; needs --ref. The scores are named after this file
    # and a hash of both texts
    src: str = ""
    # the reference translations of --src, line by line; repeat the flag for several. BLEU, chrF,
    # TER and exact match use all of them, perplexity the first
    ref: Annotated[tuple[str, ...], Flag("ref", is_repeated=True)] = ()
    # a standard test set of sacreBLEU instead of a split, such as wmt24:en-de; it is downloaded to
    # sacreBLEU's cache
    testset: str = ""
    # a file with the document of each sentence: its id, line by line, or the sentences with blank
    # lines between documents; testset: the documents of --testset. Intervals and verdicts then
    # resample whole documents
    segments: str = ""
    output: str = ""  # the scores file (.json); default: in RUN/evaluations/
    save_params: str = ""  # save the evaluated parameters as this new run directory (one process)
    others: Annotated[RunPaths, Flag("workdir", takes="rest")] = ()  # those of an ensemble
    weights: tuple[float, ...] = ()  # weights of an ensemble's models; default: equal
    # an ensemble averages these; the mean of log-probabilities is normalised again
    mean: Literal["probabilities", "log_probs"] = "probabilities"
    # language of the references, such as de, zh or zho_Hans, by which measures choose their
    # tokenisers; default: that of the run (data.tgt_language)
    tgt_language: str = ""
    # the measures of the text; "default" stands for all that mean something for the run but ter,
    # chrf++, spbleu. --plugins names modules that register more
    measures: Annotated[tuple[str, ...], Variants(*CHOICES["evaluation.measure"])] = ("default",)

    def __post_init__(self) -> None:
        """Sets the defaults that depend on other fields, after the checks."""
        super().__post_init__()
        split, checkpoint = self.choose_defaults()
        if not (self.split or self.src or self.testset):
            object.__setattr__(self, "split", split)
        if not self.checkpoint:
            object.__setattr__(self, "checkpoint", checkpoint)

    def choose_defaults(self) -> tuple[str, str]:
        """Returns the split and the checkpoint that are evaluated if none are named."""
        return "test", "best"

    def list_problems(self) -> Iterator[str]:
        """Yields what does not go together."""
        yield from super().list_problems()
        for name in ("src", "testset"):
            if getattr(self, name) and self.split:
                yield f"--{name} replaces the split: leave out --split"

    @property
    def models(self) -> ModelRequest:
        """The models; the evaluation is kept in the run directory of the first one."""
        return ModelRequest(
            (self.workdir, *self.others), self.checkpoint or "best",
            weights=self.weights, mean=self.mean, direction=self.direction,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class HeadRequest(OneCheckpoint, Direction):
    """The sentence and the measurement of a page of attention heads."""

    sentence: Annotated[str, Operands("the sentence")]
    _: dataclasses.KW_ONLY
    # number of validation sentences on which the heads are measured, with each head switched off in
    # turn; 0: skip this measurement
    importance: int = 100
    # a head's importance is the change of this measure without it; bleu takes longer
    measure: Literal["loss", "bleu"] = "loss"
    seed: NonNegativeInt = 0  # seed of the random choice of --importance sentences
    # the HTML file; default: RUN/heads.html, or heads-en-de.html with --direction
    output: str = ""
