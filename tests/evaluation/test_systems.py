"""What does not compare is refused, with the reason and the remedy."""

import json
from pathlib import Path
from typing import Any

import pytest

from t2t.evaluation.saved_evaluations import Evaluation, EvaluationError
from t2t.evaluation.systems import (
    System,
    check_alike,
    check_comparable,
    list_changes,
    list_circumstances,
    read_statistics,
    read_system,
)
from tests.evaluation.saved_evaluations import REFERENCES, SOURCES, save, spoil


def check(*runs: Path, measure: str = "bleu") -> None:
    systems = [read_system(str(run), "test", "") for run in runs]
    chosen = systems[0].evaluations[0].open_measure(measure)
    read_statistics(systems, chosen, check_comparable(systems))


def rewrite(evaluation: Evaluation, measure: str, **changes: Any) -> None:
    result = dict(evaluation.result)
    result["measures"][measure] |= changes
    evaluation.path.write_text(json.dumps(result))


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return save(tmp_path / "first", spoil(3)).path.parents[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sources": SOURCES[:9], "references": REFERENCES[:9]},
            r"\(test, 48 sentences\) and .* 9 sentences\) have different references: ",
        ),
        (
            {"references": spoil(7)},
            r"have different references: .*; evaluate both on one test set, with --split, or with",
        ),
        ({"sources": spoil(5)}, "have different sources: .*; evaluate both on one test set"),
        ({"backend": {"name": "ctranslate2"}}, r"jax -> ctranslate2; .* with one --backend"),
    ],
)
def test_other_test_set_or_backend_is_refused(
    first: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    count = len(changes.get("references", REFERENCES))
    save(tmp_path / "second", spoil(4)[:count], **changes)
    with pytest.raises(EvaluationError, match=message):
        check(first, tmp_path / "second")


def test_score_of_another_definition_is_refused(first: Path, tmp_path: Path) -> None:
    second = save(tmp_path / "second", spoil(4))
    rewrite(second, "bleu", definition="nrefs:1|case:mixed|eff:no|tok:intl|smooth:exp|version:1.5")
    with pytest.raises(EvaluationError, match=r"tok:intl.*, not .*tok:13a.* evaluate that run aga"):
        check(first, tmp_path / "second")


def test_score_that_was_not_measured_is_computed_if_the_texts_belong_together(
    first: Path, tmp_path: Path
) -> None:
    second = save(tmp_path / "second", spoil(4), split="news")  # another name of the test set
    assert "ter" not in second.result["measures"]
    check(first, second.path, measure="ter")
    rewrite(second, "bleu", value=99.0)
    with pytest.raises(EvaluationError, match=r"says bleu 99\.0000, but its hypotheses give"):
        check(first, second.path, measure="ter")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {}}, "the seeds are 0, 0; runs joined by commas need different seeds"),
        ({"checkpoint": "ema-100"}, "different checkpoints, 100 and ema-100; name"),
        ({"checkpoint": "90"}, r"100 and 90; .* other steps, .*=checkpoint$"),
        (
            {"decoding": {"utility": "MetricX-23"}},
            r"different searches, decoding\.utility none -> MetricX-23; ",
        ),
        (
            {"backend": {"name": "ctranslate2", "compute_type": "int8"}},
            r"different searches, backend\.name jax -> ct.*int8",
        ),
    ],
)
def test_seeds_of_a_system_differ_in_the_seed_alone(
    first: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    save(tmp_path / "second", spoil(4), **{"config": {"seed": 1}, **changes})
    with pytest.raises(EvaluationError, match=message):
        read_system(f"{first},{tmp_path}/second", "test", "")


def test_seeds_may_differ_where_it_is_said(first: Path, tmp_path: Path) -> None:
    save(tmp_path / "early", spoil(4), config={"seed": 1}, checkpoint="90")
    system = read_system(f"{first},{tmp_path}/early", "test", "", ["checkpoint"])
    assert len(system.evaluations) == 2


def test_newest_evaluations_of_other_searches_are_refused_unless_they_are_named(
    first: Path, tmp_path: Path
) -> None:
    greedy = save(tmp_path / "greedy", spoil(4), beam_size=1)
    save(tmp_path / "longer", spoil(4), checkpoint="200")  # is no other search

    def read(*places: Path) -> list[System]:
        return [read_system(str(place), "test", "") for place in places]

    with pytest.raises(
        EvaluationError, match=r"decoding\.beam_size: 4 and 1\. .* --checkpoint=best or"
    ):
        check_alike(read(first, tmp_path / "greedy"))
    check_alike(read(first / "evaluations" / "test-100.json", greedy.path))
    check_alike(read(first, tmp_path / "longer"))


def test_whatever_differs_in_any_seed_is_named_with_the_values_of_all(
    first: Path, tmp_path: Path
) -> None:
    """Also if it differs in both systems alike, or between the seeds of one alone."""
    systems = {}
    for name in ("one", "two"):
        places = [tmp_path / f"{name}{seed}" for seed in range(3)]
        for seed, place in enumerate(places):
            facts: dict[str, Any] = {
                "code": {"plugins": "b" if seed == 1 else "c"},
                "versions": {"jax": "0.11.2" if name == "one" or seed != 1 else "0.0.1"},
                "decoding": {"batch_size": 8 if seed == 2 and name == "two" else 64},
            }
            config = {"seed": seed, "model.num_heads": {"one": 8, "two": 1}[name]}
            save(place, spoil(4), config=config, **facts)
        systems[name] = read_system(",".join(map(str, places)), "", "")
    assert list_circumstances([*systems.values()]) == {
        "decoding.batch_size": ["64", "64, 8"],
        "code.plugins": ["b, c", "b, c"],
        "versions.jax": ["0.11.2", "0.0.1, 0.11.2"],
    }
    assert list_changes(systems["one"], systems["two"]) == {"model.num_heads": "8 -> 1"}
    assert not list_circumstances([read_system(str(first), "", "")])


@pytest.mark.parametrize(("field", "value"), [("tokenizer.lowercase", True),
                                              ("tokenizer.kind", "symbols")])  # fmt: skip
def test_seed_of_another_case_or_kind_counts_for_its_system(
    first: Path, tmp_path: Path, field: str, value: object
) -> None:
    save(tmp_path / "second", spoil(4), config={"seed": 1, field: value})
    system = read_system(f"{first},{tmp_path}/second", "", "", [field])
    assert value in (system.is_lowercase, system.tokenizer_kind)
