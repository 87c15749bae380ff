"""The measures against sacreBLEU, and against text treated by hand."""

import math
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from t2t.config.fields import ConfigError, TokenizerConfig
from t2t.config.measures import MEASURE_FIELD, MEASURES
from t2t.config.variants import register
from t2t.data.corpus import ListCorpus
from t2t.data.tokenizer import train_vocabulary
from t2t.evaluation import text_measures
from t2t.evaluation.measure import Measure, MeasureError, have_spaces
from t2t.evaluation.requests import TextRequest
from t2t.evaluation.text_measures import make_measure, make_paper_tokeniser
from t2t.evaluation.text_scores import choose_measures
from tests.evaluation.saved_evaluations import pair, score_corpus

HYPOTHESES = ["Der rot-weiße Ball liegt im Gras .", "Zwei Hunde laufen am Meer .", ""]
# Of texts alone; spBLEU needs a download.
TEXT = tuple(name for name, row in MEASURES.items() if not row.architecture and name != "spbleu")
REFERENCES = ["Der rot-weiße Ball liegt im Sand .", "Zwei Hunde laufen am Strand .", "Ein Kind ."]


def test_case_counts_only_where_the_definition_says_so() -> None:
    references = ["A girl climbs a tree .", "Two dogs run ."]
    scores = score_corpus([line.upper() for line in references], pair(references), "en", TEXT)
    for name in ("bleu_lowercase", "bleu_multi30k", "chrf_lowercase", "exact_match_lowercase"):
        assert scores[name].value == pytest.approx(100)
    assert scores["ter"].value == scores["exact_match"].value == 0
    for name in ("bleu", "bleu_paper", "chrf"):
        assert scores[name].value < 50


def test_compounds_count_as_parts_in_the_papers_measure_and_as_one_word_in_multi30ks() -> None:
    def treat(lines: list[str], compound: str) -> list[str]:
        return [line.replace("rot-weiße", compound) for line in lines]

    def expected(compound: str) -> float:
        of_words = BLEU(tokenize="none", smooth_method="none")
        return of_words.corpus_score(
            treat(HYPOTHESES, compound), [treat(REFERENCES, compound)]
        ).score

    scores = score_corpus(HYPOTHESES, pair(REFERENCES), "de", TEXT)
    assert scores["bleu_paper"].value == pytest.approx(expected("rot ##AT##-##AT## weiße"))
    assert scores["bleu_multi30k"].value == pytest.approx(expected("rot-weiße"))
    assert "compounds split" in scores["bleu_paper"].definition
    french = score_corpus(HYPOTHESES, pair(REFERENCES), "fr", TEXT)["bleu_paper"]
    assert french.value == pytest.approx(expected("rot-weiße"))
    assert "compounds split" not in french.definition
    assert scores["bleu_multi30k"].definition.startswith("lower-cased, Moses punctuation")
    assert "tok:none|smooth:none" in scores["bleu_multi30k"].definition


def test_package_that_cuts_words_is_named_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    with pytest.raises(MeasureError, match=r"pip install 'sacrebleu\[ja\]'"):
        make_measure("bleu", "ja")


@pytest.mark.parametrize(
    ("line", "treated"),
    [
        # The script for punctuation knows neither „ nor a dash.
        ("„Ja“ \u2013 sagt sie…", '„ Ja " \u2013 sagt sie ...'),
        ("A-b-c, 1-2", "A ##AT##-##AT## b-c , 1 ##AT##-##AT## 2"),  # as Perl's s///g goes on
        ("z.B. 3,5 & <b>", "z.B. 3,5 & < b >"),
    ],
)
def test_papers_measure_treats_text_as_its_steps_done_by_hand(line: str, treated: str) -> None:
    assert make_paper_tokeniser("de")(line) == treated


def test_exact_match_is_the_share_of_lines_that_equal_any_reference() -> None:
    hypotheses = ["Ein  Hund .", "ein Kind .", "", "Nichts"]
    test_set = pair(["Ein Hund . ", "Ein Kind .", "", "Etwas"], ["a", "b", "c", "Nichts"])
    cased = make_measure("exact_match", "de", 2).score(hypotheses, test_set)
    assert (cased.value, cased.definition[:33]) == (75, "nrefs:2|case:mixed|space:one|vers")
    lowercase = make_measure("exact_match_lowercase", "de").score(hypotheses, test_set)
    assert (lowercase.value, lowercase.definition[:30]) == (100, "nrefs:1|case:lc|space:one|vers")


