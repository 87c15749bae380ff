"""Requests about trained models: checkpoints, texts, measures and searches. None imports JAX."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from t2t.config.field_types import REGISTERED, WRITTEN, InputPath, InputPaths
from t2t.config.fields import Config, ConfigError
from t2t.config.languages import normalize_language
from t2t.config.measure_rules import check_model, choose_measure
from t2t.config.measures import REFERENCE_MEASURES
from t2t.config.requests import (
    Flag,
    Measure,
    OneRun,
    Plugins,
    Request,
    RunPaths,
    RunsByName,
    list_flags,
)
from t2t.config.variants import CHOICES


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneTask(Request):
    """One task of a run, which may have several."""

    # a task of data.mixture, by default the first; or a direction of data.directions, such as en-de
    task: str = ""


@dataclasses.dataclass(frozen=True)
class Checkpoint(Request):
    """A checkpoint by its name."""

    # a checkpoint: last, best, a step, avg:5 for the mean of the last 5, or ema (ema:STEP) for the
    # moving average of training.ema_decay
    checkpoint: str = "best"


@dataclasses.dataclass(frozen=True)
class OneCheckpoint(Checkpoint, OneRun, Plugins):
    """A checkpoint of a run."""


@dataclasses.dataclass(frozen=True)
class SeveralRuns(Request):
    """Run directories."""

    # the run directory. Several, joined by commas, form an ensemble; so do several values of
    # --checkpoint
    workdirs: Annotated[RunPaths, Flag("workdir")]

    def list_problems(self) -> Iterator[str]:
        """Yields a list without runs."""
        yield from super().list_problems()
        if not self.workdirs:
            yield "--workdir is empty; name a run directory, or several for an ensemble"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchFields(Request):
    """Values that replace fields of the run's `config.decoding`; `searched` names these fields."""

    # None keeps the config's value
    decoding: Annotated[Mapping[str, float | str | None], Flag(is_search=True)] = dataclasses.field(
        default_factory=dict
    )


