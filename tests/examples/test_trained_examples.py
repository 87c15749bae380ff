"""Examples that change a step of training: on eight devices, and resumed bit for bit."""

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from t2t.api import train_run
from t2t.api.train_run import train
from t2t.config import variants
from t2t.config.fields import Config, ConfigError
from t2t.config.files import override
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, DeviceBatch
from t2t.data.tokenizer import Vocabulary
from t2t.model.loss import compute_log_probs
from t2t.model.parameters import merge
from t2t.storage.paths import PathError
from t2t.training import teachers
from t2t.training.fine_tuning import SourceRun
from t2t.training.losses import Teacher, make_loss
from t2t.training.provenance import read_ledger
from t2t.training.run_directory import RunError
from tests.model.small_models import SMALL, SRC, TGT_IN, TGT_OUT, draw_params
from tests.shared_programs import share_programs
from tests.tiny_training import assert_same_training, make_config, read_figures

STEPS = 4
# The module, and its values of the config.
CASES: dict[str, dict[str, Any]] = {
    "distillation": {
        "training.loss": "distillation",
        "plugin.distillation.temperature": 2.0,
        "training.accumulation_steps": 2,
    },
    "minimum_risk": {
        "training.loss": "minimum_risk",
        "plugin.minimum_risk.samples": 2,
        "model.dtype": "bfloat16",
    },
}


@pytest.fixture(scope="module", autouse=True)
def _own_variants() -> Iterator[None]:
    """Removes what the tests register, and shares their programs."""
    with pytest.MonkeyPatch.context() as patch, share_programs():
        patch.setattr(variants, "_registered", {})
        for name in CASES:
            sys.modules.pop(f"examples.{name}", None)
        yield


