"""Whose a sweep's directory is."""

import threading
import time
from pathlib import Path

import pytest

from t2t.config.fields import (
    Config,
    ConfigError,
    DataConfig,
    TokenizerConfig,
    TrainingConfig,
)
from t2t.storage import locks
from t2t.sweeps import sweep_directory
from t2t.sweeps.sweep_directory import (
    EvaluationProtocol,
    check_protocol,
    list_recorded,
    open_sweep,
    read_protocol,
)
from t2t.sweeps.sweep_rows import Row, SweepRun, make_runs
from t2t.training.run_directory import RunError

SWEEP = Path("sweep")
PROTOCOL = EvaluationProtocol("test", "last")
ROWS = [Row("base"), Row("one_head", {"model.num_heads": 1})]


def make(base: Config | None = None, rows: list[Row] = ROWS) -> list[SweepRun]:
    return make_runs(base or Config(), rows, SWEEP)[0]


def test_the_same_sweep_goes_on_and_may_grow(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no sweep; leave out --report to start one"):
        list_recorded(tmp_path, make())
    open_sweep(tmp_path, make()[:1], PROTOCOL)
    open_sweep(tmp_path, make(rows=[Row("base", seeds=(0, 1))]), PROTOCOL)
    assert [run.name for run in list_recorded(tmp_path, make())] == ["base-seed0"]
    open_sweep(tmp_path, make(), PROTOCOL)
    assert list_recorded(tmp_path, make()) == make()
    assert read_protocol(tmp_path) == PROTOCOL


def test_rows_of_two_tasks_that_start_at_once_are_both_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_late(path: Path, text: str) -> None:
        time.sleep(0.2)
        path.write_text(text)

    monkeypatch.setattr(sweep_directory, "write_file", write_late)
    monkeypatch.setattr(locks, "WAIT", 600.0)
    tasks = [
        threading.Thread(target=open_sweep, args=(tmp_path, [run], PROTOCOL)) for run in make()
    ]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert list_recorded(tmp_path, make()) == make()


def test_another_sweep_is_refused_with_what_differs(tmp_path: Path) -> None:
    open_sweep(tmp_path, make(), PROTOCOL)
    changed = [Row("base"), Row("one_head", {"model.num_heads": 2}, checkpoint="avg:5")]
    runs = make(Config(training=TrainingConfig(steps=7)), changed)
    with pytest.raises(RunError) as error:
        open_sweep(tmp_path, runs, EvaluationProtocol("validation", "last"))
    assert [line.strip() for line in str(error.value).splitlines()[1:-1]] == [
        "--split: 'test' -> 'validation'",
        "base-seed0: training.steps: 100000 -> 7",
        "one_head-seed0: checkpoint: '' -> 'avg:5'",
        "one_head-seed0: model.num_heads: 1 -> 2",
        "one_head-seed0: training.steps: 100000 -> 7",
    ]


TEXT_ALONE = Config(
    data=DataConfig(objective="span_corruption"), tokenizer=TokenizerConfig(sentinels=14)
)


@pytest.mark.parametrize(
    ("rows", "checkpoint", "measure", "message"),
    [
        ([Config()], "lst", "", "row0-seed0: checkpoint 'lst' is unknown; use last, best, STEP"),
        ([Config()], "last,ema", "", "checkpoint 'ema' needs training.ema_decay; set it"),
        ([Config(data=DataConfig(directions=("en-de", "en-fr")))], "last", "", "one with --direct"),
        ([Config(tokenizer=TokenizerConfig(lowercase=True))], "last", "", "=bleu_lower"),
        ([Config(tokenizer=TokenizerConfig(kind="symbols"))], "last", "", "use one of exact_match"),
        ([Config()], "last", "perplexity", "--measure=perplexity means nothing for"),
        ([Config()], "last", "metricx", "a sweep has no model that computes metricx; "),
        ([TEXT_ALONE], "last", "bleu", "--measure=bleu .*; use perplexity or accuracy$"),
        ([TEXT_ALONE], "last,best", "perplexity", "is an ensemble, .*; name one checkpoint$"),
        ([TEXT_ALONE, Config()], "last", "accuracy", "row1.*='translation' .* a sweep of its own"),
    ],
)
def test_scoring_that_would_fail_after_training_is_refused(
    rows: list[Config], checkpoint: str, measure: str, message: str
) -> None:
    runs = [SweepRun(Row(f"row{number}"), 0, config, SWEEP) for number, config in enumerate(rows)]
    protocol = EvaluationProtocol("validation", checkpoint, measure or "bleu")
    with pytest.raises(ConfigError, match=message):
        check_protocol(protocol, runs)


def test_scoring_that_fits_is_accepted() -> None:
    """A row may name a checkpoint of its own."""
    rows = [Row("base"), Row("ema", {"training.ema_decay": 0.9}, checkpoint="ema:300")]
    check_protocol(EvaluationProtocol("validation", "best"), make(rows=rows))
    text_alone = [SweepRun(Row("base"), 0, TEXT_ALONE, SWEEP)]
    check_protocol(EvaluationProtocol("validation", "last", "accuracy"), text_alone)


@pytest.mark.parametrize("text", ["", "[]", '{"runs": {}}'])
def test_damaged_sweep_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep.json").write_text(text)
    for act in (lambda: open_sweep(tmp_path, make(), PROTOCOL), lambda: read_protocol(tmp_path)):
        with pytest.raises(RunError, match=r"sweep\.json is damaged; remove it, and the same"):
            act()
