"""The steps of a sweep: for each row and seed a training and an evaluation.

A row that is tuned begins with its trials. Each is trained with a seed of its own and evaluated;
`t2t.choose_trial` then writes the flag with which the row's seeds are trained. With gates, all
runs are trained for a part of their steps and evaluated; `t2t.stop_worse` then asks those of rows
that are clearly worse to stop, and the others go on.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t2t.config.fields import ConfigError, DataConfig
from t2t.config.languages import writes_spaces
from t2t.config.measure_rules import list_measures, needs_model
from t2t.config.measures import CASED_MEASURES, ON_REQUEST, PREDICTION_MEASURES
from t2t.data.directions import choose_task
from t2t.evaluation.significance import SystemComparison
from t2t.evaluation.verdict_table import Line
from t2t.sweeps.sweep_rows import BASE, BEST, EVALUATION, SweepRun
from t2t.sweeps.tuning import TRIAL, Trial
from t2t.workshop.records import RECORD, read_record
from t2t.workshop.steps import STEPS, Step

LOOK = "look"  # the evaluation before the end of training, and the step that judges by it
FLAGS = "flags.txt"  # that t2t.choose_trial writes


@dataclasses.dataclass(frozen=True)
class EvaluationProtocol:
    """How each run is scored, and the measure by which rows are compared."""

    split: str
    checkpoint: str
    measure: str = "bleu"
    task: str = ""  # such as en-de; may be empty if runs have only one
    # Of other tasks the measure, by which rows are judged, too.
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Job(NamedTuple):
    """Steps that one task of a job array runs."""

    row: str  # to which they belong; empty: to all
    steps: Sequence[Step]


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """All that the steps of a sweep follow from, besides its runs."""

    recipe: str  # the value of --config
    overrides: Mapping[str, Any]  # fields of the recipe, for all rows
    protocol: EvaluationProtocol
    trials: Mapping[str, Sequence[Trial]] = dataclasses.field(default_factory=dict)  # by row
    gates: float = 0.0  # the share of the steps after which rows that are worse stop; 0: never
    tune_by_loss: bool = False  # choose trials by the references' log-probability

    def list_jobs(self, runs: Sequence[SweepRun]) -> dict[str, Job]:
        """Returns the steps of each trial, choice and run, by its name."""
        jobs: dict[str, Job] = {}
        for name in dict.fromkeys(run.row.name for run in runs):
            own = self.trials.get(name, ())
            for trial in own:
                jobs[trial.run.name] = Job(name, self._try(trial))
            if own:
                jobs[f"{name}-choice"] = Job(name, [self._choose(own)])
        if self.gates:
            begun = {run.name: self._begin(run) for run in runs}
            for run in runs:
                train, _ = steps = begun[run.name]
                jobs[train.name] = Job(run.row.name, steps)
            looks = {name: steps[1] for name, steps in begun.items()}
            jobs[LOOK] = Job("", [self._look(runs, looks)])
        for run in runs:
            after = (LOOK,) if self.gates else ()
            train = Step(run.name, "train", self._train(run), after=after)
            steps = [train, self._evaluate(run, train, EVALUATION)]
            steps += [self._evaluate_other(run, train, each) for each in self.protocol.others]
            jobs[run.name] = Job(run.row.name, steps)
        return jobs

    def _train(self, run: SweepRun, changes: Mapping[str, Any] = {}) -> dict[str, Any]:
        """The flags that train a run, or with changes of its row a trial."""
        own = {**self.overrides, **run.row.overrides, **changes, "seed": run.config.seed}
        flags: dict[str, Any] = {"config": self.recipe}
        tuned = run.row.tuned_by or run.row.name
        if (trials := self.trials.get(tuned)) and not run.trial:
            own.pop(trials[0].field, None)
            flags["flagfile"] = f"{{{tuned}-choice}}/{FLAGS}"
        flags |= {f"config.{name}": value for name, value in own.items()}
        return flags | {"allow_unused": True}

    def _evaluate(self, run: SweepRun, train: Step, name: str) -> Step:
        """The step that evaluates what a step has trained, under a name."""
        protocol = self.protocol
        flags: dict[str, Any] = {
            "workdir": train,
            "split": protocol.split,
            "checkpoint": run.row.checkpoint or protocol.checkpoint,
        }
        flags |= {"task": protocol.task} if protocol.task else {}
        if protocol.measure in ON_REQUEST:
            flags["measures"] = ("default", protocol.measure)
        flags |= {"plugins": run.config.plugins} if run.config.plugins else {}
        output = f"{train}/evaluations/{name}.json"
        if name != EVALUATION:
            return Step(f"{train.name}-scores", "evaluate", flags, output)
        against = () if run.row.name == BASE or run.row.against == BEST else (run.row.against,)
        return Step(run.scoring, "evaluate", flags, output, run.row.name, against)

    def _evaluate_other(self, run: SweepRun, train: Step, task: str) -> Step:
        """The step that evaluates another task of a run."""
        step = self._evaluate(run, train, EVALUATION)
        flags = {name: value for name, value in step.flags.items() if name != "measures"}
        if (measure := self.protocol.others[task]) in ON_REQUEST:
            flags["measures"] = ("default", measure)
        return dataclasses.replace(
            step,
            name=run.name_scoring(task),
            flags=flags | {"task": task},
            output=f"{train}/evaluations/{EVALUATION}-{task}.json",
        )

    def _try(self, trial: Trial) -> list[Step]:
        train = Step(trial.run.name, "train", self._train(trial.run, trial.overrides))
        return [train, self._evaluate(trial.run, train, TRIAL)]

    def _choose(self, trials: Sequence[Trial]) -> Step:
        first = trials[0]
        flags = {
            "setting": first.field,
            "trials": tuple(f"{each.value!r}={{{each.run.name}-scores}}" for each in trials),
            "own": first.own,
        }
        flags |= {"by_loss": True} if self.tune_by_loss else {"measure": self.protocol.measure}
        return Step(f"{first.run.row.name}-choice", "choose_trial", flags)

    def _begin(self, run: SweepRun) -> list[Step]:
        until = max(round(self.gates * run.config.training.steps), 1)
        train = Step(f"{run.name}-begin", "train", self._train(run) | {"until": until}, run.name)
        return [train, self._evaluate(run, train, LOOK)]

    def _look(self, runs: Sequence[SweepRun], scores: Mapping[str, Step]) -> Step:
        rows: dict[str, list[Step]] = {}
        for run in runs:
            rows.setdefault(run.row.name, []).append(scores[run.name])
        flags = {
            "systems": tuple(",".join(map(str, steps)) for steps in rows.values()),
            "measure": self.protocol.measure,
            "tuned": bool(self.trials),
        }
        return Step(LOOK, "stop_worse", flags)


class Stopped(NamedTuple):
    """The verdict on a row that a look has stopped."""

    step: int
    comparison: SystemComparison  # with base at this step

    def judge(self, line: Line) -> Line:
        """Returns the row's line in the table of verdicts with this verdict."""
        remarks = [*line.remarks, f"stopped at step {self.step}"]
        return dataclasses.replace(line, comparison=self.comparison, remarks=remarks)


