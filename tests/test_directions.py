"""Several directions in one run: training, validation, evaluation, translation, scoring."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import t2t
from t2t.api import prepare_run, train_run
from t2t.api.evaluate_run import evaluate
from t2t.api.line_translator import LineTranslator
from t2t.api.text_scorer import TextScorer
from t2t.config.fields import Config, ConfigError
from t2t.config.rules import validate
from t2t.data.corpus_report import report_data
from t2t.data.preparation import is_prepared
from t2t.data.tokenizer import Vocabulary
from t2t.evaluation.find_evaluations import list_evaluations
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.requests import EvaluationRequest, ModelRequest
from tests.data.small_corpus import PAIRS
from tests.tiny_training import change, make_config, read_figures

STEPS = 12
DIRECTIONS = ("en-de", "en-xx")

pytestmark = pytest.mark.usefixtures("one_device", "shared_programs")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """English to German and to backwards English; two sources, weighted by temperature, packed."""
    folder = tmp_path_factory.mktemp("directions")
    for name, pairs in (("a", PAIRS[:200]), ("b", PAIRS[200:280]), ("dev", PAIRS[300:308])):
        texts = {
            "en": [english for english, _ in pairs],
            "de": [german for _, german in pairs],
            "xx": [english[::-1] for english, _ in pairs],
        }
        for language, lines in texts.items():
            (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines))
        rows = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = make_config(folder)
    data: dict[str, Any] = {
        "source": "text+hf",
        "train_src": (f"{folder}/a.{{src}}",),
        "train_tgt": (f"{folder}/a.{{tgt}}",),
        "validation_src": f"{folder}/dev.{{src}}",
        "validation_tgt": f"{folder}/dev.{{tgt}}",
        "hf_files": (f"train={folder}/b.jsonl", f"test={folder}/dev.jsonl"),
        "directions": DIRECTIONS,
        "train_weights": (),
        "temperature": 2.0,
        "packed_length": 32,
    }
    return validate(
        change(
            base,
            data=data,
            training={"steps": STEPS, "validate_every": 4},
            checkpoints={"every": 4},
        )
    )


@pytest.fixture(scope="module")
def run(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with BLEU at its end."""
    workdir = tmp_path_factory.mktemp("run") / "run"
    assert train_run.train(change(config, training={"translate_every": STEPS}), workdir)
    return workdir


def test_validation_scores_each_direction(run: Path) -> None:
    *_, last = read_figures(run, "validation/")
    for measure in ("loss", "perplexity", "bleu", "chrf"):
        values = [last[f"validation/{measure}/{direction}"] for direction in DIRECTIONS]
        assert min(values) <= last[f"validation/{measure}"] <= max(values)
    assert last["validation/bleu"] == pytest.approx(
        np.mean([last[f"validation/bleu/{direction}"] for direction in DIRECTIONS])
    )
    losses = [last[f"validation/loss/{direction}"] for direction in DIRECTIONS]
    assert losses[0] != losses[1]


@pytest.mark.slow
def test_evaluations_of_directions_are_kept_apart(run: Path) -> None:
    *_, last = read_figures(run, "validation/")
    for direction in DIRECTIONS:
        request = EvaluationRequest(
            (run,), "last", split="validation", decoding={"beam_size": 2}, task=direction
        )
        evaluation = evaluate(request)
        data, path = evaluation.passport.data, evaluation.path
        assert path.name.startswith(f"validation-{direction}-{STEPS}-beam2")
        assert (data["direction"], data["tgt_language"]) == (direction, direction[-2:])
        measures = evaluation.result["measures"]
        assert measures["bleu"]["value"] == pytest.approx(last[f"validation/bleu/{direction}"])
        perplexity = last[f"validation/perplexity/{direction}"]
        assert measures["perplexity"]["value"] == pytest.approx(perplexity, rel=1e-4)
    found = {each.passport.data["direction"]: each for each in list_evaluations(run)}
    assert {*found} == {*DIRECTIONS}
    assert found["en-de"].read_lines("sources") == found["en-xx"].read_lines("sources")
    assert found["en-de"].read_lines("references") == [german for _, german in PAIRS[300:308]]
    with pytest.raises(ConfigError, match="this run translates en-de, en-xx; name one with --task"):
        evaluate(EvaluationRequest((run,), "last", split="validation"))


@pytest.mark.slow
def test_programs_agree_on_the_tag(run: Path) -> None:
    sentences = [english for english, _ in PAIRS[300:304]] + [""]
    texts = {}
    for direction in DIRECTIONS:
        loaded = t2t.load(run, task=direction)
        texts[direction] = loaded.translate(sentences)
        request = ModelRequest((run,), "last", task=direction)
        lines = LineTranslator(request, alignment_layer=0).translate(sentences)
        assert [best.text for best, *_ in lines] == texts[direction]
        for sentence, [best] in zip(sentences, lines, strict=True):
            links = [link.split("-") for link in (best.alignment or "").split()]
            assert all(int(source) < len(sentence.split()) for source, _ in links)
        assert texts[direction][-1] == ""
        pairs = [(sentence, "ein Haus") for sentence in sentences[:4]]
        scored = [
            float(scores.sum()) for _, _, scores in TextScorer(RunModel(request)).score(iter(pairs))
        ]
        np.testing.assert_allclose(scored, [s.sum() for s in loaded.score(pairs)], rtol=1e-5)
    for use in (t2t.load, lambda path: RunModel(ModelRequest((path,), "last"))):
        with pytest.raises(ConfigError, match=r"name one with (--)?task, such as"):
            use(run)


def test_prepare_and_inspection_cover_each_direction(
    config: Config, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh = change(config, data={"cache_directory": f"{tmp_path}/cache"})
    assert not is_prepared(fresh, tmp_path / "run")
    prepare_run.prepare(fresh, tmp_path / "run", print)
    assert is_prepared(fresh, tmp_path / "run")
    printed = capsys.readouterr().out
    assert "train: 280 pairs (en-de: " in printed
    assert "validation: 8 pairs (en-xx: " in printed
    vocabulary = Vocabulary.load(tmp_path / "run" / "vocab")
    assert vocabulary.fingerprint() == Vocabulary.load(run / "vocab").fingerprint()
    report = report_data(fresh, vocabulary)
    assert {*report.splits} == {
        f"{split}/{direction}"
        for split in ("train", "validation", "test")
        for direction in DIRECTIONS
    }
    assert report.splits["train/en-xx"].pairs == 280
    [sentence] = vocabulary.with_tag("<2xx>").src.encode([PAIRS[0][0]])
    assert vocabulary.src.pieces(sentence[:1]) == ["<2xx>"]
