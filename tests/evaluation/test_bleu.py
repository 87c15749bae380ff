"""The measures against a naive BLEU and against text treated by hand."""

import math
from collections import Counter

import pytest

from t2t.evaluation.bleu import score_bleu, score_corpus

HYPOTHESES = ["Der rot-weiße Ball liegt im Gras .", "Zwei Hunde laufen am Meer .", ""]
REFERENCES = ["Der rot-weiße Ball liegt im Sand .", "Zwei Hunde laufen am Strand .", "Ein Kind ."]


def count_ngrams(words: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


def naive_bleu(hypotheses: list[str], references: list[str]) -> float:
    """Papineni et al. 2002: clipped precisions, geometric mean, brevity penalty."""
    log_precision = 0.0
    for order in range(1, 5):
        matches = total = 0
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            found = count_ngrams(hypothesis.split(), order)
            matches += (found & count_ngrams(reference.split(), order)).total()
            total += found.total()
        log_precision += math.log(matches / total) / 4
    length = sum(len(line.split()) for line in hypotheses)
    reference_length = sum(len(line.split()) for line in references)
    return 100 * math.exp(log_precision + min(0.0, 1 - reference_length / length))


def test_bleu_is_the_published_formula() -> None:
    hypotheses, references = (
        [line.replace("-", " ") for line in side] for side in (HYPOTHESES, REFERENCES)
    )
    score = score_bleu(hypotheses, references)["bleu"]
    assert score.value == pytest.approx(naive_bleu(hypotheses, references))
    assert score.definition.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_a_perfect_translation_has_100_in_all_measures() -> None:
    for score in score_corpus(REFERENCES, REFERENCES, "de").values():
        assert score.value == pytest.approx(100)


def test_case_counts_only_where_the_definition_says_so() -> None:
    references = ["A girl climbs a tree .", "Two dogs run ."]
    scores = score_corpus([line.upper() for line in references], references, "en")
    assert scores["bleu_lowercase"].value == pytest.approx(100)
    assert scores["bleu_multi30k"].value == pytest.approx(100)
    assert scores["bleu"].value < 50
    assert scores["bleu_paper"].value < 50


def test_compounds_count_as_parts_in_the_papers_measure_and_as_one_word_in_multi30ks() -> None:
    def treat(lines: list[str], compound: str) -> list[str]:
        return [line.replace("rot-weiße", compound) for line in lines]

    def expected(compound: str) -> float:
        return naive_bleu(treat(HYPOTHESES, compound), treat(REFERENCES, compound))

    scores = score_corpus(HYPOTHESES, REFERENCES, "de")
    assert scores["bleu_paper"].value == pytest.approx(expected("rot ##AT##-##AT## weiße"))
    assert scores["bleu_multi30k"].value == pytest.approx(expected("rot-weiße"))
    assert "compounds split" in scores["bleu_paper"].definition
    french = score_corpus(HYPOTHESES, REFERENCES, "fr")["bleu_paper"]
    assert french.value == pytest.approx(expected("rot-weiße"))
    assert "compounds split" not in french.definition


def test_text_is_tokenised_as_moses_does() -> None:
    """Quotation marks and full stops become words of their own, typographic marks plain ones."""
    scores = score_corpus(["Er sagt “ja”."], ['Er sagt "ja".'], "de")
    assert scores["bleu_multi30k"].value == pytest.approx(100)
    assert scores["bleu_paper"].value == pytest.approx(100)
    assert scores["bleu_multi30k"].definition.startswith("lower-cased, Moses punctuation")
    assert "tok:none|smooth:none" in scores["bleu_multi30k"].definition


def test_published_measures_are_not_smoothed() -> None:
    scores = score_corpus(["Ein Hund bellt laut ."], ["Ein Kind bellt leise ."], "de")
    assert scores["bleu"].value > 0
    assert scores["bleu_multi30k"].value == 0
    assert scores["bleu_paper"].value == 0


@pytest.mark.parametrize(("hypotheses", "references"), [(["a"], ["a", "b"]), ([], []), (["a"], [])])
def test_each_reference_needs_its_hypothesis(hypotheses: list[str], references: list[str]) -> None:
    with pytest.raises(ValueError, match=f"{len(hypotheses)} hypotheses and {len(references)} ref"):
        score_corpus(hypotheses, references, "de")
