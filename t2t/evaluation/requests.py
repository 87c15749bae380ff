"""The models of runs that a program asks for, and what it does with them. Nothing imports JAX."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from t2t.config.field_types import REGISTERED, WRITTEN, InputPath, InputPaths
from t2t.config.fields import ConfigError
from t2t.config.languages import normalize_language
from t2t.config.measure_rules import check_model
from t2t.config.requests import (
    DECODING,
    Flag,
    Plugins,
    Request,
    RunPath,
    RunPaths,
    RunsByName,
    list_flags,
)
from t2t.config.variants import CHOICES


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneDirection(Request):
    """A direction of a run that may have several."""

    # source and target language, such as en-de; if the run has several
    direction: str = ""


@dataclasses.dataclass(frozen=True)
class OneCheckpoint(Plugins):
    """A checkpoint of a run."""

    workdir: RunPath  # the run directory
    _: dataclasses.KW_ONLY
    # a checkpoint: last, best, a step, avg:5 for the mean of the last 5, or ema (ema:STEP) for the
    # moving average of training.ema_decay
    checkpoint: str = "best"


@dataclasses.dataclass(frozen=True)
class ModelRequest(OneDirection):
    """The checkpoints of one run or several, which form an ensemble, and their search."""

    # the run directory. Several, joined by commas, form an ensemble; so do several values of
    # --checkpoint
    workdirs: Annotated[RunPaths, Flag("workdir")]
    # a checkpoint: last, best, a step, avg:5 for the mean of the last 5, or ema (ema:STEP) for the
    # moving average of training.ema_decay
    checkpoint: str = "best"
    _: dataclasses.KW_ONLY
    weights: tuple[float, ...] = ()  # weights of an ensemble's models; default: equal
    # an ensemble averages these; the mean of log-probabilities is normalised again
    mean: Literal["probabilities", "log_probs"] = "probabilities"
    # fields of the run's `config.decoding` with other values; None keeps the config's
    decoding: Annotated[Mapping[str, float | str | None], Flag(overrides=DECODING)] = (
        dataclasses.field(default_factory=dict)
    )

    @property
    def workdir(self) -> Path:
        """The first run directory, in which evaluations are kept."""
        return self.workdirs[0]

    @property
    def searches(self) -> bool:
        """True if it may choose a search; others use fields of decoding without one."""
        return any(flag.field == "strategy" for flag in list_flags(type(self)))

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
        """Yields what is for another engine."""
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
        """Yields measures that lack their model, and models of measures that nobody asks for."""
        yield from super().list_problems()
        asked = [*getattr(self, "measures", ()), getattr(self, "decoding", {}).get("mbr")]
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
    """The texts of an evaluation, its measures and its file."""

    # what another program translated, one line for each of --src or --testset: it is scored without
    # a run, and written to --output
    hypotheses: InputPath = ""
    # a text file to translate instead of a split; needs --ref. The scores are named after this file
    # and a hash of both texts
    src: InputPath = ""
    # the reference translations of --src, line by line; repeat the flag for several. BLEU, chrF,
    # TER and exact match use all of them, perplexity the first
    ref: Annotated[InputPaths, Flag(is_repeated=True)] = ()
    # a standard test set of sacreBLEU instead of a split, such as wmt24:en-de; it is downloaded to
    # sacreBLEU's cache
    testset: str = ""
    # a file with the document of each sentence: its id, line by line, or the sentences with blank
    # lines between documents; testset: the documents of --testset. Intervals and verdicts then
    # resample whole documents
    segments: InputPath = ""
    output: str = ""  # the scores file (.json); default: in RUN/evaluations/
    # language of the references, such as de, zh or zho_Hans, by which measures choose their
    # tokenisers; default: that of the run (data.tgt_language)
    tgt_language: str = ""
    # the measures of the text, of NAMES; "default" stands for all that mean something for the run,
    # but ter, chrf++, spbleu and those that lack their --measure_model. --plugins names modules
    # that register more
    measures: Annotated[tuple[str, ...], Literal[CHOICES["evaluation.measure"]], REGISTERED] = (
        "default",
    )

    def list_problems(self) -> Iterator[str]:
        """Yields what is no language."""
        yield from super().list_problems()
        if self.tgt_language and not normalize_language(self.tgt_language):
            yield (
                f"--tgt_language={self.tgt_language} is no language code; write one of ISO 639, "
                "such as de, zh or zho_Hans"
            )


@dataclasses.dataclass(frozen=True)
class EvaluationRequest(TextRequest, Backend, ModelRequest):
    """The models, test set and search of an evaluation."""

    # a checkpoint: last, best, a step, avg:5 for the mean of the last 5, or ema for the moving
    # average of training.ema_decay; default: best. Several form an ensemble. With --watch: last
    # (the default), avg:5, or several joined by commas, each scored for every new checkpoint
    checkpoint: str = ""
    # a split of the run's corpus; default: test, or validation with --watch, --average,
    # --beam_sizes and --alphas, whose scores are for choosing among settings
    split: str = ""
    _: dataclasses.KW_ONLY
    # save the evaluated parameters as this new run directory (one process)
    save_params: Annotated[str, WRITTEN] = ""

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
