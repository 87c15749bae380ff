"""Checks at the start of training: no other trainer, no doubts, and unchanged text."""

import json
import re
from pathlib import Path
from typing import Any

import jax
import pytest

from t2t.api import train_run
from t2t.api.train_run import plan_batches
from t2t.config.fields import Config, DataConfig, MeshConfig, ModelConfig, TrainingConfig
from t2t.config.files import load_config
from t2t.data.batch import HostBatch
from t2t.data.batch_plan import BatchShape
from t2t.data.corpus_sources import open_training
from t2t.data.tokenizer import train_vocabulary
from t2t.training import loop
from t2t.training.config_warnings import doubt_shapes, list_doubts
from t2t.training.run_directory import RunError
from tests.tiny_training import change, make_config, make_small_mesh

SHAPES = "rows x (source + target positions)"

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
        ({}, {"steps": 20, "warmup_steps": 20}, 99, "the learning rate only rises, to 0.001: "),
        ({}, {"learning_rate": 0.004}, 99, "the learning rate rises to 0.004 with model.norm_pos"),
        ({"norm_position": "pre"}, {"learning_rate": 0.004}, 99, ""),
        ({"num_layers": 2}, {"learning_rate": 0.004}, 99, ""),
        ({"d_model": 256}, {"schedule": "noam", "learning_rate": 1.0}, 99, "set .*=977 or more"),
        ({}, {}, 9.9, "a piece of the vocabulary 9.9 times .* lower tokenizer.vocab_size=37000"),
        ({}, {"ema_decay": 0.999, "steps": 999}, 99, "ema_decay=0.999 averages the last 1,000"),
        ({}, {"ema_decay": 0.999, "steps": 1001}, 99, ""),
        # An average goes on over all steps.
        ({}, {"ema_decay": 0.999, "steps": 2000, "schedule_start": 1500}, 99, ""),
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
    later = config.training.schedule_start + 1  # nothing of this may change any more
    assert not [*list_doubts(config, occurrences, later)]


@pytest.mark.parametrize(
    ("platform", "model", "packed_length", "message"),
    [
        ("gpu", {}, 0, r"2 of 3 batch shapes .* as 8 \+ 7: .* data.length_multiple=8"),
        ("gpu", {}, 31, "2 of 3 .* set an even data.packed_length"),
        ("gpu", {"kind": "decoder_only"}, 0, r"1 of 3 .* as 8 \+ 7"),  # source and target are a row
        ("gpu", {"attention_dropout": 0.1}, 0, ""),  # never cuDNN's
        ("gpu", {"dtype": "float32"}, 0, ""),
        ("gpu", {"kernels": "textbook"}, 0, ""),
        ("cpu", {}, 0, ""),
    ],
)
def test_lengths_that_a_gpus_fast_attention_does_not_take_are_said(
    platform: str,
    model: dict[str, Any],
    packed_length: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("t2t.ops.select_kernels.platform", lambda: platform)
    monkeypatch.setattr("t2t.ops.cudnn_attention.platform", lambda: platform)
    config = Config(model=ModelConfig(**model), data=DataConfig(packed_length=packed_length))
    shapes = [BatchShape(8, 8, 4), BatchShape(7, 8, 4), BatchShape(9, 9, 4)]
    doubts = [*doubt_shapes(config, shapes)]
    assert [bool(re.search(message, doubt)) for doubt in doubts] == [True] * bool(message), doubts


@pytest.mark.parametrize(
    ("steps", "shapes", "number", "remedy"),
    [(9, 12, "up to 9 batch shapes", 1), (9, 1, "one batch shape", 0), (150, 12, "up to 12", 1),
     (350, 12, "up to 12", 3), (5000, 12, "up to 12", 0), (200, 2, "up to 2", 0)],
)  # fmt: skip
def test_number_of_shapes_to_compile_is_said_and_doubted_for_few_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture,
    steps: int, shapes: int, number: str, remedy: int,
) -> None:  # fmt: skip
    data, training = {"num_shapes": shapes}, {"steps": steps, "warmup_steps": 4}
    config = change(make_config(tmp_path), data=data, training=training)
    plan_small(config, tmp_path, 0, caplog)
    text = caplog.text
    assert number in text
    assert f"to compile, {SHAPES}: " in text
    assert (f"set data.num_shapes={remedy}" in text) == bool(remedy)
    assert ("data.num_shapes" in text) == bool(remedy)


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


def test_run_goes_on_with_the_packed_rows_that_it_began_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They follow from the text, unless the ledger says otherwise."""
    config = change(make_config(tmp_path), data={"packed_length": 64, "num_shapes": 2})
    for path in config.data.train_tgt:
        lines = Path(path).read_text("utf-8").splitlines()
        Path(path).write_text("".join(f"{line[: len(line) // 2]}\n" for line in lines), "utf-8")
    (tmp_path / "ledger.jsonl").write_text(json.dumps({"row_lengths": [64, 48]}) + "\n")
    for start, length in ((0, 56), (5, 48)):
        batch, plan = plan_small(config, tmp_path, start, caplog)
        assert plan["row_lengths"] == (64, length)
        assert (batch.src.shape, batch.tgt_out.shape) == ((8, 64), (8, length))
        assert f"one batch shape to compile, {SHAPES}: 8 x (64 + {length})" in caplog.text


def plan_small(
    config: Config, workdir: Path, start: int, caplog: pytest.LogCaptureFixture
) -> tuple[HostBatch, dict[str, Any]]:
    """Returns the first batch after step `start` on one device, and what the ledger keeps."""
    corpora, mesh = open_training(config.data), make_small_mesh(MeshConfig())
    vocabulary = train_vocabulary(corpora, config.tokenizer, workdir / "vocab")
    caplog.set_level("INFO")
    with jax.set_mesh(mesh):
        batches, plan = plan_batches(config, workdir, vocabulary, mesh, corpora, start)
        return next(batches), plan