def read_stopped(workdir: Path, runs: Sequence[SweepRun]) -> dict[str, Stopped]:
    """Returns the rows that a look has stopped."""
    path = workdir / LOOK / f"{LOOK}.json"
    content = json.loads(path.read_text("utf-8")) if path.exists() else {"stopped": {}}
    rows = {str(run.workdir.absolute()): run.row.name for run in runs}
    found = {}
    for operand, each in content["stopped"].items():
        facts: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in each["verdict"].items()
        }
        run = Path(operand.split(",")[0]).parents[1]
        found[rows[str(run)]] = Stopped(each["step"], SystemComparison(**facts))
    return found


def read_measure(workdir: Path) -> str | None:
    """Returns the measure with which a sweep was begun, as far as its steps depend on it."""
    for path in sorted(workdir.glob(f"{STEPS}/*/{RECORD}")):
        if record := read_record(path.parent):
            flags = record.facts["flags"]
            if found := flags.get("measure") or (flags.get("measures") or [None])[-1]:
                return str(found)
    return None


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
        data = choose_task(run.config.data, protocol.task)
        _check_objective(protocol, run, data, choose_task(runs[0].config.data, protocol.task))
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


def check_gates(protocol: EvaluationProtocol, runs: Sequence[SweepRun]) -> None:
    """Raises `ConfigError` if a run has no such checkpoint before the end of its training."""
    for run in runs:
        checkpoint = run.row.checkpoint or protocol.checkpoint
        if checkpoint not in ("last", "best", "ema"):
            raise ConfigError(
                f"{run.name}: --gates looks at a checkpoint before the end, where there may be no "
                f"{checkpoint!r}; use last, best or ema"
            )


def _check_objective(
    protocol: EvaluationProtocol, run: SweepRun, data: DataConfig, first: DataConfig
) -> None:
    """Raises `ConfigError` if a run learns something else than the first, or is not scored so."""
    objective, own = data.objective, first.objective
    if objective != own:
        raise ConfigError(
            f"{run.name}: data.objective={objective!r} is another than data.objective={own!r} of "
            "the first run, so their scores are not comparable; give each a sweep of its own"
        )
    if not data.is_text_alone:
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
