"""Minimum Bayes risk against sacreBLEU's own sentence scores."""

import numpy as np
import pytest

from t2t.decoding.minimum_bayes_risk import choose_by_utility, compute_utilities
from t2t.decoding.translation import Translation
from t2t.evaluation.measures import make_utility

TEXTS = [
    "Ein Mädchen klettert.", "Ein Mädchen klettert auf ein Haus.", "Das Mädchen klettert!", "",
    "Hund", "Ein Hund, ein Hund und noch ein Hund.", "x",
]  # fmt: skip


def make(text: str, log_prob: float = -1.0) -> Translation:
    return Translation(text, log_prob, log_prob, 3)


@pytest.mark.parametrize("name", ["chrf", "bleu"])
def test_utilities_are_the_sentence_scores_of_sacrebleu(name: str) -> None:
    metric = make_utility(name, "de")
    found = compute_utilities(TEXTS, metric)
    for row, hypothesis in enumerate(TEXTS):
        for column, reference in enumerate(TEXTS):
            expected = metric.sentence_score(hypothesis, [reference]).score
            assert found[row, column] == pytest.approx(expected), (hypothesis, reference)


@pytest.mark.parametrize("name", ["chrf", "bleu"])
@pytest.mark.parametrize("sampled", [True, False])
def test_choice_is_that_of_a_loop_over_all_pairs(name: str, sampled: bool) -> None:
    metric, rng = make_utility(name, "de"), np.random.default_rng(0)
    words = "ein Hund eine Katze läuft und schläft im Haus".split()
    for _ in range(20):
        texts = [" ".join(rng.choice(words, rng.integers(1, 6))) for _ in range(8)]
        texts += texts[:3]  # samples may repeat
        candidates = [make(text, float(rng.normal())) for text in texts]
        expected = [
            sum(
                (1.0 if sampled else np.exp(other.log_prob))
                * metric.sentence_score(each.text, [other.text]).score
                for other in candidates
            )
            for each in candidates
        ]
        found = choose_by_utility(candidates, metric, sampled)
        assert expected[candidates.index(found)] == pytest.approx(max(expected))


def test_most_frequent_sample_wins_over_an_outlier_and_of_equals_the_first() -> None:
    metric = make_utility("chrf", "de")
    common, outlier = make("Zwei Hunde laufen."), make("Nichts")
    assert (
        choose_by_utility([outlier, common, make("Zwei Hunde rannten."), common], metric, True)
        is common
    )
    same = [make("Hund", -2.0), make("Hund", -1.0)]
    assert choose_by_utility(same, metric, True) is same[0]
    assert choose_by_utility([make("")], metric, True).text == ""
    assert choose_by_utility([*[make("")] * 5, make("x")], metric, True).text == ""
