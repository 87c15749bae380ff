"""Evaluating a run directory, from its files to the JSON of scores."""

import dataclasses
import functools
import importlib
import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import t2t
from t2t import translate
from t2t.api.compare_runs import verify
from t2t.api.encoder_states import export_states
from t2t.api.evaluate_run import evaluate
from t2t.api.line_translator import LineTranslator, translate_lines
from t2t.api.tune_decoding import tune
from t2t.config import variants
from t2t.config.fields import ConfigError, DataConfig, TokenizerConfig
from t2t.config.measure_rules import list_measures
from t2t.config.measures import MEASURE_FIELD
from t2t.data.corpus import DataError, ListCorpus
from t2t.data.tokenizer import Vocabulary, VocabularyError, train_vocabulary
from t2t.decoding.bulk import SETTINGS, find_inputs
from t2t.decoding.minimum_bayes_risk import choose_by_utility
from t2t.decoding.translator import Translator
from t2t.evaluation.evaluator import Evaluator
from t2t.evaluation.load_models import make_utility
from t2t.evaluation.outputs import evaluate_output
from t2t.evaluation.requests import (
    EvaluationRequest,
    ModelRequest,
    OutputRequest,
    SelectionRequest,
)
from t2t.evaluation.saved_evaluations import Evaluation, load_evaluation
from t2t.evaluation.text_measures import make_measure
from t2t.evaluation.text_scores import choose_measures
from t2t.training.run_directory import RunError, list_steps
from tests import programs
from tests.tiny_run import PAIRS

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture(scope="module")
def evaluation(run: Path) -> Evaluation:
    return evaluate(EvaluationRequest((run,)))


def test_every_sentence_counts_in_its_order(evaluation: Evaluation) -> None:
    saved = load_evaluation(evaluation.path)
    assert saved.read_lines("sources") == [src for src, _ in PAIRS]
    assert saved.read_lines("references") == [tgt for _, tgt in PAIRS]
    assert [bool(text) for text in saved.read_lines("hypotheses")] == [True] * 3 + [False, True]
    assert saved.result["num_sentences"] == len(PAIRS)
    decoding = evaluation.passport.decoding
    assert (saved.result["num_cut"], decoding["splits_sentences"]) == (0, True)
    assert decoding["longest_piece"] == DataConfig().max_length


def test_result_says_what_was_measured_and_how(run: Path, evaluation: Evaluation) -> None:
    result, path, passport = evaluation.result, evaluation.path, evaluation.passport
    assert path == run / "evaluations" / "test-best-200-beam4-alpha0.6-max_extra_length4.json"
    assert json.loads(path.read_text()) == json.loads(json.dumps(result))
    assert passport == load_evaluation(path).passport
    assert (passport.checkpoint, passport.data["split"]) == ("best-200", "test")
    assert (passport.origin["run"], result["run"]) == ("run", None)  # without a ledger
    assert passport.config["model.d_model"] == 16
    assert {"jax", "python"} < passport.versions.keys()
    assert {"revision", "changed", "date"} <= result.keys()
    search = [passport.decoding[name] for name in ("beam_size", "alpha", "max_extra_length")]
    assert search == [4, 0.6, 4]
    assert passport.measures["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp")
    assert list(result["measures"]) == [
        *choose_measures(["default"], list_measures("", spaces=True), "", {}),
        "perplexity",
        "perplexity_word",
    ]
    for score in result["measures"].values():
        assert score["definition"]
        assert score["interval"] is None, "five sentences are too few"
    assert result["compile_seconds"] > 0
    assert result["sentences_per_second"] == pytest.approx(5 / result["seconds"])
    assert not [file for file in path.parent.iterdir() if file.suffix not in (".json", ".txt")]


def test_other_engine_gives_the_same_and_is_named(run: Path, evaluation: Evaluation) -> None:
    backend = evaluation.passport.backend
    assert (backend["name"], backend["compute_type"]) == ("jax", "float32")
    assert backend["products"] == "float32 operands at full precision"
    found = evaluate(EvaluationRequest((run,), backend="ctranslate2"))
    result, path = found.result, found.path
    assert path.name == "test-best-200-beam4-alpha0.6-max_extra_length4-ctranslate2-float32.json"
    backend = found.passport.backend
    assert (backend["name"], backend["compute_type"]) == ("ctranslate2", "float32")
    assert result["compile_seconds"] > 0
    assert result["measures"] == evaluation.result["measures"]


