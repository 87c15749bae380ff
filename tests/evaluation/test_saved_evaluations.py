"""Evaluations come back from their files as they were, or with what is wrong with them."""

import dataclasses
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import grimp
import pytest

from t2t.api.compare_runs import verify
from t2t.evaluation.passport import Passport, read_passport, write_passport
from t2t.evaluation.saved_evaluations import (
    Evaluation,
    EvaluationError,
    find_evaluation,
    list_evaluations,
    load_evaluation,
)
from t2t.evaluation.segment_scores import store_segment_scores
from t2t.training.provenance import list_code
from tests.evaluation.saved_evaluations import REFERENCES, SOURCES, save, spoil

# What ends a line for some readers, but no sentence here.
ODD = ["one\u2028two", "three\x85four\x0c", "five\rsix", "", " "]


def test_texts_return_line_by_line_wherever_the_run_is_copied(tmp_path: Path) -> None:
    save(tmp_path / "run", ODD, sources=ODD[::-1], references=ODD)
    copy = Path(shutil.copytree(tmp_path / "run", tmp_path / "elsewhere"))
    shutil.rmtree(tmp_path / "run")
    [evaluation] = list_evaluations(copy)
    assert evaluation.read_lines("hypotheses") == ODD
    assert evaluation.read_lines("sources") == ODD[::-1]
    assert evaluation.read_lines("references") == ODD


def test_evaluations_of_one_test_set_share_its_texts(tmp_path: Path) -> None:
    for step in ("100", "200"):
        save(tmp_path, spoil(3), name=f"test-{step}")
    save(tmp_path, spoil(3)[:5], name="five", sources=SOURCES[:5], references=REFERENCES[:5])
    names = sorted(path.name for path in (tmp_path / "evaluations").iterdir())
    assert len([name for name in names if name.endswith(".ref.txt")]) == 2
    assert len(names) == 3 * 2 + 2 * 2
    assert [len(each.read_lines("references")) for each in list_evaluations(tmp_path)] == [
        5,
        48,
        48,
    ]


def test_newest_of_the_split_is_found_or_the_one_that_is_named(tmp_path: Path) -> None:
    save(tmp_path, spoil(3), name="new", date="2026-03-01T00:00:00Z")
    save(tmp_path, spoil(3), name="old", date="2026-02-01T00:00:00Z")
    save(tmp_path, spoil(3), name="other", date="2026-04-01T00:00:00Z", split="validation")
    assert find_evaluation(tmp_path, "test").name == "new"
    assert find_evaluation(tmp_path, "test", "old").name == "old"
    assert find_evaluation(tmp_path, "test", "old.json").name == "old"
    path = tmp_path / "evaluations" / "old.json"
    assert find_evaluation(path, "test", checkpoint="100").path == path
    with pytest.raises(
        EvaluationError, match="is of checkpoint 100 of a run, not of --checkpoint=best; "
    ):
        find_evaluation(path, "test", checkpoint="best")


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"of test; create one: python -m"):
        find_evaluation(tmp_path, "test")
    with pytest.raises(EvaluationError, match=r"none\.json does not exist"):
        find_evaluation(tmp_path, "test", "none")
    evaluation = save(tmp_path, spoil(3))
    texts = evaluation.result["texts"]
    (evaluation.path.with_name(texts["hypotheses"])).write_text("one line\n")
    with pytest.raises(EvaluationError, match=r"has 1 lines, but test-100\.json scored 48"):
        evaluation.read_lines("hypotheses")
    (evaluation.path.with_name(texts["references"])).unlink()
    with pytest.raises(EvaluationError, match=r"the references of test-100\.json, cannot be read"):
        evaluation.read_lines("references")


