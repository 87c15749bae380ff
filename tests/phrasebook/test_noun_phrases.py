"""Noun phrases in all their cases, and pronouns."""

import pytest

from t2t.phrasebook.entries import Case
from t2t.phrasebook.noun_phrases import IT, Name, NounPhrase
from tests.phrasebook.phrases import adjective, phrase


@pytest.mark.parametrize(
    ("nominal", "german"),
    [
        (phrase("dog"), "der Hund | den Hund | dem Hund | des Hundes"),
        (phrase("boy"), "der Junge | den Jungen | dem Jungen | des Jungen"),
        (phrase("neighbour"), "der Nachbar | den Nachbarn | dem Nachbarn | des Nachbarn"),
        (phrase("child", plural=True), "die Kinder | die Kinder | den Kindern | der Kinder"),
        (phrase("car", plural=True), "die Autos | die Autos | den Autos | der Autos"),
        (
            phrase("coat", "a", adjective=adjective("expensive")),
            "ein teurer Mantel | einen teuren Mantel | einem teuren Mantel | eines teuren Mantels",
        ),
        (
            phrase("girl", "a", adjective=adjective("tired")),
            "ein müdes Mädchen | ein müdes Mädchen | einem müden Mädchen | eines müden Mädchens",
        ),
        (
            phrase("milk", "", adjective=adjective("cold")),
            "kalte Milch | kalte Milch | kalter Milch | kalter Milch",
        ),
        (
            phrase("pupil", "", plural=True, count=3, adjective=adjective("clever")),
            "drei kluge Schüler | drei kluge Schüler | drei klugen Schülern | drei kluger Schüler",
        ),
        (
            phrase("book", "this", adjective=adjective("old")),
            "dieses alte Buch | dieses alte Buch | diesem alten Buch | dieses alten Buches",
        ),
        (
            phrase("sister", "our"),
            "unsere Schwester | unsere Schwester | unserer Schwester | unserer Schwester",
        ),
        (
            phrase("car", owner=Name("Anna"), adjective=adjective("old")),
            "Annas altes Auto | Annas altes Auto | Annas altem Auto | Annas alten Autos",
        ),
        (
            phrase("car", owner=phrase("brother", "my")),
            "das Auto meines Bruders | das Auto meines Bruders | dem Auto meines Bruders "
            "| des Autos meines Bruders",
        ),
    ],
)
def test_noun_phrases_agree_in_gender_number_and_case(nominal: NounPhrase, german: str) -> None:
    cases: tuple[Case, ...] = ("nom", "akk", "dat", "gen")
    assert " | ".join(nominal.german(case) for case in cases) == german


@pytest.mark.parametrize(
    ("nominal", "english"),
    [
        (phrase("apple", "a"), "an apple"),
        (phrase("knife", "this", plural=True), "these knives"),
        (phrase("kitchen shelf", "", plural=True, count=2), "two kitchen shelves"),
        (phrase("car", owner=phrase("brother", "my")), "my brother's car"),
    ],
)
def test_english_has_its_own_irregular_forms(nominal: NounPhrase, english: str) -> None:
    assert nominal.english() == english


def test_it_has_the_gender_of_the_german_noun() -> None:
    forms = [IT[phrase(thing).key].german("akk") for thing in ("letter", "newspaper", "book")]
    assert forms == ["ihn", "sie", "es"]
