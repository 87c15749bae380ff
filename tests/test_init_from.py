"""Fine-tuning a run on other text: `t2t.train --init_from`, `training.frozen`, `tokenizer.path`."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from configs import fine_tune
from t2t.api import train_run
from t2t.api.import_model import import_model
from t2t.config.fields import Config
from t2t.config.files import check_config, load_config
from t2t.data.preparation import fill_tokenizer, make_vocabulary
from t2t.data.tokenizer import ORIGINAL_IDS, Vocabulary
from t2t.runtime.mesh import make_mesh
from t2t.storage.atomic_files import upload
from t2t.training.checkpoint import restore_params
from t2t.training.provenance import read_ledger
from t2t.training.run_directory import list_steps
from t2t.training.signals import Interruption
from tests import programs
from tests.bucket_runs import assert_same_run, move_data
from tests.data.small_corpus import CORPUS
from tests.interop.foreign_folders import write_model
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
@pytest.mark.equality
def test_interrupted_fine_tuning_is_the_same_bit_for_bit(
    config: Config, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Continued without the source's name, and when the source is gone."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Interruption, "reached", lambda self, step: bool(step == 3))
        assert not train_run.train(config, run)
    assert list_steps(run) == [3]
    monkeypatch.setattr(train_run, "read_source", lambda *_: pytest.fail("the source is read"))
    assert train_run.train(change(config, training={"init_from": ""}), run)
    assert_same_training(run, tuned, STEPS, "train/", "validation/")
    first, second = (entry["initial"] for entry in read_ledger(run))
    assert first == second


@pytest.mark.slow
def test_frozen_layer_stays_that_of_the_source(source: Path, tuned: Path) -> None:
    before, _ = restore_params(source, "300")
    for checkpoint in ("last", "ema"):
        after, _ = restore_params(tuned, checkpoint)
        jax.tree.map(np.testing.assert_array_equal, after["encoder"][0], before["encoder"][0])
        moved = jax.tree.map(
            lambda x, y: bool((x != y).any()), after["decoder"][0], before["decoder"][0]
        )
        assert any(jax.tree.leaves(moved))
    [entry] = read_ledger(tuned)
    assert entry["initial"]["checkpoint"] == "300"
    assert entry["config"]["training.init_from"] == f"{source}:300"
    assert ["encoder.0", "taken"] in [row[:2] for row in entry["initial"]["parameters"]]


@pytest.mark.slow
def test_program_is_killed_and_continued_with_the_vocabulary_of_the_source(
    config: Config, source: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.py"
    write_recipe(change(config, training={"init_from": ""}), recipe)
    common = [f"--config={recipe}", f"--config.tokenizer.path={source}/vocab"]
    flags = [*common, f"--init_from={source}:last"]
    whole = programs.run("t2t.train", *flags, f"--workdir={tmp_path}/whole")
    assert whole.returncode == 0, whole.stderr
    assert f"parameters of {source}, checkpoint 300" in whole.stderr
    assert "training.frozen keeps" not in whole.stderr
    killed = f"--workdir={tmp_path}/killed"
    with programs.Program("t2t.train", *flags, killed) as program:
        while not (tmp_path / "killed" / "checkpoints" / "5").exists():
            assert program.poll() is None, program.messages
    again = programs.run("t2t.train", *flags, killed)
    assert again.returncode == 0, again.stderr
    places = tmp_path / "killed", tmp_path / "whole"
    assert_same_training(*places, STEPS, "train/", "validation/")
    made = Vocabulary.load(tmp_path / "whole" / "vocab").fingerprint()
    assert made == Vocabulary.load(source / "vocab").fingerprint()
    assert read_ledger(tmp_path / "whole")[0]["vocabulary"] == made
    assert load_config(tmp_path / "whole" / "config.json").tokenizer.vocab_size == 400


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
def test_imported_model_is_fine_tuned_on_eight_devices(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its two models of one vocabulary have the same ids, so all tables are one."""
    (tmp_path / "marian").mkdir()
    write_model(tmp_path / "marian")
    imported, run = tmp_path / "imported", tmp_path / "run"
    import_model(str(tmp_path / "marian"), imported)
    monkeypatch.setattr(train_run, "make_mesh", make_mesh)
    files = {name: getattr(config.data, name) for name in ("train_src", "train_tgt")}
    recipe = change(
        fine_tune.get_config(str(imported)),
        data={**files, "cache_directory": f"{tmp_path}/cache", "batch_tokens": 8192},
        training={"steps": 4, "warmup_steps": 2, "validate_every": 2, "frozen": ("encoder.*",)},
        checkpoints={"every": 2, "keep_best": 0},
        mesh={"data": 4, "fsdp": 2},
    )
    assert train_run.train(check_config(recipe), run)
    [entry] = read_ledger(run)
    assert {row[1] for row in entry["initial"]["parameters"]} == {"taken"}
    before, after = (restore_params(each, "last")[0] for each in (imported, run))
    jax.tree.map(np.testing.assert_array_equal, after["encoder"], before["encoder"])
    for name in ("src.model", "tgt.model", ORIGINAL_IDS):  # with which it can be exported again
        assert (run / "vocab" / name).read_bytes() == (imported / "vocab" / name).read_bytes()
