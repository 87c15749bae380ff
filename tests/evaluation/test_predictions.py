import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t2t.api.evaluate_run import describe_nats
from t2t.config.fields import ConfigError, DataConfig
from t2t.data.objectives import MaskedLM
from t2t.evaluation.evaluator import EvaluationRequest
from t2t.evaluation.predictions import evaluate_predictions, score_predictions

COUNTS = np.array([[2.0, 4.0, 1.0]] * 20 + [[6.0, 4.0, 3.0]] * 20)  # nats, tokens, right


def test_scores_are_of_the_sums_over_all_texts_and_say_what_is_predicted() -> None:
    data = DataConfig(objective="masked_lm", noise_density=0.2)
    scores = score_predictions(data, MaskedLM(data, 4, [5]).predicted, COUNTS)
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


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"testset": "wmt14"}, "--testset"),
        ({"src": "a", "ref": ("b",)}, "--src"),
        ({"decoding": {"beam_size": 3}}, "--beam_size"),
        ({"measures": ("bleu",)}, "--measures"),
        ({"others": (Path("b"),)}, "an ensemble"),
    ],
)
def test_flags_for_translations_are_refused(changes: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag} is for translations"):
        evaluate_predictions(EvaluationRequest(Path("run"), **changes))