@pytest.mark.parametrize("name", ["exact_match", "exact_match_lowercase"])
def test_missing_reference_is_matched_by_nothing(name: str) -> None:
    """One that is empty though its source is not: neither is an empty output right."""
    blank = " \u200b"
    sources = ["Dogs", "A girl", "Cats", "", blank, "Fish"]
    references = [["Hunde", blank, "", "", "", "Fisch"], ["", "Ein Kind", "", "", "x", "Fische"]]
    hypotheses = ["", "Ein Kind", "", "", "", "Fische"]
    measure = make_measure(name, "de", 2)
    counts = measure.collect(hypotheses, pair(*references)._replace(sources=sources))
    assert counts.tolist() == [[0, 1], [1, 1], [0, 1], [1, 1], [1, 1], [1, 1]]
    assert measure.definition.endswith("|missing:unmatched")
    alone = pair(references[0])._replace(sources=sources)
    counts = make_measure(name, "de").collect(hypotheses, alone)
    assert counts[:, 0].tolist() == [0, 0, 0, 1, 1, 0]


def count_edits_one_by_one(one: str | list[str], other: str | list[str]) -> int:
    """The Levenshtein distance by the table of Wagner and Fischer (1974)."""
    table = np.zeros((len(one) + 1, len(other) + 1), int)
    table[:, 0], table[0] = np.arange(len(one) + 1), np.arange(len(other) + 1)
    for row, column in np.ndindex(len(one), len(other)):
        changed = table[row, column] + (one[row] != other[column])
        shorter = min(table[row, column + 1], table[row + 1, column]) + 1
        table[row + 1, column + 1] = min(changed, shorter)
    return int(table[-1, -1])


def test_error_rates_are_those_computed_one_by_one() -> None:
    """On 1,000 random pairs, of which some are equal, empty or long."""
    draw = random.Random(0)
    references = [draw.choices("abc", k=draw.choice((0, 1, 5, 9, 80))) for _ in range(1000)]
    hypotheses = [
        [draw.choice("abcd") if draw.random() < 0.1 else item for item in line]
        if number % 3
        else draw.choices("abc", k=draw.randrange(12))
        for number, line in enumerate(references)
    ]
    lines = [" ".join(line) for line in hypotheses]
    test_set = pair([" ".join(line) for line in references])
    edits = sum(map(count_edits_one_by_one, hypotheses, references))
    expected = 100 * edits / sum(map(len, references))
    for name in ("wer", "symbol_error_rate"):
        score = make_measure(name, "").score(lines, test_set, with_interval=True)
        assert score.value == pytest.approx(expected, rel=1e-12)
        assert score.interval
        assert score.interval[0] < expected < score.interval[1]
    letters = sum(map(count_edits_one_by_one, lines, test_set.references[0]))
    expected = 100 * letters / sum(map(len, test_set.references[0]))
    assert make_measure("cer", "").score(lines, test_set).value == pytest.approx(expected)


def test_error_rate_takes_the_nearest_reference_and_counts_in_percent_of_the_mean_length() -> None:
    measure = make_measure("wer", "de", 2)
    counts = measure.collect(["a b", "", "x  y"], pair(["a b c", "a", ""], ["a", "", ""]))
    assert counts.tolist() == [[1, 2], [0, 0.5], [2, 0]]
    assert measure.score_counts(counts[2:], pair([""])).value == 100
    assert measure.score_counts(counts[2:] * 0, pair([""])).value == 0


NUMBERS = [str(number) for number in range(30)]


@pytest.mark.parametrize(
    ("name", "hypotheses", "references"),
    [
        ("ter", ["a b", "c"] * 15, ["a b", *[""] * 29]),  # resamples without a word of a reference
        ("chrf", ["e a", *[""] * 29], ["a b c"] * 30),  # resamples without any match
        ("exact_match", ["x", *NUMBERS[1:]], NUMBERS),
        ("exact_match", [*["x"] * 29, *NUMBERS[29:]], NUMBERS),
    ],
)
def test_interval_exists_at_the_ends_of_the_scale_and_stays_within(
    name: str, hypotheses: list[str], references: list[str]
) -> None:
    score = make_measure(name, "de").score(hypotheses, pair(references), with_interval=True)
    assert score.interval
    low, high = score.interval
    assert 0 <= low < score.value < high
    assert high <= 100 or name == "ter"


