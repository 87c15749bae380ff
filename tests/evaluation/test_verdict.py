"""The sentence that people read."""

from t2t.evaluation.significance import Comparison, Evidence
from t2t.evaluation.verdict import say

CLEAR = Evidence((0.5, 2.5), 0.002)
UNCLEAR = Evidence((-1.5, 2.0), 0.4)


def judge(
    sentences: Evidence, seeds: Evidence | None = None, better: bool = True, difference: float = 1.5
) -> str:
    comparison = Comparison(difference, better, sentences, seeds)
    return say(comparison, ("old", "new"), "bleu", 1000, (3, 1) if seeds else (1, 1))


def test_single_runs_say_that_the_seed_is_not_covered() -> None:
    assert judge(CLEAR) == (
        "new is better than old: +1.50 bleu (95% interval +0.50 to +2.50, p = 0.002, paired "
        "bootstrap over 1000 sentences). This covers the choice of the sentences, not that of the "
        "seed: with one run an arm, another seed may give another verdict."
    )
    assert judge(CLEAR, better=False).startswith("new is worse than old: +1.50 bleu")


def test_seeds_and_sentences_are_both_named() -> None:
    text = judge(CLEAR, CLEAR)
    assert "p = 0.002, t-test over 1 and 3 seeds)" in text
    assert text.endswith("This covers the choice of the sentences and of the seeds.")


def test_unclear_difference_says_what_would_show_it() -> None:
    text = judge(UNCLEAR, difference=0.25)
    assert text.startswith("new is not distinguishable from old with these 1000 sentences: +0.25")
    assert text.endswith("To show a difference of this size would take about 49,000 sentences.")
    assert judge(UNCLEAR, difference=0.0).endswith("sentences).")
    assert judge(CLEAR, UNCLEAR).endswith("More seeds would tell.")
    assert "from old with so few seeds: " in judge(CLEAR, UNCLEAR)
    assert "with these 1000 sentences and with so few seeds: " in judge(UNCLEAR, UNCLEAR)


def test_interval_and_p_value_have_to_agree() -> None:
    assert not Evidence((-0.1, 2.0), 0.04).convincing
    assert not Evidence((0.1, 2.0), 0.06).convincing
    assert Evidence((-2.0, -0.1), 0.02).convincing
