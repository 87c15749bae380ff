"""Fine-tuning a run on other text: `t2t.train --init_from`, `training.frozen`, `tokenizer.path`."""

import shutil
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from t2t.api import train_run
from t2t.config.fields import Config
from t2t.config.files import load_config
from t2t.data.preparation import fill_tokenizer, make_vocabulary
from t2t.data.tokenizer import Vocabulary
from t2t.storage.atomic_files import upload
from t2t.training.checkpoint import restore_params
from t2t.training.provenance import read_ledger
from tests import programs
from tests.bucket_runs import assert_same_run, move_data
from tests.data.small_corpus import CORPUS
from tests.tiny_run import make_run
from tests.tiny_training import assert_same_training, change, make_config, write_recipe

STEPS = 10

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an encoder and a decoder of one layer each; not to be changed."""
    return make_run(tmp_path_factory.mktemp("runs") / "source")


@pytest.fixture(scope="module")
def config(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Other text, a vocabulary of its own and one more layer; the encoder's first one is frozen."""
    training: dict[str, Any] = {
        "steps": STEPS, "warmup_steps": 4, "log_every": 1, "ema_decay": 0.9,
        "init_from": f"{source}:300", "frozen": ("encoder.0.*",),
        "rate_factors": ("decoder.0.*=0.5",),
    }  # fmt: skip
    base = make_config(tmp_path_factory.mktemp("data"))
    return change(base, training=training, model={"num_heads": 2, "num_layers": 2})


@pytest.fixture(scope="module")
def tuned(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the config; not to be changed."""
    workdir = tmp_path_factory.mktemp("runs") / "tuned"
    assert train_run.train(config, workdir)
    return workdir


@pytest.mark.slow
def test_source_may_be_in_a_bucket(config: Config, source: Path, tuned: Path, bucket: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            upload(path, bucket / "source" / path.relative_to(source))
    (bucket / "source" / "checkpoints" / "300" / "commit_success.txt").write_text("x")
    moved = move_data(config, Path(config.data.cache_directory).parent, bucket)
    moved = change(moved, training={"init_from": f"{bucket}/source:300"})
    assert train_run.train(moved, bucket / "run")
    assert_same_run(bucket / "run", tuned, STEPS)
    [entry] = read_ledger(bucket / "run")
    assert entry["initial"]["run"] == f"{bucket}/source"
    kept = fill_tokenizer(change(moved, tokenizer={"path": f"{bucket}/source/vocab"}))
    made = make_vocabulary(kept, bucket / "kept", [CORPUS])
    assert made.fingerprint() == Vocabulary.load(source / "vocab").fingerprint()


@pytest.mark.slow
@pytest.mark.equality
def test_killed_fine_tuning_is_the_same_bit_for_bit_even_if_its_source_is_gone(
    config: Config, source: Path, tmp_path: Path
) -> None:
    """With the vocabulary and a frozen layer of the source; continued without its name."""
    source = Path(shutil.copytree(source, tmp_path / "source"))
    vocabulary = Vocabulary.load(source / "vocab").fingerprint()
    before, _ = restore_params(source, "300")
    recipe, whole, run = (tmp_path / name for name in ("recipe.py", "whole", "killed"))
    write_recipe(change(config, training={"init_from": ""}), recipe)
    flags = [f"--config={recipe}", f"--config.tokenizer.path={source}/vocab"]
    initial = f"--init_from={source}:last"
    done = programs.run("t2t.train", *flags, initial, f"--workdir={whole}")
    assert done.returncode == 0, done.stderr
    assert f"parameters of {source}, checkpoint 300" in done.stderr
    killed = "tests.moments", "SIGKILL", "os.rename", "checkpoints/10$"
    done = programs.run(*killed, "t2t.train", *flags, initial, f"--workdir={run}")
    assert done.returncode == -signal.SIGKILL, done.stderr
    shutil.rmtree(source)
    done = programs.run("t2t.train", *flags, f"--workdir={run}")
    assert done.returncode == 0, done.stderr
    assert_same_training(run, whole, STEPS, "train/", "validation/")
    first, second = (entry["initial"] for entry in read_ledger(run))
    assert first == second
    assert Vocabulary.load(run / "vocab").fingerprint() == vocabulary
    assert read_ledger(whole)[0]["vocabulary"] == vocabulary
    assert load_config(whole / "config.json").tokenizer.vocab_size == 400
    assert ["encoder.0", "taken"] in [row[:2] for row in first["parameters"]]
    for checkpoint in ("last", "ema"):
        after, _ = restore_params(whole, checkpoint)
        jax.tree.map(np.testing.assert_array_equal, after["encoder"][0], before["encoder"][0])
        others = [jax.tree.leaves(params["decoder"][0]) for params in (before, after)]
        assert any((one != other).any() for one, other in zip(*others, strict=True))
