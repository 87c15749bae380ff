"""Watching a run: what is scored and kept, when training is told to stop, what a kill leaves."""

import dataclasses
import functools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from t2t.config.files import load_config, save_config
from t2t.evaluation.checkpoint_watcher import Watch
from t2t.evaluation.evaluator import Evaluator
from t2t.evaluation.measure import Score
from t2t.evaluation.saved_evaluations import Evaluation, load_evaluation, save_evaluation
from t2t.model.parameters import Params
from t2t.storage.locks import lock
from t2t.training.checkpoint import average_params, restore_params
from t2t.training.run_directory import RunError
from t2t.training.stop_request import read_stop_request, record_stop
from tests.evaluation.saved_evaluations import describe

pytestmark = pytest.mark.usefixtures("shared_programs")

STEPS = [100, 200, 300]
assert_same = functools.partial(jax.tree.map, np.testing.assert_array_equal)


class FakeScorer(Evaluator):
    """Gives each checkpoint the BLEU that it is told, and saves it as an evaluation."""

    def __init__(self, workdir: Path, bleu: Mapping[str, float]):
        self.folder, self.bleu = workdir / "evaluations", bleu
        self.scored: dict[str, Params] = {}
        self.before: Callable[[str], None] = lambda label: None

    def list_saved(self, alpha: float | None = None) -> dict[str, Evaluation]:
        assert alpha is None
        saved = map(load_evaluation, self.folder.glob("*.json"))
        return {each.passport.checkpoint: each for each in saved}

    def evaluate(
        self, params: Params, label: str, alphas: Sequence[float] = ()
    ) -> list[Evaluation]:
        assert not alphas
        self.before(label)
        self.scored[label] = params
        bleu = self.bleu[label]
        score = Score(bleu, "", "", (bleu - 1, bleu + 1))
        result = describe({"bleu": score}, 1, checkpoint=label, split="validation", texts={})
        return [save_evaluation(self.folder / f"{label}.json", result, {})]


@pytest.fixture
def run(run: Path, tmp_path: Path) -> Path:
    """A run at its end, with checkpoints of `STEPS`."""
    workdir = shutil.copytree(run, tmp_path / "run")
    set_training(workdir, steps=300)
    return workdir


def set_training(workdir: Path, **fields: Any) -> None:
    config = load_config(workdir / "config.json")
    config.training = dataclasses.replace(config.training, **fields)
    config.checkpoints.every, config.checkpoints.keep_best = 100, 0
    save_config(config, workdir / "config.json")


def make_watch(workdir: Path, counts: Sequence[int] = (1,), patience: int = 0) -> Watch:
    return Watch(workdir, workdir / "evaluations" / "watch", counts, "bleu", patience)


def read_table(workdir: Path) -> list[dict[str, object]]:
    lines = (workdir / "evaluations" / "watch" / "scores.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_every_checkpoint_is_scored_itself_and_as_the_last_of_a_mean(run: Path) -> None:
    """The best parameters outlive their checkpoints."""
    bleu = {"100": 1.0, "200": 3.0, "avg2-200": 2.0, "300": 1.5, "avg2-300": 4.0}
    scorer, watch = FakeScorer(run, bleu), make_watch(run, (1, 2))
    assert watch.follow(scorer)
    assert list(scorer.scored) == list(bleu)  # of 100 there is no mean of two
    assert_same(scorer.scored["200"], average_params(run, [200]))
    assert_same(scorer.scored["avg2-300"], average_params(run, [200, 300]))
    table = read_table(run)
    assert [row["checkpoint"] for row in table] == list(bleu)
    assert [row["bleu"] for row in table] == list(bleu.values())
    assert [row["best"] for row in table] == [False] * 4 + [True]
    lines = watch.describe().splitlines()
    assert lines[6].split() == ["300", "avg2-300", "4.00", "[3.00,", "5.00]", "best"]
    assert lines[-1].endswith("watch/best")
    shutil.rmtree(run / "checkpoints")
    folder = run / "evaluations" / "watch"
    params, label = restore_params(folder / "best", "last")
    assert label == "300"
    assert_same(params, scorer.scored["avg2-300"])
    assert {path.name for path in folder.iterdir()} == {"avg2-300", "best", "lock", "scores.jsonl"}


def test_what_was_not_done_after_the_last_score_is_made_up_for(run: Path) -> None:
    """Killed between the score and all that follows from it."""
    scorer = FakeScorer(run, {"100": 1.0, "200": 3.0, "300": 2.0})
    assert make_watch(run).follow(scorer)
    shutil.rmtree(run / "evaluations" / "watch")
    set_training(run, steps=400)
    again = FakeScorer(run, {})  # which cannot score anything
    assert not make_watch(run, patience=1).follow(again, timeout=0.01, poll=0.01)
    assert [row["best"] for row in read_table(run)] == [False, True, False]
    params, _ = restore_params(run / "evaluations" / "watch" / "best", "last")
    assert_same(params, scorer.scored["200"])
    assert read_stop_request(run)


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("", "step 300: skipped the mean of 2; only 1 consecutive checkpoints"),
        ("params/d", "step 200: skipped; checkpoint 200"),
    ],
    ids=["all", "half"],
)
def test_checkpoints_that_training_removes_are_left_out(
    run: Path, caplog: pytest.LogCaptureFixture, removed: str, message: str
) -> None:
    caplog.set_level("INFO")
    scorer = FakeScorer(run, {"100": 1.0, "300": 2.0})
    folder = run / "checkpoints" / "200" / removed
    scorer.before = lambda label: shutil.rmtree(folder, ignore_errors=True)
    assert make_watch(run, (1, 2)).follow(scorer)
    assert list(scorer.scored) == ["100", "300"]
    assert message in caplog.text


@pytest.mark.parametrize(
    ("patience", "bleu", "changes", "asks"),
    [
        (0, (3.0, 3.0, 1.0), {}, False),
        (2, (3.0, 3.0, 1.0), {}, True),
        (3, (3.0, 3.0, 1.0), {}, False),
        (2, (3.0, 3.0, 1.0), {"steps": 300}, False),  # training is at its end
        (2, (3.0, 2.0, 1.0), {"schedule_start": 200}, False),  # counts anew with an extension
        (1, (0.0, 0.0, 2.0), {}, False),  # counts once a checkpoint translates
        (1, (0.0, 2.0, 1.5), {}, True),
    ],
)
def test_training_is_told_to_stop_when_patience_is_at_its_end(
    run: Path, patience: int, bleu: tuple[float, ...], changes: dict[str, int], asks: bool
) -> None:
    set_training(run, **{"steps": 400} | changes)
    scorer = FakeScorer(run, dict(zip(map(str, STEPS), bleu, strict=True)))
    watch = make_watch(run, patience=patience)
    assert watch.follow(scorer, timeout=0.01, poll=0.01) == ("steps" in changes)
    request = read_stop_request(run)
    assert bool(request) == asks
    if request and patience == 2:
        assert request.reason.startswith("2 checkpoints without a better bleu than 3.00 of 100")
        record_stop(run, 300)
        assert watch.follow(scorer)  # nothing is to come


def test_second_watch_is_refused(run: Path) -> None:
    with (
        lock(run / "evaluations" / "watch" / "lock"),
        pytest.raises(RunError, match="another watch with these settings is running on"),
    ):
        make_watch(run).follow(FakeScorer(run, {}))
