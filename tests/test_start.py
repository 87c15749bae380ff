"""Checks at the start of training: no other trainer, no doubts, and unchanged text."""

import re
from pathlib import Path
from typing import Any

import pytest

from t2t.api import train_run
from t2t.config.fields import Config, ModelConfig, TrainingConfig
from t2t.config.files import load_config
from t2t.training import loop
from t2t.training.doubts import list_doubts
from t2t.training.run_directory import RunError
from tests.tiny_training import change, make_config

pytestmark = pytest.mark.usefixtures("one_device", "shared_programs")


def test_second_trainer_is_refused_while_the_first_one_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path)

    def train_again(*_: object) -> None:
        with pytest.raises(RunError, match="another trainer is at work"):
            train_run.train(config, tmp_path / "run")
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "train", train_again)
    with pytest.raises(KeyboardInterrupt):
        train_run.train(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("model", "training", "occurrences", "message"),
    [
        ({}, {"steps": 20, "warmup_steps": 20}, 99, "the learning rate only rises, to 0.00095: "),
        ({}, {"learning_rate": 0.004}, 99, "the learning rate rises to 0.004 with model.norm_pos"),
        ({"norm_position": "pre"}, {"learning_rate": 0.004}, 99, ""),
        ({"num_layers": 2}, {"learning_rate": 0.004}, 99, ""),
        ({"d_model": 256}, {"schedule": "noam", "learning_rate": 1.0}, 99, "set .*=977 or more"),
        ({}, {}, 9.9, "a piece of the vocabulary 9.9 times .* lower tokenizer.vocab_size=37000"),
        ({}, {"ema_decay": 0.999, "steps": 999}, 99, "ema_decay=0.999 averages the last 1,000"),
        ({}, {"ema_decay": 0.999, "steps": 1001}, 99, ""),
    ],
)
def test_what_measurements_say_against_a_config_is_said(
    model: dict[str, Any], training: dict[str, Any], occurrences: float, message: str
) -> None:
    own = {"schedule": "cosine", "learning_rate": 0.001, "steps": 2000, "warmup_steps": 400}
    config = Config(
        model=ModelConfig(**model),
        training=TrainingConfig(**own | training),  # type: ignore[arg-type]
    )
    doubts = [*list_doubts(config, occurrences)]
    assert [bool(re.search(message, doubt)) for doubt in doubts] == [True] * bool(message), doubts


def replace_text(path: str, old: str, new: str) -> None:
    text = Path(path).read_text("utf-8")
    assert old in text
    Path(path).write_text(text.replace(old, new, 1), "utf-8")


def test_run_is_not_continued_on_text_that_has_changed(tmp_path: Path) -> None:
    config, run = change(make_config(tmp_path), training={"steps": 5}), tmp_path / "run"
    assert train_run.train(config, run)
    longer = change(config, training={"steps": 10})
    for split, path, remedy in (
        ("train", config.data.train_src[1], "restore that text, or choose another --workdir"),
        ("validation", config.data.validation_src, "or score the new text with .* --src=FILE"),
    ):
        replace_text(path, " ", "  ")
        message = rf"(?s)was started with another {split} text:.*{remedy}"
        with pytest.raises(RunError, match=message):
            train_run.train(longer, run)
        assert load_config(run / "config.json") == config
        replace_text(path, "  ", " ")
    assert train_run.train(longer, run)
