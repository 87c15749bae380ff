"""MetricX as a measure, with small random models; held to transformers where it is installed."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

import t2t
from t2t.api.compare_runs import compare, verify
from t2t.api.evaluate_run import evaluate
from t2t.api.import_model import describe_import, import_model
from t2t.api.line_translator import LineTranslator
from t2t.config.fields import ConfigError
from t2t.config.requests import make_request
from t2t.decoding.translation import Translation
from t2t.evaluation.evaluator import Evaluator
from t2t.evaluation.load_models import make_utility
from t2t.evaluation.metricx import INPUTS, MetricXScorer, open_scorer
from t2t.evaluation.requests import EvaluationRequest
from t2t.evaluation.segment_scores import store_segment_scores
from t2t.evaluation.text_measures import make_measure
from t2t.interop import metricx
from t2t.interop.hugging_face_folder import SourceError, open_tensors, write_safetensors
from t2t.translate import TranslationRequest
from tests.evaluation.saved_evaluations import pair
from tests.interop.foreign_folders import write_t5_model
from tests.interop.small_vocabularies import list_pieces, make_text, train_model
from tests.tiny_run import PAIRS, make_run

pytestmark = pytest.mark.usefixtures("shared_programs")
ARCHITECTURE = {"model_type": "mt5", "architectures": ["MT5ForRegression"]}
SOURCES, HYPOTHESES, REFERENCES = (make_text(seed, 12) for seed in (1, 2, 3))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An imported model, whose vocabulary lies elsewhere."""
    folder = tmp_path_factory.mktemp("metricx")
    source, vocabulary = folder / "metricx-24-tiny", folder / "mt5"
    source.mkdir()
    vocabulary.mkdir()
    tensors = write_t5_model(source, **ARCHITECTURE)
    shutil.move(source / "spiece.model", vocabulary)
    tensors["encoder.final_layer_norm.weight"] *= 10  # so that scores differ
    tensors["lm_head.weight"] *= 200  # and that some are clipped
    write_safetensors(source / "model.safetensors", tensors)
    with pytest.raises(SourceError, match=r"has no tokenizer: .* by --tokenizer"):
        import_model(str(source), folder / "run")
    import_model(str(source), folder / "run", tokenizer=str(vocabulary))
    pieces = list_pieces(train_model(0, pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metricx, "COLUMN", len(pieces) + 89)  # <extra_id_99> is the first sentinel
        yield folder / "run"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The score of an input is the number of its letters, modulo 26; returns scored inputs."""
    texts: list[str] = []

    def score(_: MetricXScorer, new: Sequence[str]) -> np.ndarray:
        texts.extend(new)
        return np.array([len(text) % 26 for text in new], float)

    monkeypatch.setattr(MetricXScorer, "_score_texts", score)
    monkeypatch.setattr(MetricXScorer, "_read_scores", lambda _: {})
    monkeypatch.setattr(MetricXScorer, "_report", lambda _: None)
    open_scorer.cache_clear()
    return texts


def test_each_sentence_is_scored_once_on_a_kind_of_device(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this program or by another one; a score is clipped."""
    first = MetricXScorer(run)
    scores = first.score(SOURCES, HYPOTHESES, REFERENCES)
    assert {0.0, 25.0} < {*scores}
    monkeypatch.setattr(MetricXScorer, "_restore", None)
    order = [3, 0, 3, 11]
    for scorer in (first, MetricXScorer(run)):
        texts = ([lines[i] for i in order] for lines in (SOURCES, HYPOTHESES, REFERENCES))
        np.testing.assert_array_equal(scorer.score(*texts), scores[order])
        with pytest.raises(TypeError):
            scorer.score(SOURCES[:1], HYPOTHESES[:1], HYPOTHESES[:1])
    saved = first._path.read_bytes()
    monkeypatch.setattr(jax, "devices", lambda: [mock.Mock(device_kind="another")])
    monkeypatch.setattr(MetricXScorer, "_score_texts", lambda _, texts: np.ones(len(texts)))
    other = MetricXScorer(run)
    other.score(SOURCES, HYPOTHESES, REFERENCES)
    other._report()
    assert first._path.read_bytes() == saved
    assert {*json.loads(other._path.read_text("utf-8")).values()} == {1.0}
    for damaged in (b"damaged", b"[1]", b'{"a": []}'):
        other._path.write_bytes(damaged)
        assert not MetricXScorer(run)._scores


def test_measure_counts_errors_and_takes_the_mean_over_references(
    run: Path, fake: list[str]
) -> None:
    models = {"metricx": run, "metricx_qe": run}
    measure = make_measure("metricx", "de", 2, models)
    assert (measure.higher_is_better, measure.limits) == (False, (0, 25))
    assert "MetricX-24, errors from 0 to 25" in measure.definition
    assert measure.definition.endswith(", mean over 2 references, missing ones left out")
    base = len("source:  candidate: a reference: ") % 26
    score = measure.score(["a", "a"], pair(["b", "{}"], ["bbb", "bbbb"]))
    assert score.value == base + 2.5
    assert fake[1] == "source:  candidate: a reference: {}"  # a text may have braces
    some = pair(["b", "", "bb", ""], ["bbb", "bbbb", "", ""])  # the last one has none
    some = some._replace(sources=["s"] * 4)
    lengths = [(1 + 3) / 2, 4, 2, 0]
    assert measure.collect(["a"] * 4, some)[:, 0].tolist() == [base + 1 + each for each in lengths]
    utilities = make_utility("metricx", "de", models)("", ["a", "bbb"])
    np.testing.assert_array_equal(utilities, [[-base - 1, -base - 3], [-base - 3, -base - 5]])
    fake.clear()
    without = make_measure("metricx_qe", "de", 2, models)
    without.score(["a"], pair(["b"], ["c"]))
    assert fake == ["source:  candidate: a"]
    assert "MetricX-24-qe, errors from 0 to 25" in without.definition


def test_evaluation_stores_scores_that_need_no_model_in_a_comparison(
    run: Path, fake: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workdir = make_run(tmp_path / "run")
    texts = iter([["eins", "zwei", "drei", "vier", "fünf"], ["a", "b", "c", "d", "e"]])
    monkeypatch.setattr(
        Evaluator,
        "_translate",
        lambda *_: ([[Translation(text, 0.0, 0.0, 1) for text in next(texts)]], {}),
    )
    losses = [(1.0, 1.0)] * len(PAIRS)
    found = mock.Mock(**{"start.return_value": lambda: ({}, losses)})
    monkeypatch.setattr(Evaluator, "_perplexity", found)
    models = {"metricx": run}
    assert f"t2t.evaluate --workdir=RUN --measure_model=metricx={run}" in describe_import(run)
    saved = [
        evaluate(EvaluationRequest((workdir,), name, measures=measures, measure_model=models))
        for name, measures in (("100", ("default",)), ("200", ("metricx",)))
    ]
    assert len(fake) == 2 * len(PAIRS)
    stored = [float(line) for line in saved[1].read_lines("scores.metricx")]
    assert saved[1].result["measures"]["metricx"]["value"] == pytest.approx(np.mean(stored))
    assert {"bleu", "metricx"} < saved[0].result["measures"].keys()
    paths = [str(each.path) for each in saved]
    text = compare(paths, "metricx", "test", "", None)
    assert "metricx: MetricX-24, errors from 0 to 25" in text
    assert "verified" in verify(paths[:1], "test", "")
    with pytest.raises(ConfigError, match="metricx is a measure of t2t; choose another name"):
        store_segment_scores(saved[0], "metricx=scores.txt")


def test_translation_chooses_by_it_and_keeps_which_one_it_is(
    run: Path, fake: list[str], tmp_path: Path
) -> None:
    workdir = make_run(tmp_path / "run")
    for name, version in (("metricx", "24"), ("metricx_qe", "24-qe")):
        given = {"workdirs": workdir, "measure_model": {name: run}, "mbr": name, "beam_size": 2}
        request = make_request(TranslationRequest, given)
        settings = LineTranslator(request).record_settings()
        assert settings["utility"].startswith(f"MetricX-{version}, ")
    loaded = t2t.load(workdir, measure_model={"metricx": run})
    loaded.translate(["Dogs climb."], mbr="metricx", beam_size=2)
    assert fake[0].startswith("source: Dogs climb. candidate: ")


def test_model_that_is_no_metricx_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"metricx=.* is no imported model; name a run"):
        make_measure("metricx", "de", models={"metricx": tmp_path})
    origin = json.loads((run / "import.json").read_text("utf-8"))
    other = ARCHITECTURE | {"architectures": ["MT5ForConditionalGeneration"]}
    for name, changes, message in (
        ("metricx", {"config": other}, r"ConditionalGeneration'\], but MetricX has mt5"),
        ("metricx", {"source": "hf:some/model"}, r"hf:some/model, whose name says no version"),
        ("metricx", {"source": "metricx-23-qe"}, "reads no reference; ask for .* metricx_qe, with"),
        ("metricx_qe", {"source": "metricx-23"}, "reads a reference; ask for .* metricx, with"),
    ):
        (tmp_path / "import.json").write_text(json.dumps(origin | changes), "utf-8")
        with pytest.raises(ConfigError, match=message):
            make_measure(name, "de", models={name: tmp_path})
    open_scorer.cache_clear()
    monkeypatch.setattr(metricx, "COLUMN", 250_089)
    with pytest.raises(ConfigError, match=r"no piece with the original id 250089, .* --tokenizer"):
        make_measure("metricx", "de", models={"metricx": run})


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """mT5 of transformers with random weights and its whole table, its tokenizer, and the run."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("original")
    source = folder / "source"
    source.mkdir()
    (source / "spiece.model").write_bytes(train_model(0, pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    config = transformers.MT5Config(
        vocab_size=250_112, d_model=32, d_kv=6, d_ff=48, num_layers=3, num_decoder_layers=2,
        num_heads=4, decoder_start_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MT5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name == "encoder.final_layer_norm.weight":
                tensor.mul_(3)
            tensor.add_(0.1 * torch.randn_like(tensor))
    model.lm_head.weight = torch.nn.Parameter(torch.randn(config.vocab_size, config.d_model))
    model.save_pretrained(source)
    assert "lm_head.weight" in open_tensors(source).shapes
    saved = json.loads((source / "config.json").read_text("utf-8"))
    saved |= ARCHITECTURE | {"tie_word_embeddings": False}  # transformers 5 says True of any mT5
    (source / "config.json").write_text(json.dumps(saved), "utf-8")
    import_model(str(source), folder / "run")
    return model, transformers.T5Tokenizer.from_pretrained(source), folder / "run"


@pytest.mark.transformers
@pytest.mark.filterwarnings("ignore")  # of torch and transformers
@pytest.mark.parametrize("version", INPUTS)
def test_scores_are_those_of_the_authors_computation(
    original: tuple[Any, Any, Path], version: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The authors cut the ids with EOS at the limit, then remove EOS.

    The score is the logit with the number 250,089 after the first step of the decoder, which begins
    with <pad>.
    """
    import torch

    model, tokenizer, workdir = original
    sources, hypotheses, references = (make_text(seed, 24) for seed in (4, 5, 6))
    hypotheses[3] = " ".join([hypotheses[3]] * 80)  # is cut
    expected, longest = [], 1024 if version.startswith("23") else 1536
    for src, tgt, ref in zip(sources, hypotheses, references, strict=True):
        text = {
            "23": f"candidate: {tgt} reference: {ref}",
            "23-qe": f"candidate: {tgt} source: {src}",
            "24": f"source: {src} candidate: {tgt} reference: {ref}",
            "24-qe": f"source: {src} candidate: {tgt}",
        }[version]
        ids = tokenizer(text, max_length=longest, truncation=True).input_ids
        assert ids[-1] == tokenizer.eos_token_id
        with torch.no_grad():
            logits = model(
                input_ids=torch.tensor([ids[:-1]]), decoder_input_ids=torch.tensor([[0]])
            ).logits
        expected.append(float(torch.clamp(logits[0, 0, 250_089], 0, 25)))
    assert np.std(expected) > 1
    origin = json.loads((workdir / "import.json").read_text("utf-8"))
    origin["source"] = "metricx-24" if version == "24-qe" else f"metricx-{version}"
    (workdir / "import.json").write_text(json.dumps(origin), "utf-8")
    scorer = MetricXScorer(workdir, has_reference=not version.endswith("-qe"))
    found = scorer.score(sources, hypotheses, references)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert f"1 of 24 inputs have more than {longest - 1} sub-words; the end" in caplog.text
