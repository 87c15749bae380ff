"""Word order: separable verbs, negation, objects and adverbs, relative clauses."""

from dataclasses import replace

import pytest

from t2t.phrasebook.clauses import Clause, Complement, Order, relative_clause
from t2t.phrasebook.entries import Case, Slot
from t2t.phrasebook.noun_phrases import HE, SHE, THEY, WE, I, Nominal, NounPhrase
from t2t.phrasebook.text import NOTHING, Text, punctuate
from tests.phrasebook.phrases import clause, phrase, verb

BARE = Slot("", "", "akk", ())
TEACHER, PUPIL, BOY = phrase("teacher"), phrase("pupil"), phrase("boy")
BOOK, A_BOOK = phrase("book"), phrase("book", "a")
YESTERDAY, OUTSIDE = Text("yesterday", "gestern"), Text("in the garden", "im Garten")


@pytest.mark.parametrize(
    ("order", "front", "german"),
    [
        ("second", NOTHING, "der Lehrer ruft den Schüler an"),
        ("second", YESTERDAY, "gestern ruft der Lehrer den Schüler an"),
        ("first", NOTHING, "ruft der Lehrer den Schüler an"),
        ("last", NOTHING, "der Lehrer den Schüler anruft ,"),
        ("infinitive", NOTHING, "den Schüler anzurufen ,"),
    ],
)
def test_separable_verb_in_each_order(order: Order, front: Text, german: str) -> None:
    assert clause("anrufen", TEACHER, PUPIL, front=front).german(order) == german


@pytest.mark.parametrize(
    ("tense", "second", "last"),
    [
        ("past", "der Lehrer hat den Schüler angerufen", "den Schüler angerufen hat"),
        ("will", "der Lehrer wird den Schüler anrufen", "den Schüler anrufen wird"),
        ("have to", "der Lehrer muss den Schüler anrufen", "den Schüler anrufen muss"),
        ("progressive", "der Lehrer ruft gerade den Schüler an", "gerade den Schüler anruft"),
    ],
)
def test_sentence_bracket_closes_last(tense: str, second: str, last: str) -> None:
    call = clause("anrufen", TEACHER, PUPIL, tense=tense)
    assert call.german() == second
    assert call.german("last") == f"der Lehrer {last} ,"


@pytest.mark.parametrize(
    ("said", "english", "german"),
    [
        (
            clause("anrufen", TEACHER, PUPIL, negated=True, tense="past"),
            "the teacher did not call the pupil",
            "der Lehrer hat den Schüler nicht angerufen",
        ),
        (
            clause("anrufen", TEACHER, PUPIL, negated=True),
            "the teacher does not call the pupil",
            "der Lehrer ruft den Schüler nicht an",
        ),
        (
            clause("warten", TEACHER, PUPIL, negated=True),
            "the teacher does not wait for the pupil",
            "der Lehrer wartet nicht auf den Schüler",
        ),
        (
            clause("lesen", SHE, A_BOOK, negated=True),
            "she does not read a book",
            "sie liest kein Buch",
        ),
        (
            clause("helfen", HE, phrase("girl", "a"), negated=True),
            "he does not help a girl",
            "er hilft keinem Mädchen",
        ),
    ],
)
def test_nicht_precedes_what_it_denies_and_kein_something_new(
    said: Clause, english: str, german: str
) -> None:
    assert said.text() == (english, german)


@pytest.mark.parametrize(
    ("said", "english", "german"),
    [
        (
            clause("liegen", phrase("cat"), phrase("table")),
            "the cat lies on the table",
            "die Katze liegt auf dem Tisch",
        ),
        (
            clause("legen", SHE, BOOK, phrase("table")),
            "she puts the book on the table",
            "sie legt das Buch auf den Tisch",
        ),
        (
            clause("abholen", TEACHER, HE, tense="past", time=YESTERDAY),
            "the teacher picked him up yesterday",
            "der Lehrer hat ihn gestern abgeholt",
        ),
        (clause("helfen", I, THEY), "I help them", "ich helfe ihnen"),
        (
            clause("geben", SHE, BOY, A_BOOK, tense="past"),
            "she gave the boy a book",
            "sie hat dem Jungen ein Buch gegeben",
        ),
        (
            clause("lesen", SHE, BOOK, place=OUTSIDE),
            "she reads the book in the garden",
            "sie liest das Buch im Garten",
        ),
        (
            clause("lesen", SHE, A_BOOK, place=OUTSIDE),
            "she reads a book in the garden",
            "sie liest im Garten ein Buch",
        ),
        (
            clause("lesen", SHE, A_BOOK, front=OUTSIDE),
            "in the garden she reads a book",
            "im Garten liest sie ein Buch",
        ),
    ],
)
def test_objects_and_adverbs_have_their_places(said: Clause, english: str, german: str) -> None:
    assert said.text() == (english, german)


def test_questions_invert_in_both_languages() -> None:
    asked = clause("lesen", SHE, BOOK, front=Text("why", "warum"))
    assert asked.text("first") == ("why does she read the book", "warum liest sie das Buch")


@pytest.mark.parametrize(
    ("preposition", "case", "place", "german"),
    [
        ("in", "dat", "garden", "im Garten"),
        ("in", "akk", "house", "ins Haus"),
        ("in", "akk", "kitchen", "in die Küche"),
        ("zu", "dat", "school", "zur Schule"),
        ("zu", "dat", "station", "zum Bahnhof"),
    ],
)
def test_articles_contract_with_prepositions(
    preposition: str, case: Case, place: str, german: str
) -> None:
    assert Complement(phrase(place), Slot("", preposition, case, ())).german_core() == german


@pytest.mark.parametrize(
    ("head", "german_verb", "subject", "english", "german"),
    [
        (phrase("man"), "schlafen", None, "the man who sleeps", "der Mann, der schläft"),
        (phrase("man"), "helfen", I, "the man whom I help", "der Mann, dem ich helfe"),
        (
            phrase("child", plural=True),
            "helfen",
            I,
            "the children whom I help",
            "die Kinder, denen ich helfe",
        ),
        (phrase("dog"), "sehen", I, "the dog that I see", "der Hund, den ich sehe"),
        (
            phrase("bus"),
            "warten",
            WE,
            "the bus for which we wait",
            "der Bus, auf den wir warten",
        ),
    ],
)
def test_relative_pronouns_take_gender_and_case(
    head: NounPhrase, german_verb: str, subject: Nominal | None, english: str, german: str
) -> None:
    word = verb(german_verb)
    relative = relative_clause(
        head, Clause(subject or head, word), word.frames[0][0] if subject else None
    )
    said = replace(head, relative=relative)
    assert said.english() == english
    assert said.german("nom") == german.replace(",", " ,") + " ,"


def test_article_before_a_relative_clause_does_not_contract() -> None:
    seen = Clause(WE, verb("sehen"))
    garden = phrase("garden", relative=relative_clause(phrase("garden"), seen, BARE))
    assert Complement(garden, Slot("in", "in", "dat", ())).german_core() == "in dem Garten"


def test_relative_clause_of_the_subject_is_closed_by_a_comma() -> None:
    man = phrase("man", relative=relative_clause(phrase("man"), clause("schlafen", phrase("man"))))
    assert punctuate(clause("haben", man, phrase("dog", "a")).text()) == (
        "The man who sleeps has a dog.",
        "Der Mann, der schläft, hat einen Hund.",
    )