BLEU = {"value": 23.5, "definition": "13a"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"measures": ', "cannot be read: Expecting value"),
        (b"\x80\x04", "cannot be read: 'utf-8' codec"),
        (b"[" * 100_000, "cannot be read: "),
        ([1, 2], r"was not written by t2t\.evaluate: it holds no JSON object"),
        ({"measures": None}, "or edited: measures is None"),
        ({"measures": {"bleu": [1]}}, r"measures\.bleu is \[1\]"),
        ({"measures": {"bleu": BLEU | {"value": "23.5"}}}, r"measures\.bleu\.value is '23\.5'"),
        ({"measures": {"bleu": BLEU | {"value": 10**400}}}, r"measures\.bleu\.value is 10*$"),
        ({"measures": {"bleu": {"value": 1}}}, r"no measures\.bleu\.definition"),
        ({"measures": {"bleu": BLEU | {"interval": [1]}}}, r"bleu\.interval is \[1\]"),
        ({"texts": {"hypotheses": 7}}, r"texts\.hypotheses is 7"),
        ({"texts": {"scores.bleu": "a"}}, r"no measures\.bleu\.higher_is_better"),
        ({"num_sentences": float("nan")}, "num_sentences is nan"),
        ({"alpha": None}, "alpha is None"),
        ({"passport": {"origin": 3}}, r"passport\.origin is 3"),
        ({"passport": {"data": {"split": "test"}}}, r"no passport\.tgt_language"),
        ({"date": 7}, "date is 7"),
    ],
)
def test_foreign_or_damaged_scores_are_refused_with_the_field(
    tmp_path: Path, content: Any, message: str
) -> None:
    saved = save(tmp_path, spoil(3))
    if isinstance(content, dict):
        content = {**saved.result, **content}
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    saved.path.write_bytes(raw)
    with pytest.raises(EvaluationError, match=rf"test-100\.json .*{message}"):
        load_evaluation(saved.path)


def test_texts_that_are_missing_or_no_files_are_refused(tmp_path: Path) -> None:
    saved = save(tmp_path, spoil(3))
    texts = saved.result["texts"]
    for name in ("references", "sources", "hypotheses"):
        rest = {key: file for key, file in texts.items() if key != name}
        for own in (rest, {**rest, name: ".."}, {**rest, name: "a\0b"}, {**rest, name: "a" * 300}):
            changed = {key: each for key, each in saved.result.items() if key != "sha256"}
            saved.path.write_text(json.dumps({**changed, "texts": own}))
            with pytest.raises(EvaluationError, match=f"names no {name} am|{name} of .* cannot be"):
                verify([str(saved.path)], "test", "")
    saved.path.with_name("documents").write_text("1000000000000\n" * len(REFERENCES))
    saved.result["texts"]["documents"] = "documents"
    with pytest.raises(EvaluationError, match=r"documents is damaged \(numbers of documents\)"):
        saved.read_test_set()


def test_other_files_in_the_folder_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evaluation = save(tmp_path, spoil(3))
    for name, text in (("notes.json", "[1, 2]"), ("half.json", '{"measures": ')):
        evaluation.path.with_name(name).write_text(text)
    assert [each.path for each in list_evaluations(tmp_path)] == [evaluation.path]
    assert find_evaluation(tmp_path, "test").path == evaluation.path
    assert "notes.json was not written by t2t.evaluate" in caplog.text
    assert "half.json cannot be read" in caplog.text


@pytest.mark.parametrize("module", ["evaluation.evaluator", "evaluation.predictions"])
def test_all_code_that_a_score_depends_on_is_part_of_its_key(module: str) -> None:
    """As the graph of imports that the layers are checked by has it."""
    names = grimp.build_graph("t2t").find_upstream_modules(f"t2t.{module}")
    files = {f"{name.replace('.', '/')}.py" for name in (*names, f"t2t.{module}")}
    found = {*list_code(f"t2t.{module}")}
    assert {file for file in found if not file.endswith("/__init__.py")} == files
    assert {"t2t/training/averages.py", "t2t/training/checkpoint.py"} < found


def test_damaged_log_probabilities_are_named(tmp_path: Path) -> None:
    evaluation = save(tmp_path, spoil(3))
    path = evaluation.path.with_suffix(".log_probs.txt")
    evaluation.result["texts"]["log_probs"] = path.name
    for damaged in ("-1.5\n", "-1.5 x\n", "-1.5 3 4\n"):
        path.write_text("-2.5 4\n" * 47 + damaged)
        with pytest.raises(EvaluationError, match=r"log_probs\.txt is damaged"):
            evaluation.read_log_probs()


