"""The example of features without order: they have no position, and the run knows their ids."""

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from t2t.api.evaluate_run import evaluate
from t2t.api.prepare_run import prepare
from t2t.api.train_run import train
from t2t.config import variants
from t2t.config.fields import Config, ConfigError
from t2t.config.files import load_config, override
from t2t.data.batch import EOS_ID, PAD_ID
from t2t.data.tokenizer import Vocabulary
from t2t.evaluation.requests import EvaluationRequest
from t2t.model.parameters import merge
from tests.model.small_models import SMALL, draw_params
from tests.shared_programs import share_programs
from tests.tiny_training import assert_same_training, make_config

A, B, V, PST = 4, 5, 8, 9
FEATURES = (V, PST)
STEPS = 4


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setattr(variants, "_registered", {})
    sys.modules.pop("examples.features", None)
    with share_programs():
        yield importlib.import_module("examples.features")


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "relative", "rotary"])
def test_features_have_no_order_and_a_mark_that_tells_them_from_letters(
    position: str, example: ModuleType
) -> None:
    def encode(*src: int, features: tuple[int, ...] = FEATURES, length: int = 12) -> np.ndarray:
        """Encodes a row, behind which another word is packed, with the features 8 and 9."""
        row = [*src, EOS_ID, B, V, EOS_ID]
        own: dict[str, Any] = {"plugin": {"features": example.Options(features)}}
        own |= {"kind": "features", "position": position}
        model = merge(*draw_params(dataclasses.replace(SMALL, **own)))
        padded = row + [PAD_ID] * (length - len(row))
        return np.asarray(model.encode(jnp.array([padded, padded]))[0][0, : len(row)])

    found = encode(A, B, V, PST)
    swapped = encode(A, B, PST, V)
    np.testing.assert_allclose(found[[0, 1, 2, 3]], swapped[[0, 1, 3, 2]], atol=1e-5)
    np.testing.assert_allclose(found[4:], swapped[4:], atol=1e-5)
    first = encode(V, PST, A, B)  # a letter has its position among letters
    np.testing.assert_allclose(found[[0, 1, 2, 3]], first[[2, 3, 0, 1]], atol=1e-5)
    np.testing.assert_allclose(found[-3:], encode(A, V)[-3:], atol=1e-5)  # of the packed word
    assert np.abs(found[0] - encode(B, A, V, PST)[1]).max() > 0.01  # letters have an order
    of_feature, of_letter = encode(V), encode(V, features=(PST,))
    assert np.abs(of_feature[0] - of_letter[0]).max() > 0.1
    if position == "learned":
        with pytest.raises(ConfigError, match=r"17 positions exceed model\.max_positions=16"):
            encode(A, B, A, B, V, length=16)


def make_task(folder: Path, source: str, steps: int = STEPS) -> Config:
    """Returns the config of a tiny run on made-up lines, in which all verbs are regular."""
    words = [f"{first}{second}lk" for first in "abcdefg" for second in "aeiou"]
    lines = {
        "inflection": ("{0}\t{0}ed\tV;PST", "{0}\t{0}s\tV;PRS;3;SG"),
        "cogs": ("{0}\t{0} ( x )\tseen", "{0} {0}\t{0} ( x ) ( x )\tnew"),
    }[source]
    text = "".join(f"{line.format(word)}\n" for word in words for line in lines)
    names = ("toy.train", "toy.dev", "toy.gold", "train.tsv", "dev.tsv")
    for name in names:
        (folder / name).write_text(text)
    values: dict[str, Any] = {"data.source": source, "data.directory": str(folder)}
    values |= {"data.train_src": (), "data.train_tgt": (), "data.train_weights": ()}
    values |= {"data.validation_src": "", "data.validation_tgt": ""}
    values |= {"plugins": ("examples.features",), "model.kind": "features"}
    values |= {"training.steps": steps, "training.validate_every": 2, "checkpoints.every": 2}
    # No more symbols than there are, for `read_state`.
    values |= {"tokenizer.kind": "symbols", "tokenizer.vocab_size": 22}
    values |= {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2, "training.log_every": 1}
    return override(make_config(folder), values)


def test_run_keeps_the_ids_of_features_and_goes_on_with_them(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(make_task(tmp_path, "inflection"), whole)
    for steps in (2, STEPS):
        assert train(make_task(tmp_path, "inflection", steps), parts)
    assert_same_training(parts, whole, STEPS, "train/")
    ids = load_config(parts / "config.json").plugin["features"].ids
    pieces = Vocabulary.load(parts / "vocab").src.pieces(ids)
    assert sorted(pieces) == ["▁[3]", "▁[PRS]", "▁[PST]", "▁[SG]", "▁[V]"]
    assert "exact_match" in evaluate(EvaluationRequest((parts,), split="test")).result["measures"]


def test_task_without_features_is_refused_before_its_first_step(tmp_path: Path) -> None:
    message = r"examples\.features: .* no feature, a symbol in brackets such as \[PST\]; leave it"
    for name, start in (("trained", train), ("prepared", prepare)):
        with pytest.raises(ConfigError, match=message):
            start(make_task(tmp_path, "cogs"), tmp_path / name)
        assert not (tmp_path / name / "metrics.jsonl").exists()
