"""Trials of rows: which are made, what is chosen, and what a look before the end stops."""

import json
from pathlib import Path
from typing import Any

import pytest

from t2t.api.choose_trial import choose
from t2t.api.stop_worse import stop
from t2t.config.fields import Config, ConfigError, TrainingConfig
from t2t.config.files import override
from t2t.evaluation.saved_evaluations import EvaluationError
from t2t.evaluation.trials import TRIAL_SEED
from t2t.sweeps.sweep_report import write_report
from t2t.sweeps.sweep_rows import Row, make_runs
from t2t.sweeps.sweep_steps import EvaluationProtocol, SweepPlan, check_gates
from t2t.sweeps.tuning import list_trials, read_tuning
from t2t.training.stop_request import read_stop_request
from t2t.workshop.records import Record, StepPlan
from t2t.workshop.steps import Workshop
from tests.evaluation.saved_evaluations import REFERENCES, save, spoil

FIELD = "training.learning_rate"
BASE = Config(training=TrainingConfig(schedule="cosine", learning_rate=0.001, steps=100))
TEXTS = [f"{line} {number}" for number, line in enumerate(REFERENCES * 2)]  # 96 sentences
NUMBERS = [f"{number}" for number, _ in enumerate(TEXTS)]
PROTOCOL = EvaluationProtocol("validation", "last")


def make_trials(values: Any, row: Row | None = None, share: float = 1.0) -> dict[str, Any]:
    """The values of a row's trials by the names of their runs."""
    row = Row("base", row.overrides if row else {}, tune={FIELD: values}, seeds=(3, 4))
    config = override(BASE, row.overrides)
    return {t.run.name: t for t in list_trials(BASE, row, config, Path("sweep"), share)}


def test_numbers_are_factors_of_the_rows_own_value_and_texts_are_values() -> None:
    wide = Row("wide", {FIELD: 0.0003})
    trials = make_trials((0.5, 1, 2.0), wide, share=0.5)
    assert {name: trial.value for name, trial in trials.items()} == {
        "base-trialx0.5": 0.00015, "base-trialx1": 0.0003, "base-trialx2": 0.0006,
    }  # fmt: skip
    first = trials["base-trialx0.5"]
    assert first.own == 0.0003
    assert first.run.config.seed == 3 + TRIAL_SEED
    training = first.run.config.training
    assert (training.steps, training.learning_rate) == (50, 0.00015)
    assert [trial.value for trial in make_trials(("0.003", 2)).values()] == [0.003, 0.002]
    assert read_tuning([f"{FIELD}=x0.5", "0.002"]) == {FIELD: (0.5, "0.002")}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row("a", tune={FIELD: (1e400,)}), "row a, tune: inf gives inf, which is not finite"),
        (Row("a", tune={FIELD: ("x",)}), "row a, tune: 'x' is no number"),
        (Row("a", tune={FIELD: (-1,)}), f"row a, tune, x-1: {FIELD}=-0.001 must be positive"),
        (Row("a", tune={FIELD: (1, 1.0)}), "x1 is the value 0.001 again; give each once"),
        (Row("a", tune={FIELD: ()}), "lists no values; write"),
        (Row("a", tune={"model.d_ff": (1,)}), "model.d_ff=2048 is no field with a number"),
        (Row("a", tune={"model.x": (1,)}), "model.x=None is no field with a number"),
        (Row("a", tune={FIELD: (1,), "training.clip_norm": (1,)}), "are several fields; tune one"),
        (
            Row("a", {FIELD: 0.01}, tune={FIELD: ("0.002",)}),
            f"the row sets {FIELD}=0.01, and tune names the value 0.002; give factors",
        ),
        (Row("a", tune={FIELD: (1,)}, seeds=(TRIAL_SEED,)), "trials have the seed 1000; give the"),
    ],
)
def test_wrong_trials_are_refused_in_one_line(row: Row, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        list_trials(BASE, row, override(BASE, row.overrides), Path("sweep"), 1.0)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "training.learning_rate", "training.learning_rate=", "a=xy"])
def test_a_wrong_flag_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--tune"):
        read_tuning([text])


