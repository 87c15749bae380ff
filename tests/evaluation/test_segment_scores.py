"""Scores of another program: stored, compared, and refused if a sentence has none."""

import json
import re
from pathlib import Path

import pytest

from t2t.add_scores import AddScoresRequest
from t2t.api.compare_runs import compare, verify
from t2t.config.fields import ConfigError
from t2t.config.requests import make_request
from t2t.evaluation.saved_evaluations import EvaluationError, load_evaluation
from t2t.evaluation.segment_scores import (
    NO_DEFINITION,
    add_segment_scores,
    read_segment_scores,
    store_segment_scores,
)
from tests.evaluation.saved_evaluations import REFERENCES, save, spoil, write

COUNT = len(REFERENCES)


def test_scores_from_outside_get_intervals_and_verdicts_like_any_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    facts = {"definition": "errors, 1.2", "higher_is_better": False}
    values = {
        name: [shift + number % 7 / 10 + number % 3 * shift / 10 for number in range(COUNT)]
        for name, shift in (("one", 0.0), ("two", 0.5))
    }
    for name, own in values.items():
        lines = [json.dumps(facts), *(json.dumps({"score": value}) for value in own)]
        scores = write(tmp_path / f"{name}.jsonl", *lines)
        store_segment_scores(save(tmp_path / name, spoil(3)), f"errors={scores}")
    stored = load_evaluation(tmp_path / "two" / "evaluations" / "test-100.json")
    score = stored.result["measures"]["errors"]
    assert score["value"] == pytest.approx(sum(values["two"]) / COUNT)
    assert "verified" in verify([str(stored.path)], "test", "")
    assert score["definition"] == "errors, 1.2"
    assert score["interval"][0] < score["value"] < score["interval"][1]
    assert [float(line) for line in stored.read_lines("scores.errors")] == values["two"]
    text = compare([f"{tmp_path}/one", f"{tmp_path}/two"], "errors", "test", "", None)
    assert text.startswith("two is worse than one: +0.5500 errors [")
    assert f"- test, {COUNT} sentences; errors: errors, 1.2\n" in text
    assert re.search("- two is worse than one: .* errors against", text)
    assert re.search(r"^errors +two +\+0\.55.* o-*\.*\|", text, re.MULTILINE)
    assert "\nLess is better: errors\n" in text

    save(tmp_path / "two", spoil(4))
    assert "100.json: scores.errors were scores of other hypotheses, and are dropped" in caplog.text


def test_plain_numbers_have_no_definition(tmp_path: Path) -> None:
    measure, scores = read_segment_scores("a", write(tmp_path / "s", 1, "0.5", ".25 ", "+1e1"), 4)
    assert (scores, measure.definition) == ([1, 0.5, 0.25, 10], NO_DEFINITION)
    assert measure.higher_is_better


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["1", "2"], "s has 2 scores, but the evaluation 3 sentences; .* sentence 3"),
        (["1", "", "3"], "line 2 of .*s is ''; write one number a line"),
        (["1", "2", "NaN"], "line 3 of .*s has the score nan; each sentence needs a finite number"),
        (["1", '{"score": 1' + 400 * "0" + "}", "3"], "line 2 of .* the score 10*[.]{3}; each"),
        (
            ['{"source": "a", "prediction": 1.5}', "2", "3"],
            "line 1 of .* has no score, but source, prediction; rename the field with the",
        ),
        (["[" * 100_000, "2", "3"], r"line 1 of .* is '\[+\.\.\.; write one number a line"),
        (
            ['{"score": 1, "definition": "a"}', '{"score": 1, "definition": "b"}', "3"],
            "line 2 of .* has definition 'b', but a line before it 'a'",
        ),
        (['{"higher_is_better": "no"}', "1", "2", "3"], "higher_is_better 'no'; write a string"),
    ],
)
def test_unusable_scores_are_refused_with_their_line(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"--segment_scores=comet=.*s: .*{message}"):
        read_segment_scores("comet", write(tmp_path / "s", *lines), num_sentences=3)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("A/b=s", "write a lower-case name and a file"),
        ("chrf=s", "chrf is a measure of t2t; choose another name"),
        (
            "a" * 240 + "=s",
            r"scores\.a{240}\.txt cannot be written: File name too long; .*; shorten",
        ),
    ],
)
def test_unusable_name_is_refused(tmp_path: Path, flag: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        store_segment_scores(save(tmp_path, spoil(3)), flag)


@pytest.mark.parametrize(
    ("split", "name", "checkpoint", "message"),
    [
        ("validation", "test-100", "", "test-100.json is of the split test, not of --split=valid"),
        ("", "test-100", "200", "test-100.json is of .*, not of --checkpoint=200; leave it out"),
        ("", "", "200", "holds no evaluation of test at 200; create one"),
    ],
)
def test_choice_of_an_evaluation_that_is_not_there_is_refused(
    tmp_path: Path, split: str, name: str, checkpoint: str, message: str
) -> None:
    save(tmp_path, spoil(3))
    with pytest.raises((ConfigError, EvaluationError), match=message):
        add_segment_scores(tmp_path, split, name, checkpoint, "", ["comet=scores"])


@pytest.mark.parametrize("places", [["a", "b"], [""]])
def test_scores_are_added_to_one_evaluation(places: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"places=.* must be one run or evaluation"):
        make_request(AddScoresRequest, {"places": places, "segment_scores": "comet=scores"})


def test_scores_that_only_one_system_has_or_defines_otherwise_are_refused(tmp_path: Path) -> None:
    scores = write(tmp_path / "s", *range(COUNT))
    one, two = (save(tmp_path / name, spoil(3)) for name in ("one", "two"))
    places = [str(one.path), str(two.path)]
    store_segment_scores(one, f"comet={scores}")
    text = compare(places, "bleu", "test", "", None)
    assert "\n- comet is left out of the plot: not all evaluations have it\n" in text
    with pytest.raises(EvaluationError, match=r"two/.* has no scores by comet; store them first"):
        compare(places, "comet", "test", "", None)
    with pytest.raises(EvaluationError, match=r"by metricx, .* --measure_model=metricx=RUN"):
        compare(places, "metricx", "test", "", None)
    lines = json.dumps({"definition": "wmt22"}), *range(COUNT)
    store_segment_scores(two, f"comet={write(tmp_path / 't', *lines)}")
    with pytest.raises(EvaluationError, match=r"comet of .*two.* another def.*: wmt22, not"):
        compare(places, "comet", "test", "", None)
    assert "comet is left out of the plot: comet of" in compare(places, "bleu", "test", "", None)