def test_references_without_spaces_are_warned_of_unless_their_language_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert not have_spaces("zho", ["这是一只小狗。"])
    assert not caplog.records
    assert have_spaces("german", ["Ein Hund bellt."])
    assert not have_spaces("de", ["ภาษาไทยไม่มีช่องว่าง"])
    assert not have_spaces("tha", ["ภาษาไทยไม่มีช่องว่าง"])
    assert not have_spaces("", ["", "A dog"], ["ภาษาไทยไม่มีช่องว่าง", "ภาษาไทยไม่มีช่องว่าง"])
    unknown, german, thai, second = caplog.messages
    assert "german is not a language code" in unknown
    assert "--tgt_language" in german
    assert "compare chrf" in thai
    assert "data.tgt_language=''" in second


OTHERS = ["Der rote Ball liegt im Gras .", "Am Meer laufen zwei Hunde .", "Kind"]


@pytest.mark.parametrize("others", [[], [OTHERS]], ids=["one reference", "two"])
def test_scores_and_definitions_are_those_of_sacrebleu(others: list[list[str]]) -> None:
    chrf = CHRF(word_order=2) if others else CHRF()
    metrics = {"bleu": BLEU(), "chrf++" if others else "chrf": chrf, "ter": TER()}
    scores = score_corpus(HYPOTHESES, pair(REFERENCES, *others), "de", [*metrics])
    for name, metric in metrics.items():
        expected = metric.corpus_score(HYPOTHESES, [REFERENCES, *others])
        assert scores[name].value == pytest.approx(expected.score, abs=1e-8)
        assert scores[name].definition == str(metric.get_signature())


def test_spbleu_counts_sub_words_and_says_where_their_model_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(text_measures, "SACREBLEU_DIR", str(tmp_path))
    place = tmp_path / "models" / "flores200sacrebleuspm"

    def fail(*_: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.download_file", fail)
    with pytest.raises(MeasureError, match=rf"\(no network\); download https.* put it to {place}"):
        make_measure("spbleu", "de")
    place.parent.mkdir()
    corpus = ListCorpus("", [(line, line) for line in REFERENCES])
    train_vocabulary([corpus], TokenizerConfig(vocab_size=300), tmp_path)
    shutil.copy(tmp_path / "joint.model", place)
    measure = make_measure("spbleu", "zh")
    assert "tok:flores200" in measure.definition
    assert 0 < measure.score(HYPOTHESES, pair(REFERENCES)).value < 100


@pytest.mark.usefixtures("own_variants")
@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (lambda language: None, "has the arguments"),
        (lambda *_: Measure("", ""), "returned Measure"),
        (lambda *_: Measure("", "", lambda *_: np.ones(1)), r"segments of shape \(1,\) for 1 sent"),
        (lambda *_: Measure("", "", lambda *_: np.full((1, 1), math.nan)), "all finite: False"),
    ],
)
def test_wrong_measure_is_refused_with_what_is_expected(function: Any, fault: str) -> None:
    def register_and_score() -> None:
        register(MEASURE_FIELD, "own")(function)
        make_measure("own", "de").score(["a"], pair(["a"]))

    with pytest.raises(ConfigError, match=rf"evaluation\.measure='own': .*{fault}.*; expected \("):
        register_and_score()


@pytest.mark.usefixtures("own_variants")
def test_registered_measure_gets_the_model_that_it_needs() -> None:
    models = {"own": Path("runs/judge")}
    TextRequest(measures=("bleu", "own"), measure_model=models)  # before its plugin is imported

    @register(MEASURE_FIELD, "own")
    def own(language: str, num_references: int, *, model: Path) -> Measure:
        del language, num_references
        return Measure("", f"by {model.name}", lambda *_: np.ones((1, 2)))

    assert make_measure("own", "de", models=models).definition == "by judge"
    with pytest.raises(ConfigError, match="measure own needs --measure_model=own=RUN, the run of"):
        make_measure("own", "de")
    for given, chosen in (({}, ["bleu"]), (models, ["bleu", "own"])):
        assert choose_measures(["default"], ["bleu", "own", "metricx"], "de", given) == chosen
    with pytest.raises(ConfigError, match="measure mine is unknown; use some of default, bleu"):
        choose_measures(["default"], ["bleu"], "de", {"mine": Path("run")})


def test_documents_are_resampled_whole() -> None:
    """Sentences that are alike within a document say no more than one of them."""
    hypotheses, measure = ["right", "wrong"] * 40, make_measure("exact_match", "de")
    plain = measure.score(hypotheses, pair(["right"] * 80), with_interval=True)
    documents = pair(["right"] * 400)._replace(documents=np.repeat(np.arange(80), 5))
    repeated = [line for line in hypotheses for _ in range(5)]
    whole = measure.score(repeated, documents, with_interval=True)
    assert (whole.interval, whole.value) == (plain.interval, plain.value)
