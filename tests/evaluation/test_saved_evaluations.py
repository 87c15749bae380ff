"""Evaluations come back from their files as they were, or with what is wrong with them."""

import contextlib
import functools
import importlib.metadata
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import grimp
import pytest

from t2t.api.compare_runs import compare, verify
from t2t.evaluation.find_evaluations import find_evaluation, list_evaluations
from t2t.evaluation.measure import Score
from t2t.evaluation.saved_evaluations import (
    Evaluation,
    EvaluationError,
    compute_digests,
    load_evaluation,
)
from t2t.evaluation.segment_scores import store_segment_scores
from t2t.training.provenance import identify_code, list_code
from tests.evaluation.saved_evaluations import REFERENCES, save, spoil

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
    assert evaluation.passport.texts.keys() == {"sources", "references"}


def test_newest_of_the_split_is_found_or_the_one_that_is_named(tmp_path: Path) -> None:
    for name, month, split in (("new", 3, "test"), ("old", 2, "test"), ("other", 4, "validation")):
        save(tmp_path, spoil(3), name=name, date=f"2026-0{month}-01T00:00:00Z", split=split)
    for named, expected in (("", "new"), ("old", "old"), ("old.json", "old")):
        assert find_evaluation(tmp_path, "test", named).name == expected
    path = tmp_path / "evaluations" / "old.json"
    assert find_evaluation(path, "test", checkpoint="100").path == path
    for place, name, checkpoint, message in (
        (path, "", "best", "is of checkpoint 100 of a run, not of --checkpoint=best; "),
        (tmp_path, "none", "", r"none\.json does not exist"),
        (tmp_path / "empty", "", "", "of test; create one: python -m"),
    ):
        with pytest.raises(EvaluationError, match=message):
            find_evaluation(place, "test", name, checkpoint)


def test_evaluation_of_several_tasks_is_chosen_by_the_task(tmp_path: Path) -> None:
    for name, task in (("one", "translate"), ("two", "fill")):
        save(tmp_path, spoil(3), name=name, data={"task": task})
    with pytest.raises(
        EvaluationError, match="of test of the tasks translate, fill; name one with"
    ):
        find_evaluation(tmp_path, "test")
    assert find_evaluation(tmp_path, "test", task="fill").name == "two"
    plain = tmp_path / "plain"  # its one task has no name
    save(plain, spoil(2), name="one", data={"direction": "en-de"})
    shown = compare([str(tmp_path), str(plain)], None, "test", "", None, task="translate")
    assert "evaluation one" in shown
    with pytest.raises(
        EvaluationError, match=r"no evaluation of test of the task go; .* --task=go$"
    ):
        find_evaluation(tmp_path, "test", task="go")
    file = str(tmp_path / "evaluations" / "one.json")
    with pytest.raises(EvaluationError, match=r"of the task translate, not of --task=fill; leave"):
        compare([file], None, "", "", None, task="fill")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("", b'{"measures": ', r"cannot be read \(Expecting value.*\); evaluate again"),
        ("", b"[" * 100_000, "cannot be read "),
        ("", [1, 2], r"was not written by t2t\.evaluate, or edited: it is \[1, 2\], no object"),
        ("date", None, "or edited: date=None is not of type str"),
        ("num_sentences", math.nan, "num_sentences=nan is not of type int"),
        ("num_sentences", 0, "num_sentences=0 must be positive"),
        ("num_documents", 2**60, "num_documents=.* must be below"),
        ("sha256", ..., "sha256 is missing"),
        ("texts/hypotheses", 7, r"texts\.hypotheses=7 is not of type str"),
        ("texts/sources", "../a.txt", r"sources='\.\./a\.txt' must name a file beside it"),
        ("texts/scores.bleu", "a", r"measures\.bleu\.higher_is_better is missing"),
        ("measures", None, "measures is None, no object"),
        ("measures/bleu", 23.5, r"measures\.bleu is 23\.5, no object"),
        ("measures/bleu/value", "23.5", r"measures\.bleu\.value='23\.5' is not of type float"),
        ("measures/bleu/value", True, r"bleu\.value=True is not of type float"),
        ("measures/bleu/value", 10**400, r"bleu\.value=10+\.\.\. is not of type float"),
        ("measures/bleu/definition", ..., r"measures\.bleu\.definition is missing"),
        ("measures/bleu/interval", [1], r"interval=\[1\] is not of type tuple\[float, float\]"),
        ("passport", ..., "passport is missing"),
        ("passport/origin", 3, r"passport\.origin is 3, no object"),
        ("passport/origin", {}, r"passport\.origin\.run is missing"),
        ("passport/origin", {"file": 3}, r"passport\.origin\.file=3 is not of type str"),
        ("passport/data", {"split": "test"}, r"passport\.data\.objective is missing"),
        ("passport/backend", ..., r"passport\.backend is missing"),
        ("passport/decoding", {}, r"passport\.decoding\.beam_size is missing"),
        ("passport/decoding/alpha", "1", r"passport\.decoding\.alpha='1' is not of type float"),
        ("passport/config", 3, r"passport\.config is 3, no object"),
    ],
)
def test_foreign_or_damaged_scores_are_refused_with_the_field(
    tmp_path: Path, path: str, value: Any, message: str
) -> None:
    """`path` leads to the value that is replaced or, by `...`, removed."""
    saved = save(tmp_path, spoil(3))
    content = json.loads(saved.path.read_text())
    *outer, name = path.split("/")
    table = functools.reduce(dict.__getitem__, outer, content)
    table[name] = value
    if value is ...:
        del table[name]
    raw = value if isinstance(value, bytes) else json.dumps(content if path else value).encode()
    saved.path.write_bytes(raw)
    with pytest.raises(EvaluationError, match=rf"test-100\.json .*{message}"):
        load_evaluation(saved.path)