DIGEST = "c024ee27" * 8
BASE = Passport(
    origin={"run": "base", "checkpoint": "best-300", "trained": ["2026"], "parameters": DIGEST},
    data={"split": "test", "objective": "translation", "tgt_language": "de"},
    config={"model.num_heads": 4},
    decoding={"beam_size": 4, "alpha": 0.6, "mbr": "none", "longest_piece": 64},
    backend={"name": "jax", "devices": ["cpu"]},
    code={"t2t": DIGEST, "plugins": "none"},
    versions={"jax": "0.11.2"},
    texts={"sources": DIGEST, "references": DIGEST},
    measures={"bleu": "tok:13a"},
)
OUTPUT = dataclasses.replace(
    BASE, origin={"file": "out.de", "sha256": DIGEST}, config={}, decoding={}, backend={}
)


@pytest.mark.parametrize(
    ("section", "facts", "differences"),
    [
        ("origin", {"checkpoint": "400"}, {"checkpoint": "best-300 -> 400"}),
        ("config", {"model.num_heads": 1, "seed": 3},
         {"model.num_heads": "4 -> 1", "seed": "0 -> 3"}),
        ("config", {"plugin.own.mix": 0.5}, {"plugin.own.mix": "default -> 0.5"}),
        ("decoding", {"utility": "chrF2"}, {"decoding.utility": "none -> chrF2"}),
        ("backend", {"devices": ["cpu", "cpu"]}, {"backend.devices": "['cpu'] -> ['cpu', 'cpu']"}),
        ("code", {"plugins": "8a" * 32}, {"code.plugins": "none -> 8a8a8a8a"}),
        ("texts", {"documents": DIGEST}, {"documents": "none -> c024ee27"}),
        ("measures", {"bleu": "tok:zh"}, {"measures.bleu": "tok:13a -> tok:zh"}),
    ],
)  # fmt: skip
def test_difference_is_named_with_both_values(
    section: str, facts: dict[str, Any], differences: dict[str, str]
) -> None:
    other = dataclasses.replace(BASE, **{section: {**getattr(BASE, section), **facts}})
    assert BASE.diff(other) == differences
    assert BASE.diff(other, section, "split") == differences
    assert BASE.diff(other, *differences) == differences
    assert not BASE.diff(other, "split")
    assert not other.diff(other)


def test_text_of_another_program_differs_from_a_run_in_its_origin_alone() -> None:
    assert BASE.diff(OUTPUT).keys() == {*BASE.origin, *OUTPUT.origin}
    assert BASE.describe_origin() == "checkpoint best-300 of base"
    assert OUTPUT.describe_origin() == "out.de by another program"


@pytest.mark.parametrize("passport", [BASE, OUTPUT])
def test_passport_returns_from_the_evaluation_that_holds_it(passport: Passport) -> None:
    measures = {name: {"definition": each} for name, each in passport.measures.items()}
    saved = {"passport": write_passport(passport), "measures": measures, "sha256": passport.texts}
    assert read_passport(json.loads(json.dumps(saved))) == passport


def test_evaluation_of_an_earlier_version_has_the_same_passport() -> None:
    """It had the facts at its top, and those on which reuse depended a second time in `key`."""
    facts = {"workdir": "base", "checkpoint": "best-300", "parameters": DIGEST}
    earlier = {
        **facts, "split": "test", "tgt_language": "de", "beam_size": 4, "alpha": 0.6,
        "longest_piece": 64,
        "config": {"model.num_heads": 4, "data.src_language": "en", "data.tgt_language": "de",
                   "decoding.beam_size": 4},
        "backend": {"name": "jax"}, "versions": {"jax": "0.11.2"},
        "key": {"code": DIGEST, "plugins": "none", "devices": ["cpu"], "trained": ["2026"]},
        "measures": {"bleu": {"definition": "tok:13a"}},
        "sha256": {**BASE.texts, "hypotheses": DIGEST},
    }  # fmt: skip
    languages = {"data.src_language": "en", "data.tgt_language": "de"}
    now = dataclasses.replace(BASE, config={**BASE.config, **languages})
    found = read_passport(earlier)
    assert found.diff(now, "config", "backend", "code", "versions", "texts", "measures") == {}
    assert found.diff(now, "origin", "split", "decoding.beam_size", "decoding.longest_piece") == {}
    assert found.decoding["strategy"] == "beam", "the default, which it did not record"


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
