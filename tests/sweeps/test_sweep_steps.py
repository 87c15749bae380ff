"""The steps of a sweep: what they run, when they run again, and how rows are scored."""

import contextlib
from pathlib import Path

import pytest

from t2t.config.fields import (
    Config,
    ConfigError,
    DataConfig,
    TokenizerConfig,
)
from t2t.sweeps.sweep_rows import Row, SweepRun, make_runs
from t2t.sweeps.sweep_steps import EvaluationProtocol, SweepPlan, check_scoring
from t2t.workshop.records import plan_steps
from t2t.workshop.steps import Workshop
from tests import programs
from tests.tiny_training import change, make_config, write_recipe
from tests.workshop.short_programs import ShortPrograms, run

SWEEP = Path("sweep")
RECIPE = """
from t2t.config import *
def get_config():
    return Config(data=DataConfig(max_length=50))
"""


def test_commands_are_what_a_user_would_type(tmp_path: Path) -> None:
    protocol = EvaluationProtocol("dev", "avg:5", "ter")
    rows = [Row("base"), Row("ema", {"training.ema_decay": 0.9}, checkpoint="ema")]
    plugins = {"plugins": ("json", "re")}
    runs = make_runs(Config(plugins=("json", "re"), seed=7), rows, tmp_path)[0]
    jobs = SweepPlan("recipe.py:en-de", plugins, protocol).list_jobs(runs)
    workshop = Workshop([step for job in jobs.values() for step in job.steps], tmp_path)
    commands = [" ".join(workshop.make_command(step)[1:]) for step in workshop.steps.values()]
    assert commands[2:] == [
        "-m t2t.train --config=recipe.py:en-de --config.plugins='json' --config.plugins='re' "
        "--config.training.ema_decay=0.9 --config.seed=7 --allow_unused=True "
        f"--workdir={tmp_path}/ema-seed0",
        f"-m t2t.evaluate --workdir={tmp_path}/ema-seed0 --split=dev --checkpoint=ema "
        "--measures=default --measures=ter --plugins=json --plugins=re "
        f"--output={tmp_path}/ema-seed0/evaluations/sweep.json",
    ]
    assert "--checkpoint=avg:5" in commands[1]
    assert [step.against for step in workshop.steps.values()] == [(), (), (), ("base",)]


def test_what_has_changed_runs_again_and_nothing_else(tmp_path: Path) -> None:
    (recipe := tmp_path / "recipe.py").write_text(RECIPE)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "train.en").write_text("a\n")
    (tmp_path / "moved").symlink_to(tmp_path / "corpus")
    work = tmp_path / "work"

    def make(
        one_head: int = 1, *, split: str = "test", measure: str = "bleu", folder: str = "corpus"
    ) -> ShortPrograms:
        rows = [Row("base"), Row("one_head", {"model.num_heads": one_head})]
        runs = make_runs(Config(), rows if one_head else rows[:1], work)[0]
        protocol = EvaluationProtocol(split, "last", measure)
        given = {"data.directory": str(tmp_path / folder)}
        jobs = SweepPlan(str(recipe), given, protocol).list_jobs(runs)
        return ShortPrograms([step for job in jobs.values() for step in job.steps], work)

    def list_reasons(workshop: ShortPrograms) -> list[str]:
        return [plan.reason for plan in plan_steps(workshop).values() if plan.action != "none"]

    base, one_head = ("base-seed0 base-seed0-scores ", "one_head-seed0 one_head-seed0-scores ")
    assert run([*make(0).steps.values()], work)[0] == base
    assert run([*make().steps.values()], work)[0] == one_head  # a sweep may grow
    assert list_reasons(make(folder="moved")) == []
    assert list_reasons(make(split="dev")) == ["--split: test -> dev"] * 2
    assert list_reasons(make(measure="ter")) == ["--measures: None -> ['default', 'ter']"] * 2
    assert list_reasons(make(2)) == [
        "--config.model.num_heads: 1 -> 2", "step one_head-seed0 changed",
    ]  # fmt: skip
    assert run([*make(2).steps.values()], work)[0] == one_head
    assert (work / "old" / "one_head-seed0.1").is_dir()
    recipe.write_text(RECIPE.replace("50", "60"))
    changed = ["data.max_length: 50 -> 60", "step {}-seed0 changed"]
    assert list_reasons(make(2)) == [
        each.format(name) for name in ("base", "one_head") for each in changed
    ]


TEXT_ALONE = Config(
    data=DataConfig(objective="span_corruption"), tokenizer=TokenizerConfig(sentinels=14)
)


@pytest.mark.parametrize(
    ("rows", "checkpoint", "measure", "message"),
    [
        ([Config(data=DataConfig(directions=("en-de", "en-fr")))], "last", "", "one with --task"),
        ([Config(tokenizer=TokenizerConfig(lowercase=True))], "last", "", "=bleu_lower"),
        ([Config(tokenizer=TokenizerConfig(kind="symbols"))], "last", "", "use one of exact_match"),
        ([Config()], "last", "perplexity", "row0-seed0: --measure=perplexity means nothing for"),
        ([Config()], "last", "metricx", "a sweep has no model that computes metricx; "),
        ([TEXT_ALONE], "last", "bleu", "--measure=bleu .*; use perplexity or accuracy$"),
        ([TEXT_ALONE], "last,best", "perplexity", "is an ensemble, .*; name one checkpoint$"),
        ([TEXT_ALONE, Config()], "last", "accuracy", "row1.*='translation' .* a sweep of its own"),
        ([TEXT_ALONE], "last", "accuracy", ""),
        ([Config()], "last,best", "bleu", ""),
    ],
)
def test_scoring_that_would_fail_after_training_is_refused(
    rows: list[Config], checkpoint: str, measure: str, message: str
) -> None:
    runs = [SweepRun(Row(f"row{number}"), 0, config, SWEEP) for number, config in enumerate(rows)]
    protocol = EvaluationProtocol("validation", checkpoint, measure or "bleu")
    with pytest.raises(ConfigError, match=message) if message else contextlib.nullcontext():
        check_scoring(protocol, runs)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("all", "fill: split 'validation' is unknown; data.source='text' has train"),
        ("fil", "--other_tasks=fil: this run learns translate, fill; name one of them"),
    ],
)
def test_other_task_that_cannot_be_scored_is_refused_before_training(
    tmp_path: Path, flag: str, message: str
) -> None:
    fill = f"fill: objective=denoising train_tgt={tmp_path}/b.de validation_tgt= prefix=<fill>"
    fields = {"mixture": ("translate:", fill), "train_weights": ()}
    write_recipe(change(make_config(tmp_path), data=fields), tmp_path / "recipe.py")
    flags = [f"--config={tmp_path}/recipe.py", f"--workdir={tmp_path}/sweep"]
    done = programs.run(
        "t2t.sweep", "--sweep=configs/sweeps/remove_one.py", "--only=base", *flags,
        f"--other_tasks={flag}",
    )  # fmt: skip
    assert done.returncode == 2
    assert message in done.stderr
    assert not [*tmp_path.glob("sweep/base-*")]