def test_references_that_are_empty_are_counted_and_said(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    src, ref = tmp_path / "many.en", tmp_path / "many.de"
    src.write_text("Dogs climb.\n" * 4 + "\n")
    ref.write_text("Hunde klettern.\n" * 2 + "\n \n\n", "utf-8")
    request = EvaluationRequest(
        (run,), src=str(src), ref=(str(ref),), measures=("chrf",), decoding={"beam_size": 1}
    )
    result = evaluate(request).result
    assert result["num_empty_references"] == 2
    assert "2 references are empty" in caplog.text
    assert "2 of 5 references are empty, but not their sources; the perplexity and" in caplog.text
    nats = -t2t.load(run, "best").score([("Dogs climb.", "Hunde klettern."), ("", "")])
    tokens = len(Vocabulary.load(run / "vocab").tgt.encode(["Hunde klettern."])[0])
    counts = {"perplexity": 2 * tokens + 1, "perplexity_word": 4}  # EOS of the empty pair counts
    for name, count in counts.items():
        score = result["measures"][name]
        assert score["value"] == pytest.approx(math.exp((2 * nats[0] + nats[1]) / count), rel=1e-4)
        assert score["definition"].endswith("no smoothing; 2 missing references left out")
    both = dataclasses.replace(request, ref=(str(src), str(ref)))
    assert evaluate(both).result["num_empty_references"] == 0
    assert "2 references of text 2 are empty, but not their sources" in caplog.text


def test_references_beyond_the_limit_of_outputs_are_said_before_the_search(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    src, ref = tmp_path / "long.en", tmp_path / "long.de"
    src.write_text("Dogs climb.\n" * 2)
    ref.write_text("Hunde klettern.\n" + " Hunde" * 20 + "\n")
    request = EvaluationRequest((run,), src=str(src), ref=(str(ref),), measures=("chrf",))
    search = mock.patch.object(Translator, "translate_with_alphas", side_effect=RunError("begins"))
    with search, pytest.raises(RunError, match="begins"):
        evaluate(request)
    [doubt] = [line for line in caplog.messages if "max_extra_length" in line]
    assert re.fullmatch(
        r"1 of 2 pairs of the test set have a target of more than decoding\.max_extra_length=4 "
        r"sub-words beyond its source, up to \d+ for \d+: .*; give --max_extra_length=\d+ or more",
        doubt,
    )


def test_perplexities_share_the_loss_and_count_sub_words_or_words(
    run: Path, evaluation: Evaluation
) -> None:
    token, word = (
        evaluation.result["measures"][name] for name in ("perplexity", "perplexity_word")
    )
    words = sum(len(tgt.split()) for _, tgt in PAIRS)
    ids = Vocabulary.load(run / "vocab").tgt.encode([tgt for _, tgt in PAIRS])
    tokens = sum(map(len, ids))
    assert token["detail"].endswith(f"nats, {tokens} sub-words, {words} words")
    assert math.log(token["value"]) * tokens == pytest.approx(math.log(word["value"]) * words)
    assert "vocabulary" in token["definition"]
    assert "in float32 on the raw references" in token["definition"]
    assert "vocabulary" not in word["definition"]


def test_pairs_that_are_left_out_of_the_perplexity_or_scored_whole_are_counted(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = shutil.copytree(run, tmp_path / "run")
    vocabulary = dataclasses.replace(Vocabulary.load(run / "vocab"), several_sentences=0.01)
    vocabulary.save(run / "vocab")
    src, ref = tmp_path / "long.en", tmp_path / "long.de"
    lines = {src: ["Dogs climb. A girl climbs.", "Dogs"], ref: ["Hunde klettern.", "Hunde " * 1100]}
    for path, text in lines.items():
        path.write_text("".join(f"{line}\n" for line in text))
    request = EvaluationRequest(
        (run,), src=str(src), ref=(str(ref),), output=str(tmp_path / "scores.json")
    )
    result = evaluate(dataclasses.replace(request, decoding={"beam_size": 1})).result
    assert result["num_sentences"] == 2
    perplexity = result["measures"]["perplexity_word"]
    assert perplexity["definition"].endswith(
        "1 pairs of more than 1024 sub-words left out; 1 pairs of several sentences scored whole"
    )
    assert "1 of 2 pairs have a side of more than 1024 sub-words with EOS; the perp" in caplog.text
    assert "1 of 2 pairs have several sentences; they are scored whole, though" in caplog.text
    assert perplexity["detail"].endswith(" 2 words")


def test_program_prints_every_measure(run: Path, evaluation: Evaluation) -> None:
    done = programs.run("t2t.evaluate", f"--workdir={run}")
    assert done.returncode == 0, done.stderr
    lines, result = done.stdout.splitlines(), evaluation.result
    assert lines[0].startswith("test, checkpoint best-200, beam 4, alpha 0.6: 5 sentences in ")
    assert [line.split()[0] for line in lines[1:-3]] == list(result["measures"])
    found = re.match(r"bleu: brevity penalty ([\d.]+), length ratio [\d.]+ \(\d+ tok", lines[-3])
    assert found
    assert f"BP = {found[1]} " in result["measures"]["bleu"]["detail"]
    assert lines[-2].startswith("no 95% intervals: resamples of fewer than 30 sentences")
    assert lines[-1] == str(evaluation.path)


def test_language_of_the_references_can_be_named_afterwards(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    src, ref = tmp_path / "news.en", tmp_path / "news.zh"
    src.write_text("Dogs climb.\nDogs climb.\n", "utf-8")
    ref.write_text("狗在爬山。\n狗在爬。\n", "utf-8")
    request = EvaluationRequest((run,), src=str(src), ref=(str(ref),), decoding={"beam_size": 1})
    unknown = evaluate(request)
    assert "--tgt_language" in caplog.text
    chinese = evaluate(dataclasses.replace(request, tgt_language="zho_Hans"))
    for language, evaluation in (("", unknown), ("zh", chinese)):
        names = choose_measures(["default"], list_measures(language, spaces=False), language, {})
        assert list(evaluation.result["measures"]) == [*names, "perplexity"]
    assert "tok:13a" in unknown.passport.measures["bleu"]
    assert "tok:zh" in chinese.passport.measures["bleu"]
    languages = [each.passport.data["tgt_language"] for each in (unknown, chinese)]
    assert languages == ["", "zho_Hans"]
    with pytest.raises(ConfigError, match="--tgt_language=german is not a language code"):
        Evaluator(dataclasses.replace(request, tgt_language="german"))


def test_text_files_have_names_of_their_own(run: Path, tmp_path: Path) -> None:
    """A file `test.en` is not taken for the split `test`, nor for a file in another folder."""
    (tmp_path / "ref.de").write_text("Hunde klettern.\n", "utf-8")
    split = run / "evaluations" / "test-300-beam1-alpha0.6-max_extra_length4.json"
    greedy = EvaluationRequest((run,), "300", decoding={"beam_size": 1})
    evaluate(greedy)
    before = split.read_bytes()
    paths = set()
    for folder in ("a", "b"):
        src = tmp_path / folder / "test.en"
        src.parent.mkdir()
        src.write_text(f"Dogs climb {folder}.\n")
        request = dataclasses.replace(
            greedy, split="", src=str(src), ref=(str(tmp_path / "ref.de"),)
        )
        found = evaluate(request)
        named, path = found.passport.data["split"], found.path
        paths.add(path)
        assert load_evaluation(path).read_lines("sources") == [f"Dogs climb {folder}."]
        assert named == path.name.removesuffix("-300-beam1-alpha0.6-max_extra_length4.json")
    assert len(paths) == 2
    assert split.read_bytes() == before


def test_average_can_be_saved_as_a_run_of_its_own(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    saved, output = tmp_path / "runs" / "average", tmp_path / "scores.json"
    request = EvaluationRequest(
        (run,), "avg:3", save_params="~/runs/average", output="~/scores.json"
    )
    average = evaluate(request)
    assert average.path == output
    again = evaluate(EvaluationRequest((saved,), "last"))
    assert list_steps(saved) == [300]
    assert again.path.parent.parent == saved
    assert again.result["measures"] == average.result["measures"]
    assert again.read_lines("hypotheses") == average.read_lines("hypotheses")
    with pytest.raises(ConfigError, match="exists already"):
        evaluate(request)


def test_utility_chooses_among_candidates(run: Path) -> None:
    drawn: dict[str, Any] = {"strategy": "sampling", "num_samples": 5, "temperature": 0.5}
    decoding = drawn | {"mbr": "chrf"}
    found = evaluate(EvaluationRequest((run,), decoding=decoding))
    name = "test-best-200-sampling-seed0-temperature0.5-max_extra_length4-chrf5"
    assert found.path.stem == name
    assert {name: found.passport.decoding[name] for name in decoding} == decoding
    loaded = t2t.load(run, "best")
    sources = [src for src, _ in PAIRS]
    candidates = loaded.translate_n_best(sources, 5, **drawn)
    utility = make_utility("chrf", "de")
    chosen = [
        choose_by_utility(each, functools.partial(utility, src), True).text
        for src, each in zip(sources, candidates, strict=True)
    ]
    assert found.read_lines("hypotheses") == chosen
    assert loaded.translate(sources, **decoding) == chosen
    translator = LineTranslator(ModelRequest((run,), decoding=decoding))
    translated = translate_lines(translator, iter([f"{src}\n".encode() for src in sources]))
    assert [each.text for [each] in translated] == chosen


PLUGIN = """
import numpy as np
from t2t.config.variants import register
from t2t.evaluation.measure import Measure, count_scores

@register("evaluation.measure", "own")
def make(language, num_references):
    def segments(sources, hypotheses, references):
        return count_scores([float(len(line.split())) for line in hypotheses])
    return Measure("own", "words", segments)
"""


@pytest.mark.usefixtures("own_variants")
@pytest.mark.parametrize("is_named", [True, False], ids=["by --plugins", "by an import"])
def test_whatever_is_kept_names_the_code_of_all_plugins(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """No config names the plugin: its score is not used again, nor a shard continued."""
    name = "named" if is_named else "imported"
    file = tmp_path / f"{name}.py"
    file.write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, name, None)  # removed at the end
    del sys.modules[name]
    if is_named:
        variants.import_plugins([name])
    else:  # in a notebook
        importlib.import_module(name)
    texts = run / "toy.en", run / "toy.de"
    of_text = OutputRequest(
        hypotheses=str(texts[1]), output=texts[1], src=str(texts[0]), ref=(str(texts[1]),),
        measures=("own",),
    )  # fmt: skip
    request = EvaluationRequest((run,), measures=("own",), decoding={"beam_size": 1})
    search: dict[str, Any] = {"beam_size": 2, "mbr": "own"}
    plugins = (name,) if is_named else ()

    def list_code(number: int) -> list[Any]:
        output, folders = tmp_path / f"{number}.json", [tmp_path / f"{n}{number}" for n in "ab"]
        export_states(ModelRequest((run,)), find_inputs([str(texts[0])], folders[0]))
        translate.main(
            translate.TranslationRequest(
                (run,), decoding=search, input=(str(texts[0]),), output=str(folders[1]),
                plugins=plugins,
            )
        )  # fmt: skip
        return [
            evaluate(request).passport.code,
            evaluate_output(dataclasses.replace(of_text, output=output)).passport.code,
            *(json.loads((each / SETTINGS).read_text())["settings"]["code"] for each in folders),
        ]

    before = list_code(0)
    assert [*Evaluator(request).list_saved()] == ["best-200"]
    file.write_text(PLUGIN.replace("len(line.split())", "len(line)"))
    assert not Evaluator(request).list_saved()
    for old, new in zip(before, list_code(1), strict=True):
        assert old["t2t"] == new["t2t"]
        assert old["plugins"] != new["plugins"]


def test_runs_with_other_vocabularies_are_no_ensemble(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    train_vocabulary(
        [ListCorpus("toy", PAIRS[:3])], TokenizerConfig(vocab_size=400), other / "vocab"
    )
    with pytest.raises(ConfigError, match=r"other/vocab is not the vocabulary of .*run; an ensem"):
        evaluate(EvaluationRequest((run, other)))
    with pytest.raises(ConfigError, match="2 run directories and 3 checkpoints; give one of them"):
        evaluate(EvaluationRequest((run, run), "100,200,300"))
    with pytest.raises(ConfigError, match=r"--weights=1\.0,-1\.0 must be"):
        evaluate(EvaluationRequest((run, run), weights=(1.0, -1.0)))


def test_vocabulary_of_another_run_is_refused(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    smaller = TokenizerConfig(vocab_size=380)
    train_vocabulary([ListCorpus("toy", PAIRS)], smaller, other / "vocab")
    message = r"tgt_embedding\.table has shape \(400, 16\) instead of \(380, 16\)"
    with pytest.raises(ConfigError, match=message):
        evaluate(EvaluationRequest((other,)))


def test_incomplete_run_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json does not exist; is this a run directory"):
        evaluate(EvaluationRequest((tmp_path,)))
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    with pytest.raises(VocabularyError, match="holds no vocabulary"):
        evaluate(EvaluationRequest((tmp_path,)))
    (tmp_path / "vocab").symlink_to(run / "vocab")
    with pytest.raises(RunError, match="holds no complete checkpoint"):
        evaluate(EvaluationRequest((tmp_path,)))


def test_references_documents_and_scores_from_outside_go_into_one_evaluation(
    run: Path, tmp_path: Path
) -> None:
    src, documents, *refs = (tmp_path / name for name in ("src", "documents", "1.de", "2.de"))
    src.write_text("Dogs climb.\n" * 62)
    documents.write_text("".join(f"document {number // 2}\n" for number in range(62)))
    for path in refs:
        path.write_text(f"Hunde klettern {path.stem}.\n" * 62)
    output, scores = tmp_path / "out.json", tmp_path / "scores"
    request = EvaluationRequest(
        (run,), src=str(src), ref=tuple(map(str, refs)), segments=str(documents),
        output=str(output), measures=("ter", "bleu"), decoding={"beam_size": 1},
    )  # fmt: skip
    result = evaluate(request).result
    assert [*result["measures"]][:2] == ["ter", "bleu"]
    assert result["measures"]["bleu"]["definition"].startswith("nrefs:2|")
    assert (result["num_sentences"], result["num_documents"]) == (62, 31)
    scores.write_text("".join(f"{number / 62}\n" for number in range(62)))
    done = programs.run("t2t.add_scores", str(output), f"--segment_scores=comet={scores}")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^comet +0\.49\d\d +\[", done.stdout, re.MULTILINE)
    assert "out.json: verified, 5 measures of 62 sentences" in verify([str(output)], "", "")


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        ({"split": "tests"}, DataError, "split 'tests' is unknown"),
        ({"measures": ("bleu", "comet")}, ConfigError, "measure comet is unknown; use some of def"),
        ({"src": "a.en"}, ConfigError, "--src='a.en' and --ref='' go together"),
        ({"output": "scores.txt"}, ConfigError, "must end in .json"),
        (
            {"decoding": {"strategy": "sampling", "num_samples": 2}},
            ConfigError,
            "an evaluation scores one translation of each sentence",
        ),
    ],
)
def test_invalid_request_is_refused(
    run: Path, request_: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        evaluate(EvaluationRequest((run,), **request_))


@pytest.mark.usefixtures("own_variants")
def test_output_that_cannot_be_written_is_found_out_first(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(Evaluator, "_translate", None)
    with pytest.raises(RunError, match=r"cannot be written: .*; --output and the name of --src"):
        evaluate(EvaluationRequest((run,), output=str(tmp_path / "file" / "scores.json")))
    long = tmp_path / f"{'a' * 230}.en"
    long.write_text("Dogs climb.\n")
    for names in ({"output": f"{'b' * 230}.json"}, {"src": str(long), "ref": (str(long),)}):
        with pytest.raises(RunError, match=r"[ab]{230}\S* cannot be written: File name too"):
            evaluate(EvaluationRequest((run,), **names))
    variants.register(MEASURE_FIELD, "a/b")(lambda *_: make_measure("chrf", "de"))
    with pytest.raises(ConfigError, match="measure 'a/b' is a part of file names, which have no /"):
        tune(SelectionRequest(run, split="test", measure="a/b"))
