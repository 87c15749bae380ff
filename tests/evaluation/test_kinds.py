"""Scores and verdicts for each kind of sentence, and their unweighted mean."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t2t.api import notebook
from t2t.api.compare_runs import compare
from t2t.config.fields import ConfigError
from t2t.data.corpus import DataError
from t2t.evaluation import measure as measures
from t2t.evaluation.kinds import MEAN, judge_kinds, list_kinds
from t2t.evaluation.measure import make_likelihood
from t2t.evaluation.saved_evaluations import EvaluationError
from t2t.evaluation.text_measures import make_measure
from tests.evaluation.saved_evaluations import REFERENCES, SOURCES, drop_words, write

KINDS = ["long" if number % 3 else "short" for number in range(48)]


@pytest.mark.parametrize("measure", ["bleu", "exact_match"])
def test_score_of_a_kind_is_that_of_its_sentences_alone(measure: str) -> None:
    hypotheses = [*drop_words(0.01, 1)[:30], *REFERENCES[30:]]
    judged = make_measure(measure, "de")
    test_set = measures.TestSet(SOURCES, [REFERENCES], kinds=KINDS)
    found = judge_kinds({"a": judged.collect(hypotheses, test_set)[None]}, judged, test_set)
    assert found
    expected = {}
    for kind in ("long", "short"):
        own = [number for number, name in enumerate(KINDS) if name == kind]
        alone = measures.TestSet([SOURCES[n] for n in own], [[REFERENCES[n] for n in own]])
        expected[kind] = judged.score([hypotheses[n] for n in own], alone).value
        assert found.by_kind[kind].scores["a"].value == pytest.approx(expected[kind])
        assert found.by_kind[kind].num_units == len(own)
    assert found.means["a"] == pytest.approx(np.mean([*expected.values()]))
    assert found.mean is None  # 16 sentences are too few for resamples
    assert any("No interval of fewer than 30 sentences: short" in x for x in found.describe())


def test_mean_of_kinds_counts_each_kind_once() -> None:
    """With 30 sentences of one kind and 300 of another one, whose values are 0 and 1."""
    kinds = ["rare"] * 30 + ["usual"] * 300
    values = np.array([0.0] * 30 + [1.0] * 300) + np.random.default_rng(0).normal(size=330) / 10
    statistics = np.stack([values, np.ones(330)], axis=-1)[None]
    test_set = measures.TestSet([""] * 330, [[""] * 330], kinds=kinds)
    found = judge_kinds({"a": statistics}, make_likelihood("token"), test_set)
    assert found
    assert found.mean
    mean = (values[:30].mean() + values[30:].mean()) / 2
    assert found.mean.scores["a"].value == pytest.approx(mean)
    low, high = found.mean.scores["a"].over_sentences or (0, 0)
    error = np.sqrt(values[:30].var() / 30 + values[30:].var() / 300) / 2
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_verdicts_on_kinds_of_equal_systems_are_rarely_wrong() -> None:
    """The probability of any false verdict among all kinds is at most 5%."""
    random = np.random.default_rng(0)
    kinds = [f"{number}" for number in range(5) for _ in range(40)]
    test_set = measures.TestSet([""] * 200, [[""] * 200], kinds=kinds)
    wrong, single = 0, 0
    for _ in range(200):
        values = random.normal(size=(2, 3, 200)) + random.normal(size=200)
        pair = {
            name: np.stack([own, np.ones_like(own)], axis=-1)
            for name, own in zip("ab", values, strict=True)
        }
        found = judge_kinds(pair, make_likelihood("token"), test_set)
        assert found
        comparisons = [each.comparisons["b"] for each in found.by_kind.values()]
        wrong += any(each.distinguishable for each in comparisons)
        single += any(each.p_value < 0.05 for each in comparisons)
    assert wrong <= 20  # of 200; 5% would be 10, and more than 20 have a probability of 0.1%
    assert single > 25  # without the correction


def test_kinds_follow_the_part_of_the_test_set_that_counts() -> None:
    test_set = measures.TestSet(["a", "b", "c"], [["", "", ""]], kinds=["x", "y", "x"])
    assert {kind: [*part] for kind, part in list_kinds(test_set).items()} == {"x": [0, 2], "y": [1]}
    part = test_set._replace(part=np.array([1, 2]))
    assert {kind: [*part] for kind, part in list_kinds(part).items()} == {"x": [2], "y": [1]}
    assert list_kinds(measures.TestSet(["a"], [["b"]])) == {}


def test_outputs_of_another_program_are_seeds_and_are_compared_by_kind(tmp_path: Path) -> None:
    """As they are published: source, target and prediction, in any order of the lines."""
    words = [f"{name} {letter}" for name in ("copy", "swap") for letter in map(str, range(40))]
    places = []
    for system, seed in itertools.product(("one", "two"), (1, 2, 3)):
        right = {"one": 30, "two": 12 if seed < 3 else 14}[system]
        rows = [
            (source, source.upper(), source.upper() if n % 40 < right + seed else "NO")
            for n, source in enumerate(words)
        ]
        lines = ["\t".join(row) for row in (rows if seed % 2 else rows[::-1])]
        table = write(tmp_path / f"{system}-{seed}.tsv", "source\ttarget\tprediction", *lines)
        output = tmp_path / f"{system}-{seed}.json"
        found = notebook.evaluate_output(
            "", output, table=table, system=system, seed=seed, kinds="first_word",
            measures=("exact_match",),
        )  # fmt: skip
        assert found.value("exact_match") == pytest.approx(100 * (right + seed) / 40)
        assert found.result["kinds"]["copy"]["measures"]["exact_match"]["value"] == pytest.approx(
            100 * (right + seed) / 40
        )
        assert found.result["kinds"][MEAN]["num_sentences"] == 80
        places.append(str(output))
    one, two = ",".join(places[:3]), ",".join(places[3:])
    shown = compare([one, two], None, "", "", None)
    assert re.search(r"two is worse than one: -4\d.* exact_match", shown)
    assert re.search(r"^copy +40  80.00 \[.*\] +3\d.* worse$", shown, re.MULTILINE)
    assert re.search(rf"^{MEAN} +80.00 \[.*\] +3\d.* worse$", shown, re.MULTILINE)
    assert "corrected for 2 comparisons (Holm)" in shown
    for operand, message in (
        (f"{places[0]},{places[3]}", "one-1.tsv by one and two-1.tsv by two are no seeds of one"),
        (f"{places[0]},{places[0]}", "the seeds are 1, 1; "),
    ):
        with pytest.raises((EvaluationError, ConfigError), match=message):
            compare([operand, two], None, "", "", None)
    other = notebook.evaluate_output(
        "", tmp_path / "other.json", table=tmp_path / "one-1.tsv", measures=("exact_match",)
    )
    with pytest.raises(EvaluationError, match=r"evaluate both with one --kinds|no seeds"):
        compare([places[0], str(other.path)], None, "", "", None)


@pytest.mark.parametrize(
    ("lines", "changes", "message"),
    [
        (["source\ttarget\tprediction", "a\tb"], {}, "line 2 has 2 columns, but line 1 names 3"),
        (["source\ttarget", "a\tb"], {}, "line 1 names no column 'prediction', but source, target"),
        (["source\ttarget\tprediction"], {}, "has no line below the names of its columns"),
        (["a\tb\tc", "d\te\tf"], {"columns": ("a", "b")}, "columns=a,b has to name three"),
        (["a"], {"segments": "documents"}, "segments is for texts whose lines have an order"),
        (["a"], {"src": "x", "ref": ("y",)}, "table=.* has its own texts; leave out"),
        (["a"], {"hypotheses": "out"}, "by hypotheses, or by table, and not by both"),
        (["source\ttarget\tprediction", "a\tb\tb"], {"kinds": "kinds"}, "kinds has 2 lines, but"),
        (
            ["source\ttarget\tprediction", "a\tb\tb", "a\tb\tb"],
            {"kinds": "kinds"},
            "kinds, line 2 is blank; write a kind",
        ),
    ],
)
def test_table_that_cannot_be_scored_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    lines: list[str], changes: dict[str, Any], message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "kinds", "x", "")
    given = {"hypotheses": "", "output": "out.json", "table": write(tmp_path / "table", *lines)}
    with pytest.raises((ConfigError, DataError), match=message):
        notebook.evaluate_output(**(given | changes))
    assert not [*tmp_path.glob("*.json")]


def test_kinds_of_a_file_stand_in_the_evaluation(tmp_path: Path) -> None:
    src, ref = write(tmp_path / "a", *SOURCES), write(tmp_path / "b", *REFERENCES)
    kinds = write(tmp_path / "kinds", *KINDS)
    found = notebook.evaluate_output(
        write(tmp_path / "out", *drop_words(0.2, 0)), tmp_path / "out.json",
        src=src, ref=(ref,), tgt_language="de", kinds=kinds,
    )  # fmt: skip
    saved = json.loads(found.path.read_text())
    assert {*saved["kinds"]} == {"long", "short", MEAN}
    assert saved["kinds"]["short"]["num_sentences"] == 16
    assert saved["kinds"]["short"]["measures"]["bleu"]["interval"] is None
    assert found.read_test_set().kinds == KINDS
