import dataclasses
import math
import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from t2t.api.compare_runs import verify
from t2t.api.evaluate_run import describe, describe_nats, evaluate
from t2t.config.fields import ConfigError, DataConfig
from t2t.data.objectives import MaskedLM
from t2t.evaluation.load_models import identify_running_code
from t2t.evaluation.predictions import PredictionEvaluator, make_measures
from t2t.evaluation.requests import EvaluationRequest
from tests.evaluation.saved_evaluations import pair
from tests.tiny_run import make_run

COUNTS = np.array([[2.0, 4.0, 1.0]] * 20 + [[6.0, 4.0, 3.0]] * 20)  # nats, tokens, right


def test_scores_are_of_the_sums_over_all_texts_and_say_what_is_predicted() -> None:
    data = DataConfig(objective="masked_lm", noise_density=0.2)
    measures = make_measures(data, MaskedLM(data, 4, [5]).predicted).items()
    scores = {
        name: each.score_counts(COUNTS, pair(["a"] * len(COUNTS)), with_interval=True)
        for name, each in measures
    }
    assert scores["perplexity"].value == pytest.approx(math.exp(1))
    assert scores["accuracy"].value == pytest.approx(50)
    assert scores["accuracy"].definition == (
        "percent predicted as most probable; masked_lm: the chosen sub-words of a text, "
        "noise_density 0.2, drawn once; teacher forcing in JAX in float32, no smoothing"
    )
    for score in scores.values():
        assert score.interval is not None
        low, high = score.interval
        assert low < score.value < high
    described = describe_nats(dataclasses.asdict(scores["perplexity"]))
    assert re.fullmatch(r"1\.0000 \[0\.\d{4}, 1\.\d{4}\] nats per sub-word: .*", described)


def test_texts_that_are_too_long_are_counted_by_message_summary_and_definition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = {"kind": "decoder_only", "prefix": False, "position": "learned", "max_positions": 32}
    data = {"objective": "lm", "train_src": (), "test_src": "", "max_length": 16}
    run = make_run(tmp_path / "run", model=model, data=data)
    (run / "toy.de").write_text("Hunde klettern.\n" * 30 + "Hunde klettern. " * 20 + "\n", "utf-8")
    found = evaluate(EvaluationRequest((run,), "last"))
    assert "test: 1 of 31 texts have more sub-words than model.max_positions=32" in caplog.text
    assert found.passport.code == identify_running_code(PredictionEvaluator.__module__)["code"]
    assert ": 31 sentences, 1 of them left out, in " in describe(found)
    for score in found.result["measures"].values():
        assert score["definition"].endswith("; left out: 1 texts that are too long for the model")
    assert "verified" in verify([str(found.path)], "test", "")


def test_flags_for_translations_are_refused() -> None:
    changes: dict[str, dict[str, Any]] = {
        "--tgt_language": {"tgt_language": "zh"},
        "--src": {"src": "a", "ref": ("b",)},
        "--beam_size": {"decoding": {"beam_size": 3}},
        "--measures": {"measures": ("bleu",)},
        "an ensemble": {"checkpoint": "100,200"},
    }
    for flag, given in changes.items():
        with pytest.raises(ConfigError, match=f"^{flag} is for translations"):
            PredictionEvaluator(EvaluationRequest((Path("run"),), **given), mock.Mock())
