"""Training as a program: it ends where it would have ended, however it was stopped in between."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest

from t2t import train
from t2t.cli import INTERRUPTED
from t2t.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    ModelConfig,
    TokenizerConfig,
    TrainingConfig,
)
from t2t.config_rules import validate
from t2t.training.checkpoint import RunError, list_steps, restore_params
from tests.data.small_corpus import PAIRS

STEPS = 24


def write_corpus(folder: Path) -> dict[str, str]:
    """Field by field, the flags that name it."""
    for language, sentences in zip(("en", "de"), zip(*PAIRS, strict=True), strict=True):
        (folder / f"train.{language}").write_text("\n".join(sentences) + "\n")
        (folder / f"dev.{language}").write_text("\n".join(sentences[:9]) + "\n")
    return {
        "train_src": str(folder / "train.en"),
        "train_tgt": str(folder / "train.de"),
        "validation_src": str(folder / "dev.en"),
        "validation_tgt": str(folder / "dev.de"),
        "cache_directory": str(folder / "cache"),
    }


def make_config(folder: Path, steps: int = STEPS) -> Config:
    files = write_corpus(folder)
    return validate(
        Config(
            model=ModelConfig(num_layers=1, d_model=16, d_ff=32, num_heads=2, dropout=0.2),
            data=DataConfig(
                source="text",
                train_src=(files["train_src"],),
                train_tgt=(files["train_tgt"],),
                validation_src=files["validation_src"],
                validation_tgt=files["validation_tgt"],
                cache_directory=files["cache_directory"],
                max_length=32,
                batch_tokens=512,
                num_shapes=1,
            ),
            tokenizer=TokenizerConfig(vocab_size=350),
            training=TrainingConfig(steps=steps, warmup_steps=8, log_every=2, validate_every=4),
            checkpoints=CheckpointConfig(every=4, keep_last=2),
        )
    )


def flags(folder: Path, workdir: Path) -> list[str]:
    """The same config on the command line."""
    return [
        "--config=configs/text.py",
        f"--workdir={workdir}",
        *(f"--config.data.{name}={value}" for name, value in write_corpus(folder).items()),
        "--config.data.max_length=32",
        "--config.data.batch_tokens=512",
        "--config.data.num_shapes=1",
        "--config.model.num_layers=1",
        "--config.model.d_model=16",
        "--config.model.d_ff=32",
        "--config.model.num_heads=2",
        "--config.model.dropout=0.2",
        "--config.tokenizer.vocab_size=350",
        f"--config.training.steps={STEPS}",
        "--config.training.warmup_steps=8",
        "--config.training.log_every=2",
        "--config.training.validate_every=4",
        "--config.checkpoints.every=4",
        "--config.checkpoints.keep_last=2",
    ]


def start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "t2t.train", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"XLA_FLAGS": ""},
    )


def assert_same_end(run: Path, other: Path) -> None:
    params, label = restore_params(run, "last")
    expected, expected_label = restore_params(other, "last")
    assert label == expected_label == str(STEPS)
    jax.tree.map(np.testing.assert_array_equal, params, expected)


def read_figures(run: Path, name: str) -> dict[int, float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line[name] for line in lines if name in line}


def test_two_halves_are_the_whole_bit_for_bit(tmp_path: Path) -> None:
    assert train.main(make_config(tmp_path), tmp_path / "whole")
    assert train.main(make_config(tmp_path, STEPS // 2), tmp_path / "halves")
    assert train.main(make_config(tmp_path), tmp_path / "halves")
    assert_same_end(tmp_path / "halves", tmp_path / "whole")
    losses = read_figures(tmp_path / "whole", "train/loss")
    assert losses == read_figures(tmp_path / "halves", "train/loss")
    assert list(losses) == list(range(2, STEPS + 1, 2))
    assert losses[STEPS] < losses[2]
    assert list_steps(tmp_path / "whole") == [STEPS - 4, STEPS]


def test_another_config_is_refused_with_the_fields_that_differ(tmp_path: Path) -> None:
    train.main(make_config(tmp_path, 4), tmp_path / "run")
    config = make_config(tmp_path, 8)
    config.model.dropout = 0.5
    with pytest.raises(RunError, match=r"model\.dropout: 0\.2 -> 0\.5"):
        train.main(config, tmp_path / "run")


@pytest.mark.slow
def test_killed_at_any_moment_the_same_command_ends_the_same(tmp_path: Path) -> None:
    arguments = flags(tmp_path, tmp_path / "killed")
    moment = random.Random(time.time_ns())
    for _ in range(2):
        process = start(arguments)
        for line in process.stdout or ():
            if line.startswith("step ") and moment.random() < 0.3:
                break
        process.kill()
        process.communicate()
    last = start(arguments)
    output, _ = last.communicate(timeout=300)
    assert last.returncode == 0, output
    whole = start(flags(tmp_path, tmp_path / "whole"))
    output, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, output
    assert_same_end(tmp_path / "killed", tmp_path / "whole")
    losses = read_figures(tmp_path / "killed", "train/loss")
    assert losses == read_figures(tmp_path / "whole", "train/loss")


@pytest.mark.slow
def test_signal_saves_and_the_same_command_goes_on(tmp_path: Path) -> None:
    arguments = [*flags(tmp_path, tmp_path / "run"), "--config.checkpoints.every=10000"]
    arguments += ["--config.checkpoints.keep_best=0", "--config.training.steps=10000"]
    steps = [0]
    for number in (signal.SIGTERM, signal.SIGINT):
        process = start(arguments)
        for line in process.stdout or ():
            if line.startswith("step "):
                break
        process.send_signal(number)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == INTERRUPTED, output
        assert "Traceback" not in output
        steps.append(list_steps(tmp_path / "run")[-1])
    assert steps[0] < steps[1] < steps[2] < 10000


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--config.model.num_head=2", "--config.model.num_head: no such field; perhaps model.num"),
        ("--config.model.num_heads=two", "invalid literal"),
        ("--config.model.num_heads=3", "model.num_heads=3 does not divide model.d_model=16"),
        ("--config.data.validation_src=nowhere.en", "nowhere.en does not exist"),
        ("--config.tokenizer.vocab_size=90000", "tokenizer.vocab_size=90000"),
        ("extra", "extra: not a flag"),
    ],
)
@pytest.mark.slow
def test_wrong_flag_is_one_message_without_a_traceback(
    tmp_path: Path, flag: str, message: str
) -> None:
    process = start([*flags(tmp_path, tmp_path / "run"), flag])
    output, _ = process.communicate(timeout=120)
    assert process.returncode not in (0, INTERRUPTED)
    assert message in output
    assert "Traceback" not in output
