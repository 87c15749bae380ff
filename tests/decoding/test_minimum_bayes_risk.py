"""Minimum Bayes risk against sacreBLEU's own sentence scores."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import sacremoses
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from t2t.config import variants
from t2t.decoding.minimum_bayes_risk import choose_by_utility
from t2t.decoding.translation import Translation
from t2t.evaluation.load_models import make_utility
from t2t.evaluation.measure import Measure
from t2t.evaluation.text_measures import make_measure

TEXTS = [
    "Ein Mädchen klettert.", "Ein Mädchen klettert auf ein Haus.", "Das Mädchen klettert!", "",
    "Hund", "Ein Hund, ein Hund und noch ein Hund.", "x",
]  # fmt: skip


def make(text: str, log_prob: float = -1.0) -> Translation:
    return Translation(text, log_prob, log_prob, 3)


def score_pairs(name: str, texts: list[str]) -> np.ndarray:
    """In a loop, by sacreBLEU; a text with itself has the best score, also an empty one."""
    metric = make_measure(name, "de").metric
    assert metric
    if isinstance(metric, BLEU):
        metric.effective_order = True
    found = [[metric.sentence_score(text, [other]).score for other in texts] for text in texts]
    sign = -1 if name == "ter" else 1
    return np.where(np.eye(len(texts)) > 0, 0 if name == "ter" else 100, sign * np.array(found))


@pytest.mark.parametrize("name", ["chrf", "bleu", "chrf++", "ter"])
def test_utilities_are_the_sentence_scores_of_sacrebleu(name: str) -> None:
    """The last one by the way of any measure."""
    found = make_utility(name, "de")("", TEXTS)
    assert found == pytest.approx(score_pairs(name, TEXTS))


@pytest.mark.parametrize("name", ["chrf", "bleu"])
@pytest.mark.parametrize("sampled", [True, False])
def test_choice_is_that_of_a_loop_over_all_pairs(name: str, sampled: bool) -> None:
    utility, rng = make_utility(name, "de"), np.random.default_rng(0)
    words = "ein Hund eine Katze läuft und schläft im Haus".split()
    for _ in range(20):
        texts = [" ".join(rng.choice(words, rng.integers(1, 6))) for _ in range(8)]
        texts += texts[:3]  # samples may repeat
        candidates = [make(text, float(rng.normal())) for text in texts]
        weights = [1.0 if sampled else np.exp(each.log_prob) for each in candidates]
        expected = [*score_pairs(name, texts) @ weights]
        found = choose_by_utility(candidates, functools.partial(utility, ""), sampled)
        assert expected[candidates.index(found)] == pytest.approx(max(expected))


def test_most_frequent_sample_wins_over_an_outlier_and_of_equals_the_first() -> None:
    utility = functools.partial(make_utility("chrf", "de"), "")
    common, outlier = make("Zwei Hunde laufen."), make("Nichts")
    candidates = [outlier, common, make("Zwei Hunde rannten."), common]
    assert choose_by_utility(candidates, utility, True) is common
    same = [make("", -2.0), make("", -1.0)]
    assert choose_by_utility([*same, make("x")], utility, True) is same[0]
    assert choose_by_utility(same, utility, True) is same[0]


@pytest.mark.usefixtures("own_variants")
def test_measure_of_a_plugin_is_a_utility_that_knows_the_source() -> None:

    @variants.register("evaluation.measure", "closest")
    def make_closest(tgt_language: str, num_references: int) -> Measure:
        """Errors are characters more or less than the source has; references do not count."""

        def segments(sources: Any, hypotheses: Any, references: Any) -> Any:
            assert len(references) == num_references == 1
            lines = zip(sources, hypotheses, strict=True)
            return [[abs(len(source) - len(found)), 1] for source, found in lines]

        return Measure("closest", f"{tgt_language}, 1", segments, higher_is_better=False)

    assert "closest" in variants.choices("decoding.mbr")
    utility = make_utility("closest", "de")
    candidates = [make("a"), make("abc"), make("abcdef")]
    for source, best in (("1234", 1), ("12345", 2)):
        chosen = choose_by_utility(candidates, functools.partial(utility, source), True)
        assert chosen is candidates[best]


@pytest.mark.usefixtures("own_variants")
def test_measure_of_a_plugin_keeps_what_it_does_to_the_text_and_to_the_score() -> None:
    """Though it is made of sacreBLEU's metric, whose utilities are computed another way."""

    @variants.register("evaluation.measure", "treated")
    def make_treated(tgt_language: str, num_references: int) -> Measure:
        return make_measure("bleu_multi30k", tgt_language, num_references)

    @variants.register("evaluation.measure", "errors")
    def make_errors(tgt_language: str, num_references: int) -> Measure:
        chrf = make_measure("chrf", tgt_language, num_references)

        def segments(sources: Any, hypotheses: Any, references: Any) -> Any:
            assert chrf.segments
            reverse = [text[::-1] for text in hypotheses]
            return chrf.segments(sources, reverse, references)

        return dataclasses.replace(
            chrf,
            segments=segments,
            aggregate=lambda sums: 100 - chrf.aggregate(sums),
            higher_is_better=False,
        )

    texts = ["Die Katze, die schläft!", "die katze , die schläft !", "Der Hund bellt die Katze an."]
    moses = sacremoses.MosesTokenizer("de")
    treated = [moses.tokenize(text.lower(), return_str=True, escape=False) for text in texts]
    plain = BLEU(tokenize="none", smooth_method="none", effective_order=True)
    expected = [[plain.sentence_score(one, [other]).score for other in treated] for one in treated]
    assert expected[0][1] == pytest.approx(100)
    assert make_utility("treated", "de")("", texts) == pytest.approx(np.array(expected))
    chrf = CHRF()
    scores = [[chrf.sentence_score(one[::-1], [other]).score for other in texts] for one in texts]
    assert make_utility("errors", "de")("", texts) == pytest.approx(np.array(scores) - 100)