def test_texts_that_are_missing_damaged_or_no_files_are_refused(tmp_path: Path) -> None:
    saved = save(tmp_path, spoil(3), nats=0.7)
    texts = saved.result["texts"]
    for name in ("references", "hypotheses"):
        rest = {key: file for key, file in texts.items() if key != name}
        for own in (rest, {**rest, name: ".."}, {**rest, name: "a\0b"}, {**rest, name: "a" * 300}):
            rewrite(saved, texts=own)
            with pytest.raises(EvaluationError, match=f"names no {name} am|{name} of .* cannot be"):
                check(saved)
    texts["documents"] = "documents"
    for name, content, message in (
        ("hypotheses", "one line\n", r"has 1 lines, but test-100\.json scored 48"),
        ("documents", "1000000000000\n" * 48, r"documents is damaged \(numbers of documents\)"),
        ("log_probs", "-2.5 4\n" * 47 + "-1.5\n", r"log_probs\.txt is damaged"),
        ("log_probs", "-2.5 4\n" * 47 + "-1.5 x\n", r"log_probs\.txt is damaged"),
        ("log_probs", "-2.5 4 3\n" * 48, r"log_probs\.txt is damaged"),
    ):
        saved.path.with_name(texts[name]).write_text(content)
        read = {"documents": saved.read_test_set, "log_probs": saved.read_log_probs}
        with pytest.raises(EvaluationError, match=message):
            read.get(name, lambda: saved.read_lines("hypotheses"))()


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


def test_all_code_that_a_score_depends_on_is_part_of_its_passport() -> None:
    """As the graph of imports that the layers are checked by has it."""
    graph = grimp.build_graph("t2t", include_external_packages=True)
    owners = importlib.metadata.packages_distributions()
    for module in ("t2t.evaluation.evaluator", "t2t.evaluation.predictions"):
        upstream = graph.find_upstream_modules(module)
        names = {module, *(name for name in upstream if name.startswith("t2t."))}
        found = {*list_code(module)}
        assert {file for file in found if not file.endswith("/__init__.py")} == {
            f"{name.replace('.', '/')}.py" for name in names
        }
        assert {"t2t/training/averages.py", "t2t/training/checkpoint.py"} < found
        packages = {package for name in upstream for package in owners.get(name, ())}
        versions = identify_code((), [module])["versions"]
        assert {"python", "jaxlib", *packages} == {name.replace("_", "-") for name in versions}


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
    """Edits the scores as somebody does who computes the hashes anew."""
    result = {**evaluation.result, **changes}
    hashes = compute_digests(evaluation.path, result)
    evaluation.path.write_text(json.dumps({**result, "sha256": hashes}))


def test_evaluation_without_its_run_is_verified(evaluation: Evaluation) -> None:
    text = check(evaluation)
    assert f"{evaluation.path}: verified, 4 measures of {len(REFERENCES)} sentences" in text
    assert re.search(r"^comet +23\.50 ", text, re.MULTILINE)
    rewrite(evaluation)
    assert check(evaluation) == text


def test_every_edited_file_is_named(evaluation: Evaluation) -> None:
    names = {"scores": evaluation.path.name, **evaluation.result["texts"]}
    for text in ("hypotheses", "references", "log_probs", "scores.comet", "scores"):
        path = evaluation.path.with_name(names[text])
        saved = path.read_bytes()
        path.write_bytes(saved.replace(b"3", b"4", 1))
        with pytest.raises(EvaluationError, match=f"json: {path.name} was edited after the evalua"):
            check(evaluation)
        path.write_bytes(saved)
    for text in ("hypotheses", "sources"):
        evaluation.path.with_name(names[text]).unlink()
    with pytest.raises(EvaluationError, match=r"test-100\.txt, test-.*\.src\.txt were edited"):
        check(evaluation)


@pytest.mark.parametrize(
    ("measure", "change", "message"),
    [
        ("bleu", {"value": 99.0}, r"bleu\.value is saved as 99\.0, but the texts give \d"),
        ("bleu", {"interval": [1.0, 2.0]}, r"bleu\.interval is saved as \[1\.0, 2\.0\], but"),
        ("bleu", {"detail": "BLEU = 9"}, r"bleu\.detail is saved as \"BLEU = 9\", but"),
        ("bleu", {"definition": "tok:intl"}, "bleu has another definition here: tok:intl -> nrefs"),
        ("comet", {"value": 1.0}, r"comet\.value is saved as 1\.0, but the texts give 23\.5"),
        ("comet", {"detail": "comet = 9"}, r"comet\.detail is saved as \"comet = 9\", but"),
        ("perplexity", {}, ""),
        ("perplexity", {"value": 2.0}, r"perplexity\.value is saved as"),
    ],
)
def test_number_that_the_texts_do_not_give_is_refused(
    evaluation: Evaluation, measure: str, change: dict[str, Any], message: str
) -> None:
    measures = dict(evaluation.result["measures"])
    losses = evaluation.read_log_probs()
    value = math.exp(-losses[:, 0].sum() / losses[:, 1].sum())
    measures["perplexity"] = vars(Score(value, "exp(nats / sub-words)", ""))
    rewrite(evaluation, measures={**measures, measure: measures[measure] | change})
    with pytest.raises(EvaluationError, match=message) if message else contextlib.nullcontext():
        assert "verified, 5 measures" in check(evaluation)
