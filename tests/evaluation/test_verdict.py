"""The sentence that people read."""

import dataclasses
import math

import numpy as np

from t2t.evaluation.significance import Comparison, Judgement, SystemScore
from t2t.evaluation.verdict import describe, describe_all

CLEAR = Comparison((30.0, 31.5), True, (1, 1), 0.5, None, (0.52, 2.48), 0.0027, 0.0027)
UNCLEAR = Comparison((30.0, 30.25), True, (3, 1), 0.9, 0.2, (-1.5, 2.0), 0.4, 0.4)


def make_score(value: float) -> SystemScore:
    return SystemScore(value, (value,), (value, value), None, 1000, np.zeros((0, 1)))


def say(comparison: Comparison) -> str:
    return describe(comparison, ("old", "new"), "bleu", 1000)


def test_single_runs_say_that_the_seed_is_not_covered() -> None:
    assert say(CLEAR) == (
        "new is better than old: 31.5 bleu against 30, +1.5 (95% interval +0.52 to +2.48, "
        "two-sided p = 0.0027; standard error 0.5 from 1000 sentences). This covers only the "
        "choice of the sentences: with one run per system the variance over seeds is unknown, and "
        "another seed may give another verdict."
    )
    assert "two-sided p < 1e-6;" in say(dataclasses.replace(CLEAR, p_value=0.0, adjusted=0.0))


def test_seeds_and_sentences_are_both_named() -> None:
    text = say(UNCLEAR)
    assert (
        "standard error 0.2 from 3 and 1 seeds on these 1000 sentences, an additional 0.9 from the "
        "choice of the sentences"
    ) in text
    assert text.endswith(
        "This covers the choice of the sentences and of the seeds, if both vary equally over "
        "seeds: new has one run."
    )
    text = say(dataclasses.replace(UNCLEAR, num_seeds=(3, 3)))
    assert text.endswith("This covers the choice of the sentences and of the seeds.")


def test_unclear_difference_says_what_would_show_it() -> None:
    text = say(dataclasses.replace(UNCLEAR, seed_error=None))
    assert text.startswith("new is not distinguishable from old: 30.25 bleu against 30, +0.25")
    assert "Showing a difference of this size would take about 49,000 sentences." in text
    assert "More sentences would reduce the error more than more seeds." in say(UNCLEAR)
    seeds = dataclasses.replace(UNCLEAR, seed_error=1.0)
    assert "More seeds would reduce the error more than more sentences." in say(seeds)
    assert "would" not in say(dataclasses.replace(UNCLEAR, values=(30.0, 30.0)))


def test_untested_difference_says_why() -> None:
    undefined = dataclasses.replace(CLEAR, p_value=math.nan, adjusted=math.nan, interval=None)
    assert describe(undefined, ("old", "new"), "bleu", 29) == (
        "No verdict on new: 31.5 bleu against 30, +1.5. Resamples of fewer than 30 sentences do "
        "not show how scores vary."
    )
    assert say(undefined).endswith("do not vary over resamples of the sentences.")


def test_several_comparisons_are_corrected_and_say_so() -> None:
    corrected = dataclasses.replace(CLEAR, adjusted=0.0054)
    scores = dict.fromkeys("abc", make_score(20.0))
    lines = describe_all(Judgement(scores, {"b": corrected, "c": UNCLEAR}), "bleu")
    assert "two-sided p = 0.0027, 0.0054 with Holm's correction;" in lines[0]
    assert lines[2].startswith("These 2 comparisons are judged together")
    assert lines[2].endswith("as far as the choice of the sentences goes.")


def test_verdict_between_systems_that_translate_nothing_says_so() -> None:
    def list_lines(measure: str, *values: float) -> list[str]:
        scores = dict(zip("abc", map(make_score, values), strict=False))
        comparisons = dict.fromkeys([*scores][1:], CLEAR)
        return describe_all(Judgement(scores, comparisons), measure)

    assert list_lines("bleu", 0.0, 0.03)[1].startswith("a and b have less than 1 BLEU: they tran")
    assert list_lines("bleu", 0.0, 0.03, 0.2)[2].startswith("a, b and c have less than 1 BLEU")
    assert len(list_lines("bleu", 20.0, 0.03)) == 1
    assert len(list_lines("nats per sub-word", 0.5, 0.6)) == 1