@dataclasses.dataclass(frozen=True)
class ModelRequest(Checkpoint, SeveralRuns, OneTask, SearchFields):
    """One checkpoint or an ensemble of several, of one run or several, and the search."""

    _: dataclasses.KW_ONLY
    weights: tuple[float, ...] = ()  # weights of an ensemble's models; default: equal
    # an ensemble averages these; the mean of log-probabilities is normalised again
    mean: Literal["probabilities", "log_probs"] = "probabilities"

    @property
    def workdir(self) -> Path:
        """The first run directory, in which evaluations are kept."""
        return self.workdirs[0]

    @property
    def searches(self) -> bool:
        """True if it may choose the strategy of search; other requests only use its settings."""
        return "strategy" in self.searched

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

    def list_problems(self) -> Iterator[str]:
        """Yields fields that only another engine has."""
        yield from super().list_problems()
        if self.compute_type and self.backend == "jax":
            yield (
                f"--compute_type={self.compute_type} is for --backend=ctranslate2; with JAX, set "
                "model.dtype instead"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureModels(Request):
    """The models that compute measures."""

    # MEASURE=RUN: the run of the model that computes a measure, which t2t.import_model makes;
    # repeat the flag for several
    measure_model: Annotated[RunsByName, Flag(is_repeated=True)] = dataclasses.field(
        default_factory=dict
    )

    def list_problems(self) -> Iterator[str]:
        """Yields measures without their model, and models of measures that are not computed."""
        yield from super().list_problems()
        chosen = getattr(self, "measure", None), getattr(self, "decoding", {}).get("mbr")
        asked = [*getattr(self, "measures", ()), *chosen]
        for name in filter(None, asked):
            check_model(name, self.measure_model)
        known = {flag.name for flag in list_flags(type(self))}
        flags = [name for name in ("measures", "mbr") if name in known]
        for name, run in self.measure_model.items():
            if flags and not {name, "default"} & {*asked}:
                ways = " or ".join(f"--{flag}={name}" for flag in flags)
                yield f"--measure_model={name}={run} is for {ways}; add it, or leave this out"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRequest(MeasureModels):
    """The texts of an evaluation, and its measures."""

    # the sources as a text file; needs --ref. The scores are named after this file and a hash of
    # both texts
    src: InputPath = ""
    # the reference translations of --src, line by line; repeat the flag for several. BLEU, chrF,
    # TER and exact match use all of them, perplexity the first
    ref: Annotated[InputPaths, Flag(is_repeated=True)] = ()
    # a standard test set of sacreBLEU, such as wmt24:en-de; it is downloaded to sacreBLEU's cache
    testset: str = ""
    # a file with the document of each sentence: its id, line by line, or the sentences with blank
    # lines between documents; testset: the documents of --testset. Intervals and verdicts then
    # resample whole documents
    segments: InputPath = ""
    # a file with the kind of each sentence, line by line, or first_word: the first word of its
    # source; default: the kinds that the split names, if it does. Scores and verdicts are then
    # given for each kind as well
    kinds: InputPath = ""
    # language of the references, such as de, zh or zho_Hans, by which measures choose their
    # tokenisers; default: the run's (data.tgt_language), or the test set's
    tgt_language: str = ""
    # the measures to compute, from NAMES; "default" stands for all that mean something for the run,
    # except ter, chrf++, spbleu and measures that lack their --measure_model. --plugins names
    # modules that register more
    measures: Annotated[tuple[str, ...], Literal[CHOICES["evaluation.measure"]], REGISTERED] = (
        "default",
    )

    def list_problems(self) -> Iterator[str]:
        """Yields a --tgt_language that is not a language code."""
        yield from super().list_problems()
        if self.tgt_language and not normalize_language(self.tgt_language):
            yield (
                f"--tgt_language={self.tgt_language} is not a language code; write one of ISO 639, "
                "such as de, zh or zho_Hans"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputRequest(TextRequest):
    """Translations by another program, with their test set and measures."""

    # what another program translated, one line for each of --src or --testset
    hypotheses: InputPath = ""
    # a table with sources, references and translations, in place of --src, --ref and --hypotheses:
    # its first line names the columns, which tabs separate. Its lines may have any order
    table: InputPath = ""
    # the names of these columns
    columns: Annotated[tuple[str, ...], Flag(needs="table")] = ("source", "target", "prediction")
    output: Path  # the scores file to write, such as system.json
    # the name of the system, for tables and plots; default: that of its file
    system: str = ""
    # the seed of the training; outputs of several seeds are compared as one system
    seed: int | None = None

    def list_problems(self) -> Iterator[str]:
        """Yields missing or repeated texts."""
        yield from super().list_problems()
        if bool(self.hypotheses) == bool(self.table):
            yield "name what was translated by --hypotheses, or by --table, and not by both"
        if self.table and (self.src or self.ref or self.testset):
            yield f"--table={self.table} has its own texts; leave out --src, --ref and --testset"
        if self.table and self.segments:
            yield "--segments is for texts whose lines have an order; leave it out with --table"
        if len(self.columns) != 3:
            yield (
                f"--columns={','.join(self.columns)} has to name three columns: of sources, "
                "references and translations"
            )
        if self.hypotheses and not (self.src or self.ref or self.testset):
            yield (
                f"--hypotheses={self.hypotheses} needs the texts that were translated: --src and "
                "--ref, or --testset"
            )
        if not self.measures or REFERENCE_MEASURES[0] in self.measures:
            yield (
                f"--measures={','.join(self.measures)}: text by another program has no perplexity; "
                "name measures of text, such as bleu"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoredRun(TextRequest, Backend, OneTask, SearchFields):
    """The test set, measures and search by which a run is scored."""

    default_split: ClassVar[str] = "test"

    # a split of the run's corpus, in place of --src or --testset; default: test
    split: str = ""

    def __post_init__(self) -> None:
        """Sets the default split, after the checks."""
        super().__post_init__()
        if not (self.split or self.src or self.testset):
            object.__setattr__(self, "split", self.default_split)

    def list_problems(self) -> Iterator[str]:
        """Yields a split beside texts that replace it."""
        yield from super().list_problems()
        for name in ("src", "testset"):
            if getattr(self, name) and self.split:
                yield f"--{name} replaces the split: leave out --split"


@dataclasses.dataclass(frozen=True)
class EvaluationRequest(ScoredRun, ModelRequest):
    """The models, test set and search of an evaluation."""

    _: dataclasses.KW_ONLY
    output: str = ""  # the scores file (.json); default: in RUN/evaluations/
    # save the evaluated parameters as this new run directory (one process)
    save_params: Annotated[str, WRITTEN] = ""


def count_averaged(checkpoint: str) -> int:
    """Returns the number of last checkpoints that are averaged: n for avg:n, 1 for last, else 0."""
    match checkpoint.split(":"):
        case ["last"]:
            return 1
        case ["avg", count] if count.isdecimal():
            return int(count)
    return 0


@dataclasses.dataclass(frozen=True)
class SelectionRequest(ScoredRun, OneRun, Plugins):
    """Several evaluations of one run, from which the best is chosen."""

    default_split: ClassVar[str] = "validation"

    _: dataclasses.KW_ONLY
    # a split of the run's corpus, in place of --src or --testset; default: validation
    split: str = ""
    # the score by which the best is chosen; default: bleu, or bleu_lowercase with
    # tokenizer.lowercase; chrf of languages without spaces between words that sacreBLEU cannot cut.
    # perplexity is measured on the references
    measure: Measure | None = None

    def list_problems(self) -> Iterator[str]:
        """Yields a name that stands for several measures."""
        yield from super().list_problems()
        if self.measure == "default":
            yield "--measure=default stands for several measures; name one of them"

    def find_measure(self, config: Config) -> str:
        """Returns the measure by which the best is chosen, for a run with this config."""
        return choose_measure(
            self.measure,
            lowercase=config.tokenizer.lowercase,
            kind=config.tokenizer.kind,
            language=self.tgt_language or config.data.tgt_language,
        )

    def make_evaluation(
        self, checkpoint: str, *measures: str, **decoding: float
    ) -> EvaluationRequest:
        """Returns the request of one evaluation, with further measures and values of decoding."""
        shared = {each.name: getattr(self, each.name) for each in dataclasses.fields(ScoredRun)}
        shared["measures"] += measures
        shared["decoding"] = {**self.decoding, **decoding}
        return EvaluationRequest((self.workdir,), checkpoint, **shared)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedChoice(Request):
    """A saved evaluation of a run directory: by its split, checkpoint and task, or by its name."""

    split: str = ""  # use the run's newest evaluation of this split; default: test
    evaluation: str = ""  # use RUN/evaluations/NAME.json instead of the newest
    # use the run's newest evaluation of this checkpoint: best, last, a step, avg:5 or ema
    checkpoint: str = ""
    # use the run's newest evaluation of this task of data.mixture, or direction; needed if the run
    # has evaluations of several
    task: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasurePlugins(Request):
    """The modules that register measures."""

    plugins: tuple[str, ...] = ()  # modules on your path that register measures
