"""Predicates: tense, agreement and modals, as they appear in a clause."""

import pytest

from t2t.phrasebook.clauses import Clause
from t2t.phrasebook.noun_phrases import HE, WE, YOU, I, Name
from t2t.phrasebook.text import Text
from t2t.phrasebook.verbs import BE, english_gerund, english_third
from tests.phrasebook.phrases import clause, phrase


@pytest.mark.parametrize(
    ("said", "english", "german"),
    [
        (clause("singen", I, tense="want to"), "I want to sing", "ich will singen"),
        (clause("singen", YOU, tense="want to"), "you want to sing", "Sie wollen singen"),
        (clause("singen", Name("Eva"), tense="want to"), "Eva wants to sing", "Eva will singen"),
        (clause("füttern", I, phrase("dog")), "I feed the dog", "ich füttere den Hund"),
        (clause("singen", I, tense="will"), "I will sing", "ich werde singen"),
    ],
)
def test_verbs_agree_with_their_subject(said: Clause, english: str, german: str) -> None:
    assert said.text() == (english, german)


@pytest.mark.parametrize(
    ("said", "english", "german"),
    [
        (
            clause("gehen", I, phrase("garden"), tense="past"),
            "I went into the garden",
            "ich bin in den Garten gegangen",
        ),
        (clause("haben", I, phrase("dog"), tense="past"), "I had the dog", "ich hatte den Hund"),
        (
            Clause(WE, BE, "past", rest=Text("old", "alt"), negated=True),
            "we were not old",
            "wir waren nicht alt",
        ),
    ],
)
def test_past_is_the_perfect_but_for_have_and_be(said: Clause, english: str, german: str) -> None:
    assert said.text() == (english, german)


def test_must_not_and_does_not_have_to_differ() -> None:
    may = clause("singen", HE, tense="may", negated=True)
    must = clause("singen", HE, tense="have to", negated=True)
    assert may.text() == ("he must not sing", "er darf nicht singen")
    assert must.text() == ("he does not have to sing", "er muss nicht singen")


def test_english_spelling_follows_the_ending() -> None:
    verbs = ("watch", "try", "buy", "have", "lie", "dance", "see", "swim")
    assert [english_third(verb) for verb in verbs[:4]] == ["watches", "tries", "buys", "has"]
    gerunds = ["lying", "dancing", "seeing", "swimming"]
    assert [english_gerund(verb) for verb in verbs[4:]] == gerunds