def test_the_best_trial_gives_its_value_to_the_rows_seeds(tmp_path: Path) -> None:
    for value, good in (("0.5", 3), ("1", 5), ("2", 9)):
        save(
            tmp_path / value,
            spoil(good, TEXTS),
            name="trial",
            sources=NUMBERS,
            references=TEXTS,
            nats=float(value),
        )
    runs = {value: tmp_path / value / "evaluations" / "trial.json" for value in ("0.5", "1", "2")}
    shown = choose(FIELD, runs | {"4": tmp_path / "failed"}, 1.0, "bleu", tmp_path / "choice")
    assert (tmp_path / "choice" / "flags.txt").read_text() == f"--config.{FIELD}=2.0\n"
    content = json.loads((tmp_path / "choice" / "choice.json").read_text())
    assert (content["value"], content["measure"], content["edge"]) == (2, "bleu", "")
    assert [line.split()[0] for line in shown.splitlines()[2:]] == ["0.5", "1", "2", "4"]
    shown = choose(FIELD, runs, 1.0, None, tmp_path / "by-loss", by_loss=True)
    content = json.loads((tmp_path / "by-loss" / "choice.json").read_text())
    assert (content["value"], content["measure"], content["edge"]) == (
        0.5, "nats per sub-word", "smallest",
    )  # fmt: skip
    with pytest.raises(EvaluationError, match=f"no trial of {FIELD} was evaluated"):
        choose(FIELD, {"4": tmp_path / "failed"}, 1.0, "bleu", tmp_path / "none")


def test_a_look_needs_a_checkpoint_that_is_there_before_the_end() -> None:
    runs = make_runs(BASE, [Row("base", checkpoint="avg:5")], Path("sweep"))[0]
    with pytest.raises(ConfigError, match=r"base-seed0: --gates looks at .* 'avg:5'; use last"):
        check_gates(PROTOCOL, runs)


def test_a_look_stops_what_is_clearly_worse_and_the_report_says_when(tmp_path: Path) -> None:
    rows = [Row(name, change, seeds=(0, 1, 2)) for name, change in (
        ("base", {}), ("bad", {"model.num_heads": 1}), ("near", {"model.d_ff": 512}))]  # fmt: skip
    runs = make_runs(BASE, rows, tmp_path)[0]
    plan = SweepPlan("recipe.py", {}, PROTOCOL, gates=0.33)
    workshop = Workshop([s for job in plan.list_jobs(runs).values() for s in job.steps], tmp_path)
    look = workshop.resolve(workshop.steps["look"])
    assert workshop.find_output("base-seed0-begin") == tmp_path / "base-seed0"
    for run in runs:
        good = 2 if run.row.name == "bad" else 7 + run.seed
        config = {"seed": run.config.seed, "model.num_heads": run.config.model.num_heads}
        for name in ("look", "sweep"):
            save(
                run.workdir,
                spoil(good, TEXTS),
                name=name,
                sources=NUMBERS,
                references=TEXTS,
                config=config,
            )
    systems = (*look["systems"], str(tmp_path / "failed" / "evaluations" / "look.json"))
    shown = stop(systems, "bleu", tmp_path / "look", tuned=False)
    assert [line.rpartition("/")[0].rpartition("/")[0] for line in shown.splitlines()] == [
        f"stopped: {systems[1]}".rpartition("/")[0].rpartition("/")[0]
    ]
    stopped = [run.name for run in runs if read_stop_request(run.workdir)]
    assert stopped == ["bad-seed0", "bad-seed1", "bad-seed2"]
    request = read_stop_request(tmp_path / "bad-seed0")
    assert request
    assert "after correction" in request.reason
    works = {
        step.name: StepPlan(step, "none", "finished", Record("", {}))
        for step in workshop.steps.values()
    }
    text = write_report(workshop, runs, "bleu", plan, works)
    assert "stopped at step 100" in text
    assert text.startswith("Of 2 comparisons by bleu, none is better than base, 1 is worse (bad ")
