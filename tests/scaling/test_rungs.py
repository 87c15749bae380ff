"""Rungs of a ladder: their sizes, their text, and the rate that they share."""

import dataclasses
import runpy
from pathlib import Path

import pytest

from t2t.config.fields import Config, ConfigError, ModelConfig, TrainingConfig
from t2t.config.files import override
from t2t.ops.flops import count_parameters
from t2t.scaling.rungs import BY_FLOPS, list_rungs
from t2t.sweeps.family_rows import make_recurrent
from t2t.sweeps.sweep_rows import Row, make_runs
from t2t.sweeps.sweep_steps import EvaluationProtocol, SweepPlan
from t2t.sweeps.tuning import check_tuned_by, list_trials
from t2t.training.total_flops import count_flops, count_target_tokens

FIELD = "training.learning_rate"
BASE: Config = runpy.run_path(str(Path(__file__).parents[2] / "configs/quickstart.py"))[
    "get_config"
]()


def measure(config: Config) -> tuple[int, int, int]:
    size = config.tokenizer.vocab_size
    count = count_parameters(config.model, size, size)
    return count, count_target_tokens(config), count_flops(config, size)


def test_each_parameter_sees_as_many_tokens_at_every_width() -> None:
    rows = list_rungs(BASE, (0.5, 0.25), seeds=(0, 1))
    assert [row.name for row in rows] == ["base", "rung-32", "rung-64"]
    assert rows[1].overrides["model.d_ff"] == 128
    ratios = []
    for row in rows:
        config = override(BASE, row.overrides)
        parameters, tokens, _ = measure(config)
        ratios.append(tokens / parameters)
        assert config.training.warmup_steps == round(0.1 * config.training.steps)
        assert config.training.learning_rate == BASE.training.learning_rate
    assert ratios == pytest.approx([ratios[0]] * 3, rel=0.02)
    doubled = list_rungs(BASE, (0.5,), multiples=(1, 2))
    assert [row.name for row in doubled] == ["base", "rung-64", "rung-64-x2", "rung-128-x2"]


def test_families_have_equal_parameters_and_flops_at_each_rung() -> None:
    families = {"rnn": lambda config: make_recurrent(config, multiple=4)}
    rows = {row.name: row for row in list_rungs(BASE, (0.5,), rule=BY_FLOPS, families=families)}
    assert [*rows] == ["base", "rung-64", "rnn-64", "rnn-128"]
    for one, other in (("base", "rnn-128"), ("rung-64", "rnn-64")):
        sizes = [measure(override(BASE, rows[name].overrides)) for name in (one, other)]
        assert sizes[0][0] == pytest.approx(sizes[1][0], rel=0.05)
        assert sizes[0][2] == pytest.approx(sizes[1][2], rel=0.1)


def test_depth_changes_layers_alone() -> None:
    rows = list_rungs(BASE, (1 / 3, 2 / 3), by_depth=True)
    assert [row.name for row in rows] == ["base", "rung-1", "rung-2"]
    assert {name for row in rows for name in row.overrides if name.startswith("model.")} == {
        "model.num_layers"
    }
    deep = dataclasses.replace(BASE, model=ModelConfig(encoder_layers=12, decoder_layers=2))
    assert list_rungs(deep, (0.5,), by_depth=True)[1].name == "rung-6.1"


def test_all_rungs_have_the_rate_that_is_the_best_for_the_smallest(tmp_path: Path) -> None:
    rows = list_rungs(BASE, (0.25, 0.5), seeds=(0,))
    runs = make_runs(BASE, rows, tmp_path)[0]
    small = dataclasses.replace(rows[1], tune={FIELD: (0.5, 1)})
    trials = {small.name: list_trials(BASE, small, runs[1].config, tmp_path, 1.0)}
    check_tuned_by(runs, trials)
    jobs = SweepPlan("recipe.py", {}, EvaluationProtocol("validation", "last"), trials).list_jobs(
        runs
    )
    assert [name for name in jobs if "trial" in name] == ["rung-32-trialx0.5", "rung-32-trialx1"]
    for name in ("base-seed0", "rung-32-seed0", "rung-64-seed0"):
        flags = jobs[name].steps[0].flags
        assert flags["flagfile"] == "{rung-32-choice}/flags.txt"
        assert f"config.{FIELD}" not in flags


def test_a_row_cannot_have_the_value_of_a_row_that_is_left_out_or_begins_elsewhere(
    tmp_path: Path,
) -> None:
    noam = Config(training=TrainingConfig(steps=100, warmup_steps=10))
    rows = [Row("base", tuned_by="small"), Row("small", {FIELD: 0.5}, tune={FIELD: (1, 2)})]
    runs = make_runs(noam, rows, tmp_path)[0]
    trials = {"small": list_trials(noam, rows[1], runs[1].config, tmp_path, 1.0)}
    with pytest.raises(ConfigError, match=r"base is tuned by small, which has .*=0.5 without tria"):
        check_tuned_by(runs, trials)
    with pytest.raises(ConfigError, match="base is tuned by small, which is left out; add it to"):
        check_tuned_by(runs, {})


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((2.0,), {}, "size 2 of a rung is no share of the base; give 0.25 or 0.5"),
        ((0.5, 0.51), {}, "two sizes give rung-64: the base is too small for 2 rungs below it"),
        ((0.5,), {"rule": "x"}, "rule='x' is unknown; use 'parameters' or 'flops'"),
    ],
)
def test_a_wrong_ladder_is_refused(
    sizes: tuple[float, ...], options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        list_rungs(BASE, sizes, rule=options.get("rule", "parameters"))