def train_teacher(folder: Path, seed: int) -> Path:
    """Trains a wider model than the students'."""
    config = override(
        make_config(folder),
        {"training.steps": 2, "training.validate_every": 2, "checkpoints.every": 2, "seed": seed}
        | {"model.d_model": 32, "model.norm": "rms", "model.position": "learned"},
    )
    assert train(config, folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_teacher(tmp_path_factory.mktemp("teacher"), 0)


def make_student(folder: Path, teacher: Path, case: str, steps: int = STEPS) -> Config:
    values = CASES[case] | {"plugins": (f"examples.{case}",), "tokenizer.path": f"{teacher}/vocab"}
    if case == "distillation":
        values |= {"plugin.distillation.teacher": f"{teacher}:2"}
    values |= {"training.steps": steps, "training.log_every": 1, "training.validate_every": 2}
    values |= {"checkpoints.every": 2, "mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2}
    return override(make_config(folder), values)


@pytest.mark.parametrize("case", CASES)
def test_example_trains_on_eight_devices_and_resumes_bit_for_bit(
    case: str, teacher: Path, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(make_student(tmp_path, teacher, case), whole)
    for steps in (2, STEPS):
        assert train(make_student(tmp_path, teacher, case, steps), parts)
    assert_same_training(parts, whole, STEPS, "train/")
    figures = read_figures(parts, "train/loss")
    losses = [line["train/loss"] for line in figures]
    if case == "distillation":  # by halves
        for line in figures:
            parts_of_loss = line["train/cross_entropy"], line["train/distillation"]
            assert line["train/loss"] == pytest.approx(np.mean(parts_of_loss), rel=1e-5)
    assert losses[-1] < losses[0]
    assert np.isfinite(losses).all()


def test_teacher_is_read_from_the_run_that_the_config_names(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its vocabulary, at each start; a run continues with no other."""
    run, student = tmp_path / "run", make_student(tmp_path, teacher, "distillation", 2)
    for values, message in (
        ({"tokenizer.path": ""}, rf"teacher={teacher}.* same; set tokenizer\.path={teacher}/vocab"),
        (
            {"data.max_length": 2000, "data.batch_tokens": 16_000},
            rf"teacher={teacher}: model\.max_positions=1024 is less than data\.max_length=2000",
        ),
        ({"plugin.distillation.teacher": ""}, "plugin.distillation.teacher is empty"),
        ({"plugin.distillation.teacher": f"{tmp_path}/none"}, "none is no run directory; write"),
    ):
        with pytest.raises((ConfigError, RunError, PathError), match=message):
            train(override(student, values), run)
        assert not run.exists()
    placed: list[SourceRun] = []

    def place(sources: list[SourceRun], vocabulary: Vocabulary) -> tuple[Teacher, ...]:
        placed.extend(sources)
        return teachers.place_teachers(sources, vocabulary)

    with monkeypatch.context() as patch:
        patch.setattr(train_run, "place_teachers", place)
        assert train(student, run)
    assert [each.params for each in placed] == [{}]  # which only the devices hold
    [start] = read_ledger(run)
    assert start["teachers"][0]["checkpoint"] == "2"
    assert start["config"]["plugin.distillation.temperature"] == 2.0
    shutil.rmtree(teacher)
    train_teacher(teacher.parent, 1)
    with pytest.raises(RunError, match=r"was trained with the teacher .*:2, sha256 .*; restore"):
        train(make_student(tmp_path, teacher, "distillation"), run)


def make_batch() -> DeviceBatch:
    return DeviceBatch(SRC, TGT_IN, TGT_OUT, jax.numpy.asarray(TGT_OUT != PAD_ID, "float32"))


def test_distillation_mixes_the_losses_of_text_and_teacher() -> None:
    example = importlib.import_module("examples.distillation")
    structure, params = draw_params(SMALL)
    model, batch = merge(structure, params), make_batch()
    log_p = np.asarray(compute_log_probs(*model.predict(batch)[:2]))
    weights = np.asarray(batch.weights)

    def sum_losses(**options: Any) -> float:
        config = Config(plugin={"distillation": example.Options("RUN", **options)})
        return float(example.Distillation(config)(model, batch, None, model)[0])

    plain, *_ = make_loss(Config()).sum_losses(model, batch)
    assert sum_losses(mix=0.0) == pytest.approx(float(plain))
    entropy = -np.sum(np.exp(log_p) * log_p, axis=-1)
    assert sum_losses(mix=1.0) == pytest.approx(np.sum(entropy * weights), rel=1e-5)
    soft = np.asarray(jax.nn.log_softmax(log_p / 2))
    entropy = -4 * np.sum(np.exp(soft) * soft, axis=-1)
    found = sum_losses(mix=1.0, temperature=2.0)
    assert found == pytest.approx(np.sum(entropy * weights), rel=1e-5)


def test_samples_of_minimum_risk_have_the_probabilities_of_the_model() -> None:
    example = importlib.import_module("examples.minimum_risk")
    structure, params = draw_params(SMALL)
    model = merge(structure, params)
    count = 4000
    batch = jax.tree.map(lambda x: jax.numpy.repeat(x[:1], count, axis=0), make_batch())
    drawn = np.asarray(jax.jit(lambda key: example.draw(model, batch, key))(jax.random.key(0)))
    first = drawn[:, 0]
    kept = np.bincount(first[first != EOS_ID]).argmax()
    second = drawn[first == kept, 1]
    inputs = jax.numpy.full_like(TGT_IN[:1], kept).at[0, 0].set(BOS_ID)
    logits = np.array(model(SRC[:1], inputs)[0, :2])
    logits[:, :2] = -np.inf  # PAD and BOS are never drawn
    wanted = np.asarray(jax.nn.softmax(logits))
    for found, probabilities in zip((first, second), wanted, strict=True):
        shares = np.bincount(found, minlength=len(probabilities)) / len(found)
        np.testing.assert_allclose(shares, probabilities, atol=0.04)
    for samples in (-1, 0, 1):
        values = {"plugins": ("examples.minimum_risk",), "plugin.minimum_risk.samples": samples}
        with pytest.raises(ConfigError, match=r"minimum_risk\.samples=-?\d must be 2 or more"):
            override(Config(), values)
    score = jax.numpy.array
    found, reference = score([[5, 5, 6, 2, 0]]), score([[5, 7, 2, 0, 0]])
    assert float(example.f_score(found, reference)[0]) == pytest.approx(2 * 2 / (4 + 3))
