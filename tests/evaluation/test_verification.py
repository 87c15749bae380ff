"""Saved evaluations are verified from their own files, and edits are named."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from t2t.api.compare_runs import verify
from t2t.evaluation.saved_evaluations import Evaluation, EvaluationError, load_evaluation
from t2t.evaluation.segment_scores import store_segment_scores
from tests.evaluation.saved_evaluations import REFERENCES, save, spoil


@pytest.fixture
def evaluation(tmp_path: Path) -> Evaluation:
    """Moved away from its run."""
    texts = save(tmp_path / "run", spoil(3), nats=0.7)
    scores = tmp_path / "scores"
    scores.write_text("".join(f"{number}\n" for number in range(len(REFERENCES))))
    path = store_segment_scores(texts, f"comet={scores}").path
    shutil.move(path.parent, tmp_path / "handed")
    return load_evaluation(tmp_path / "handed" / path.name)


def check(evaluation: Evaluation) -> str:
    return verify([str(evaluation.path)], "test", "")


def rewrite(evaluation: Evaluation, **changes: Any) -> None:
    """Edits the scores as somebody does who takes the hashes out."""
    result = {key: value for key, value in evaluation.result.items() if key != "sha256"}
    evaluation.path.write_text(json.dumps({**result, **changes}))


def test_evaluation_without_its_run_is_verified(evaluation: Evaluation) -> None:
    text = check(evaluation)
    assert f"{evaluation.path}: verified, 4 measures of {len(REFERENCES)} sentences" in text
    assert re.search(r"^comet +23\.5000 ", text, re.MULTILINE)
    assert "test-100.json, test-100.txt, test-100.log_probs.txt, test-" in text
    assert "without hashes" not in text


def test_evaluation_of_an_earlier_version_is_verified_by_its_numbers(
    evaluation: Evaluation,
) -> None:
    measures = evaluation.result["measures"]
    detail = {"detail": "higher_is_better = 23.5"}  # the name that they gave to stored scores
    rewrite(evaluation, measures={**measures, "comet": measures["comet"] | detail})
    assert check(evaluation).endswith("without hashes: only its numbers were verified")


@pytest.mark.parametrize("text", ["hypotheses", "references", "log_probs", "scores.comet"])
def test_edited_text_is_named(evaluation: Evaluation, text: str) -> None:
    name = evaluation.result["texts"][text]
    path = evaluation.path.with_name(name)
    path.write_text(path.read_text("utf-8").replace("3", "4"), "utf-8")
    with pytest.raises(EvaluationError, match=f"json: {name} was edited after the evaluation was"):
        check(evaluation)


def test_edited_scores_are_named(evaluation: Evaluation) -> None:
    path = evaluation.path
    path.write_text(path.read_text().replace('"checkpoint": "100"', '"checkpoint": "200"'))
    with pytest.raises(EvaluationError, match=r"json: test-100\.json was edited"):
        check(evaluation)
    path.with_name(evaluation.result["texts"]["sources"]).unlink()
    with pytest.raises(EvaluationError, match=r"test-.*\.src\.txt, test-100\.json were edited"):
        check(evaluation)


def test_file_in_another_folder_is_not_read(evaluation: Evaluation) -> None:
    rewrite(evaluation, texts={**evaluation.result["texts"], "sources": "../secret.txt"})
    with pytest.raises(EvaluationError, match=r"names '\.\./secret\.txt' as a text; it may name"):
        check(evaluation)


@pytest.mark.parametrize(
    ("measure", "change", "message"),
    [
        ("bleu", {"value": 99.0}, r"bleu\.value is saved as 99\.0, but the texts give \d"),
        ("bleu", {"interval": [1.0, 2.0]}, r"bleu\.interval is saved as \[1\.0, 2\.0\], but"),
        ("bleu", {"detail": "BLEU = 9"}, r"bleu\.detail is saved as \"BLEU = 9\", but"),
        (
            "bleu",
            {"definition": "tok:intl"},
            r"bleu has another definition here: tok:intl -> nrefs",
        ),
        ("comet", {"value": 1.0}, r"comet\.value is saved as 1\.0, but the texts give 23\.5"),
    ],
)
def test_number_that_the_texts_do_not_give_is_refused(
    evaluation: Evaluation, measure: str, change: dict[str, Any], message: str
) -> None:
    measures = evaluation.result["measures"]
    rewrite(evaluation, measures={**measures, measure: measures[measure] | change})
    with pytest.raises(EvaluationError, match=rf"is not verified: .*{message}"):
        check(evaluation)


def test_perplexity_is_verified_by_the_log_probabilities(evaluation: Evaluation) -> None:
    losses = evaluation.read_log_probs()
    value = math.exp(-losses[:, 0].sum() / losses[:, 1].sum())
    measures = dict(evaluation.result["measures"])
    saved = {"value": value, "definition": "exp(nats / sub-words)", "detail": "", "interval": None}
    rewrite(evaluation, measures={**measures, "perplexity": saved})
    assert "perplexity" in check(evaluation)
    rewrite(evaluation, measures={**measures, "perplexity": saved | {"value": value + 0.01}})
    with pytest.raises(EvaluationError, match=r"perplexity\.value is saved as"):
        check(evaluation)
