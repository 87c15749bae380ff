"""Translations by another program are scored and judged like those of a run."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from t2t.api import notebook
from t2t.api.compare_runs import compare, verify
from t2t.config.fields import ConfigError
from t2t.data.corpus import DataError
from t2t.evaluation.saved_evaluations import Evaluation, EvaluationError
from t2t.evaluation.segment_scores import store_segment_scores
from t2t.evaluation.significance import judge
from t2t.evaluation.text_measures import make_measure
from tests import programs
from tests.evaluation.saved_evaluations import REFERENCES, SOURCES, drop_words, save, write


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, Any]:
    """A test set, for requests."""
    src, ref = write(tmp_path / "news.en", *SOURCES), write(tmp_path / "news.de", *REFERENCES)
    return {"src": src, "ref": (ref,), "tgt_language": "de"}


def score(folder: Path, name: str, lines: list[str], texts: Mapping[str, Any]) -> Evaluation:
    hypotheses = write(folder / name, *lines)
    output = str(folder / f"{name}.json")
    return notebook.evaluate_output(hypotheses, output, **texts)


def test_bootstrap_is_that_of_sacrebleu(tmp_path: Path, texts: dict[str, Any]) -> None:
    """sacreBLEU's p counts differences that exceed their mean by the one seen: one side alone."""
    outputs = {name: drop_words(share, n) for n, (name, share) in enumerate(SHARES.items())}
    found = {name: score(tmp_path, name, lines, texts) for name, lines in outputs.items()}
    bleu, test_set = make_measure("bleu", "de"), found["first"].read_test_set()
    counts = {name: each.read_statistics(bleu, test_set)[None] for name, each in found.items()}
    judgement = judge(counts, bleu, test_set)
    paired = PairedTest([*outputs.items()], {"BLEU": BLEU(references=[REFERENCES])}, None, "bs")
    expected: list[Any] = [*paired()[1]["BLEU"]]  # Result, which the types of sacreBLEU do not say
    for name, result in zip(outputs, expected, strict=True):
        assert found[name].value("bleu") == pytest.approx(result.score)
    first = judgement.scores["first"]
    for name, result in zip([*outputs][1:], expected[1:], strict=True):
        comparison = judgement.comparisons[name]
        seen = result.score - expected[0].score
        assert comparison.difference == pytest.approx(seen)
        differences = np.abs(judgement.scores[name].resampled - first.resampled)
        share = np.mean(differences - differences.mean() >= abs(seen))
        error = np.sqrt(2 * share * (1 - share) / len(differences))  # of two samples of 1000
        assert result.p_value == pytest.approx(share, abs=4 * error + 0.002)
        if result.p_value < 0.1:  # where nearly all differences have one sign
            assert comparison.p_value == pytest.approx(2 * result.p_value, abs=0.04)
    assert judgement.comparisons["far"].distinguishable
    assert not judgement.comparisons["near"].distinguishable


SHARES = {"first": 0.10, "near": 0.11, "worse": 0.14, "far": 0.2}


def test_outputs_and_runs_are_compared_over_documents_and_by_learned_scores(
    tmp_path: Path, texts: dict[str, Any]
) -> None:
    documents = write(tmp_path / "documents", *(number // 2 for number in range(48)))
    by_document = texts | {"segments": documents}
    for name, share in (("one", 0.1), ("two", 0.3), ("three", 0.1)):
        evaluation = score(tmp_path, name, drop_words(share, 1), by_document)
        scores = write(tmp_path / f"{name}.scores", *(share + n % 7 for n in range(48)))
        store_segment_scores(evaluation, f"comet={scores}")
    places = [str(tmp_path / f"{name}.json") for name in ("one", "two", "three")]
    assert json.loads(Path(places[0]).read_text())["passport"]["origin"]["file"] == "one"
    assert "verified, 8 measures of 48 sentences" in verify(places[:1], "", "")
    text = " ".join(compare(places, "comet", "", "", None).split())
    assert re.search(r" - news-\w+, 48 sentences in 24 documents; comet: ", text)
    assert "not alike, origin: one by another program (" in text
    assert "These 2 comparisons are judged together (Holm's correction)" in text
    assert re.search(r"log-probability: another program translated .*one.json and ", text)
    assert "model." not in text, "no config differs"
    run = save(tmp_path / "run", drop_words(0.3, 2)).path
    with pytest.raises(EvaluationError, match=r"different documents: .* with one --segments"):
        compare([str(run), places[0]], None, "", "", None)
    alone = score(tmp_path, "alone", drop_words(0.1, 1), texts).path
    text = compare([str(tmp_path / "run"), str(alone)], None, "test", "", None)
    assert "not alike, origin: checkpoint 100 of a run (run); " in text
    assert text.startswith("alone.json is better than run: ")
    with pytest.raises(EvaluationError, match="no seeds of one system; separate"):
        compare([f"{run},{alone}"], None, "", "", None)


def test_program_and_notebook_score_an_output(
    tmp_path: Path, texts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again after a kill between the translations and the scores."""
    monkeypatch.chdir(tmp_path)
    hypotheses = write(tmp_path / "out", *drop_words(0.1, 1))
    shutil.copy(hypotheses, "a.txt")
    found = notebook.evaluate_output(hypotheses, "a.json", **texts)
    command = [f"--hypotheses={hypotheses}", f"--src={texts['src']}", f"--ref={texts['ref'][0]}"]
    done = programs.run(
        "t2t.evaluate_output", *command, "--tgt_language=de", f"--output={tmp_path}/b.json"
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^news-\w+, out by another program: 48 sentences\nbleu +\d", done.stdout)
    saved = json.loads((tmp_path / "b.json").read_text())
    assert saved["measures"] == json.loads(found.path.read_text())["measures"]
    assert saved["passport"]["origin"] == found.passport.origin


@pytest.mark.parametrize(
    ("lines", "changes", "message"),
    [
        (0, {}, "out is empty; it needs at least one line"),
        (47, {}, "hypotheses=.* has 47 lines, but the test set has 48 sentences; "),
        (48, {"output": ""}, "output is empty; name a file"),
        (48, {"src": "", "ref": ()}, "hypotheses=.* needs the texts that were translated: src and"),
        (48, {"measures": ("bleu", "perplexity")}, "measures=bleu,perplexity: .* has no perplex"),
        (48, {"measures": ()}, "measures=: .*; name measures of text, such as bleu"),
        (48, {"tgt_language": "german"}, "tgt_language=german is not a language code"),
        (1, {"tgt_language": "", "src": "zh", "ref": ("zh",)}, "no spaces .* by tgt_language"),
        (1, {"tgt_language": "", "src": "zh", "ref": ("en", "zh")}, "ref=zh has no spaces .* by"),
    ],
)
def test_output_that_cannot_be_scored_is_refused(
    tmp_path: Path,
    texts: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    lines: int,
    changes: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "zh", "狗在爬山。")
    write(tmp_path / "en", "A dog.")
    given = {"hypotheses": write(tmp_path / "out", *["Hund"] * lines), "output": "out.json"}
    with pytest.raises((ConfigError, DataError), match=message):
        notebook.evaluate_output(**given | texts | changes)
    assert not [*tmp_path.glob("*.json")]
