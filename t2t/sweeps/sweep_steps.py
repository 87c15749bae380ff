"""The steps of a sweep: for each row and seed a training and an evaluation."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from t2t.config.fields import ConfigError
from t2t.config.languages import writes_spaces
from t2t.config.measure_rules import list_measures, needs_model
from t2t.config.measures import CASED_MEASURES, ON_REQUEST, PREDICTION_MEASURES
from t2t.data.directions import choose_direction
from t2t.sweeps.sweep_rows import BASE, EVALUATION, SweepRun
from t2t.workshop.steps import Step


@dataclasses.dataclass(frozen=True)
class EvaluationProtocol:
    """How each run is scored, and the measure by which rows are compared."""

    split: str
    checkpoint: str
    measure: str = "bleu"
    direction: str = ""  # such as en-de; may be empty if runs have only one


def make_steps(
    run: SweepRun, recipe: str, overrides: Mapping[str, Any], protocol: EvaluationProtocol
) -> list[Step]:
    """Returns the steps of a run: its training and its evaluation.

    Args:
        run: a row with one of its seeds.
        recipe: the value of --config.
        overrides: fields of the recipe, for all rows.
        protocol: how runs are scored.
    """
    train = train_run(run, recipe, overrides)
    return [train, evaluate_run(run, train, protocol)]


def train_run(run: SweepRun, recipe: str, overrides: Mapping[str, Any]) -> Step:
    """Returns the step that trains a run."""
    own = {**overrides, **run.row.overrides, "seed": run.config.seed}
    flags = {"config": recipe} | {f"config.{name}": value for name, value in own.items()}
    return Step(run.name, "train", flags | {"allow_unused": True})


def evaluate_run(run: SweepRun, train: Step, protocol: EvaluationProtocol) -> Step:
    """Returns the step that evaluates what a step has trained."""
    flags: dict[str, Any] = {
        "workdir": train,
        "split": protocol.split,
        "checkpoint": run.row.checkpoint or protocol.checkpoint,
    }
    flags |= {"direction": protocol.direction} if protocol.direction else {}
    if protocol.measure in ON_REQUEST:
        flags["measures"] = ("default", protocol.measure)
    flags |= {"plugins": run.config.plugins} if run.config.plugins else {}
    return Step(
        f"{run.name}-scores",
        "evaluate",
        flags,
        output=f"{train}/evaluations/{EVALUATION}.json",
        system=run.row.name,
        against=() if run.row.name == BASE else (BASE,),
    )


def check_scoring(protocol: EvaluationProtocol, runs: Sequence[SweepRun]) -> None:
    """Checks that the measure means something for each run, and that scores can be compared.

    Raises:
        ConfigError: it does not; or a run learns something else than the first one.
    """
    if needs_model(name := protocol.measure):
        raise ConfigError(
            f"--measure={name}: a sweep has no model that computes {name}; compare the finished "
            f"runs by it, with t2t.evaluate --measure_model={name}=RUN and t2t.compare"
        )
    for run in runs:
        _check_objective(protocol, run, runs[0])
        data = choose_direction(run.config.data, protocol.direction)
        if data.is_text_alone:
            continue
        spaces = writes_spaces(data.tgt_language)
        kind = run.config.tokenizer.kind
        possible = list_measures(
            data.tgt_language, data.source.split("+"), spaces=spaces, kind=kind
        )
        if protocol.measure not in possible:
            text = f"data.source={data.source!r} and data.tgt_language={data.tgt_language!r}"
            raise ConfigError(
                f"{run.name}: --measure={protocol.measure} means nothing for "
                f"{f'tokenizer.kind={kind!r}' if kind == 'symbols' else text}; use one of "
                f"{', '.join(possible)}"
            )
        if run.config.tokenizer.lowercase and protocol.measure in CASED_MEASURES:
            raise ConfigError(
                f"{run.name}: tokenizer.lowercase makes outputs lower-case, and --measure="
                f"{protocol.measure} counts that as errors; use --measure=bleu_lowercase"
            )


def _check_objective(protocol: EvaluationProtocol, run: SweepRun, first: SweepRun) -> None:
    """Raises `ConfigError` if a run learns something else than the first, or is not scored so."""
    objective, own = run.config.data.objective, first.config.data.objective
    if objective != own:
        raise ConfigError(
            f"{run.name}: data.objective={objective!r} is another than data.objective={own!r} of "
            f"{first.name}, so their scores are not comparable; give each a sweep of its own"
        )
    if not run.config.data.is_text_alone:
        return
    if protocol.measure not in PREDICTION_MEASURES:
        raise ConfigError(
            f"{run.name}: --measure={protocol.measure} is for translations, but data.objective="
            f"{objective!r} trains on text alone; use {' or '.join(PREDICTION_MEASURES)}"
        )
    if "," in (checkpoint := run.row.checkpoint or protocol.checkpoint):
        raise ConfigError(
            f"{run.name}: checkpoint {checkpoint!r} is an ensemble, which is for translations; "
            "name one checkpoint"
        )
