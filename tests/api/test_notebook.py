"""`t2t.train`, `t2t.evaluate` and `t2t.compare`: what they pass on, and what a notebook shows."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from t2t.api import evaluate_run, notebook, train_run
from t2t.config import Config, ConfigError, DataConfig, TrainingConfig
from t2t.evaluation.evaluator import EvaluationRequest
from t2t.evaluation.load_models import ModelRequest
from tests.evaluation.saved_evaluations import save, spoil


def test_training_has_the_rules_of_the_program(tmp_path: Path) -> None:
    wrong = Config(training=TrainingConfig(schedule="cosine", learning_rate=1.0))
    with pytest.raises(ConfigError, match=r"a factor only with training\.schedule='noam'"):
        notebook.train(wrong, tmp_path / "run")
    missing = Config(data=DataConfig(source="text"))
    with pytest.raises(ConfigError, match=r"data\.train_src"):
        notebook.train(missing, tmp_path / "run")
    with pytest.raises(ConfigError, match="--writers=wandb is unknown; "):
        notebook.train(Config(data=DataConfig(source="phrasebook")), tmp_path, writers=["wandb"])


@pytest.mark.parametrize(("scores", "best"), [({"loss"}, "best"), (set(), "last")])
def test_trained_run_is_loaded_with_its_best_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: set[str], best: str
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(train_run, "train", lambda *arguments: called.append(arguments))
    monkeypatch.setattr("t2t.training.checkpoint.list_scored_measures", lambda workdir: scores)
    monkeypatch.setattr(notebook, "load", lambda *arguments: called.append(arguments))
    config = Config(data=DataConfig(source="phrasebook"))
    notebook.train(config, str(tmp_path))
    assert called == [(config, tmp_path, ()), (tmp_path, best)]


def test_evaluation_is_that_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[EvaluationRequest] = []
    monkeypatch.setattr(evaluate_run, "evaluate", requests.append)
    notebook.evaluate("runs/a", "validation", checkpoint=100, measures=("chrf",))
    expected = EvaluationRequest(Path("runs/a"), "100", "validation", measures=("chrf",))
    assert requests == [expected]
    with pytest.raises(TypeError, match="beams"):
        notebook.evaluate("runs/a", beams=3)


def test_loaded_run_is_evaluated_with_its_checkpoint() -> None:
    request = ModelRequest((Path("a"), Path("b")), "100", (1.0, 3.0), "log_probs")
    found = notebook.make_request(request, "test", direction="en-de")
    assert found.models == dataclasses.replace(request, direction="en-de")


def test_comparison_is_the_text_of_the_program_with_a_picture(tmp_path: Path) -> None:
    save(tmp_path / "base", spoil(8))
    other = save(tmp_path / "one_head", spoil(2))
    found = notebook.compare(tmp_path / "base", other)
    assert f"is worse than {tmp_path}/base: " in found
    assert repr(found) == found
    shown = found._repr_html_()
    assert shown.startswith("<pre>test, 48 sentences, bleu: ")
    assert '<img alt="differences" src="data:image/png;base64,' in shown
    alone = notebook.compare(str(tmp_path / "base"))._repr_html_()
    assert "<img" not in alone


def test_notebook_shows_the_scores_of_an_evaluation(tmp_path: Path) -> None:
    shown = save(tmp_path / "base", spoil(8))._repr_html_()
    assert shown.startswith("<p><code>test-100: 48 sentences</code></p><table>")
    assert "bleu_lowercase" in shown
