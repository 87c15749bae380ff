"""Validation during training: what it scores, and that it never ends a run."""

import dataclasses
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float

from t2t.api import train_run
from t2t.config import variants
from t2t.config.fields import Config, ConfigError
from t2t.config.files import load_config
from t2t.config.rules import validate
from t2t.config.variants import register
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.staged_search import BatchSearch
from t2t.evaluation import validation_translations
from t2t.evaluation.measure import Measure, MeasureError, count_scores
from t2t.evaluation.text_measures import make_measure
from t2t.training.checkpoint import find_best_step
from t2t.training.run_directory import list_steps
from tests.tiny_training import change, make_config, read_figures


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """With learned positions, so that all tests of the file use the same programs."""
    model = {"position": "learned", "max_positions": 32}
    return change(make_config(tmp_path_factory.mktemp("training")), model=model)


pytestmark = pytest.mark.usefixtures("one_device", "shared_programs")


def test_validation_translates_where_it_is_asked_to(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short = change(
        config,
        training={"steps": 4, "validate_every": 2, "translate_every": 4},
        checkpoints={"every": 4, "best_metric": "bleu"},
    )
    with caplog.at_level("INFO"):
        assert train_run.train(short, tmp_path / "run")
    without, with_bleu = read_figures(tmp_path / "run", "validation/")
    assert set(without) == {"step", "validation/loss", "validation/perplexity"}
    assert set(with_bleu) == {*without, "validation/bleu", "validation/chrf"}
    assert with_bleu["validation/perplexity"] == pytest.approx(np.exp(with_bleu["validation/loss"]))
    assert "validation BLEU and chrF are bleu and chrf of t2t.evaluate" in caplog.text
    starts = ["step 2: validation loss ", "step 4: validation loss "]
    lines = [line for line in caplog.messages if ": validation " in line]
    assert [line[: len(starts[0])] for line in lines] == starts
    bleu = f"{with_bleu['validation/bleu']:.4g} at step 4"
    assert caplog.messages[-1] == (
        f"finished at step 4; validation bleu: last {bleu}, best {bleu}; "
        f"to evaluate: python -m t2t.evaluate --workdir={tmp_path}/run --split=validation"
    )


def test_checkpoints_are_ranked_by_chrf_where_bleu_has_no_tokeniser(
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def make(name: str, *given: Any) -> Any:
        if name == "bleu":
            raise MeasureError("pip install 'sacrebleu[ja]'")
        return make_measure(name, *given)

    monkeypatch.setattr(validation_translations, "make_measure", make)
    short = change(
        config,
        training={"steps": 2, "validate_every": 2, "translate_every": 2},
        checkpoints={"every": 2, "best_metric": "chrf"},
    )
    assert train_run.train(short, tmp_path / "run")
    assert "validation has no BLEU: pip install" in caplog.text
    assert find_best_step(tmp_path / "run") == 2
    with pytest.raises(MeasureError):
        train_run.train(change(short, checkpoints={"best_metric": "bleu"}), tmp_path / "other")


def test_checkpoints_are_ranked_by_the_measure_of_a_plugin(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own direction counts: the shortest outputs are best here."""
    monkeypatch.setattr(variants, "_registered", {})

    @register("evaluation.measure", "own_length")
    def make(*_: object) -> Measure:
        def count(_: object, hypotheses: Sequence[str], __: object) -> Float[np.ndarray, "n 2"]:
            return count_scores([len(line) for line in hypotheses])

        return Measure("own_length", "characters", count, higher_is_better=False)

    short = change(
        config,
        training={"steps": 4, "validate_every": 2, "translate_every": 2},
        checkpoints={"every": 2, "best_metric": "own_length", "patience": 5},
    )
    assert train_run.train(validate(short), tmp_path / "run")
    figures = read_figures(tmp_path / "run", "validation/")
    names = {f"validation/{name}" for name in ("own_length", "bleu", "chrf", "exact_match")}
    assert all(names <= {*each} for each in figures)
    lengths = {each["step"]: each["validation/own_length"] for each in figures}
    assert find_best_step(tmp_path / "run") == min(lengths, key=lambda step: (lengths[step], step))
    monkeypatch.setattr(variants, "_registered", {})
    with pytest.raises(ConfigError, match=r"own_length.* name the module that registers it in"):
        find_best_step(tmp_path / "run", short)


def test_validation_of_symbols_counts_exact_matches_and_their_errors(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short = change(
        config,
        tokenizer={"kind": "symbols"},
        training={"steps": 2, "validate_every": 2, "translate_every": 2},
        checkpoints={"every": 2, "best_metric": "symbol_error_rate"},
    )
    assert train_run.train(validate(short), tmp_path / "run")
    [figures] = read_figures(tmp_path / "run", "validation/")
    names = {"loss", "perplexity", "exact_match", "symbol_error_rate"}
    assert {*figures} == {"step", *(f"validation/{name}" for name in names)}
    assert "max_extra_length" not in caplog.text


@pytest.mark.parametrize(("kind", "pieces"), [("characters", 39), ("bytes", 260)])
def test_characters_and_bytes_are_trained_on_as_they_are(
    kind: str, pieces: int, config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said before the search if outputs as long as the targets would be cut."""
    spelled = change(
        config,
        model={"position": "sinusoidal"},
        data={"max_length": 128, "batch_tokens": 1024},
        tokenizer={"kind": kind, "byte_fallback": kind == "bytes"},
        training={"steps": 2},
        decoding={"max_extra_length": 5},
    )
    assert train_run.train(validate(spelled), tmp_path / "run")
    assert Vocabulary.load(tmp_path / "run" / "vocab").sizes == (pieces, pieces)
    saved = load_config(tmp_path / "run" / "config.json")
    assert (saved.tokenizer.vocab_size, saved.tokenizer.kind) == (
        260 if kind == "bytes" else 400,
        kind,
    )
    [doubt] = [line for line in caplog.messages if "max_extra_length" in line and "pairs" in line]
    assert re.fullmatch(
        r"\d+ of 280 training pairs have a target of more than decoding\.max_extra_length=5 "
        r"sub-words beyond its source, up to \d+ for \d+: a search would cut such outputs; set "
        r"decoding\.max_extra_length=\d+ or more",
        doubt,
    )
    longer = dataclasses.replace(saved, training=dataclasses.replace(saved.training, steps=3))
    assert train_run.train(longer, tmp_path / "run")


def test_end_tells_the_last_and_the_best_score(tmp_path: Path) -> None:
    losses = {5: 2.5, 10: 1.5, 15: None, 20: 1.75}
    lines = [json.dumps({"step": step, "validation/loss": loss}) for step, loss in losses.items()]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    workdir = tmp_path.rename(tmp_path.with_name("a run's"))
    text = train_run.describe_end(workdir, Config(), 20, ["test"])
    assert shlex.split(text)[-1] == f"--workdir={workdir}"
    assert text.startswith("finished at step 20; ")  # whatever training.steps is now
    assert "last 1.75 at step 20, best 1.5 at step 10;" in text


def test_validation_that_fails_does_so_after_the_first_step(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(BatchSearch, "search", fail)
    asked_for = change(config, training={"translate_every": 100})
    with pytest.raises(ZeroDivisionError):
        train_run.train(asked_for, tmp_path / "run")
    assert list_steps(tmp_path / "run") == []
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_without_a_validation_split_training_needs_none(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blind = change(config, data={"validation_src": "", "validation_tgt": ""}, training={"steps": 5})
    with caplog.at_level("INFO"):
        assert train_run.train(blind, tmp_path / "run")
    assert caplog.messages[-1].startswith("finished at step 5; to evaluate: ")
    assert caplog.messages[-1].endswith("--src=FILE --ref=FILE --checkpoint=last")
    assert read_figures(tmp_path / "run", "validation/") == []
    assert list_steps(tmp_path / "run") == [5]
