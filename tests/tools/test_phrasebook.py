"""The grammar of the phrasebook, and the file that it makes."""

import gzip
from typing import Any

import pytest

from tools.phrasebook.__main__ import OUTPUT, make_rows
from tools.phrasebook.clauses import Clause, Complement, relative_clause
from tools.phrasebook.entries import ADJECTIVES, COMPOUNDS, NOUNS, VERBS, Case, Verb
from tools.phrasebook.generation import SIZES
from tools.phrasebook.noun_alignments import find_links
from tools.phrasebook.noun_phrases import HE, SHE, WE, I, Name, Nominal, NounPhrase
from tools.phrasebook.numbers import clock_time, english_number, german_number, year
from tools.phrasebook.skeletons import list_skeletons
from tools.phrasebook.splits import is_held_out
from tools.phrasebook.text import Text


@pytest.fixture(scope="module")
def rows() -> list[str]:
    return gzip.decompress(OUTPUT.read_bytes()).decode().splitlines(keepends=True)


@pytest.mark.parametrize("size", [20, pytest.param(None, marks=pytest.mark.slow)])
def test_grammar_makes_the_rows_of_the_package(rows: list[str], size: int | None) -> None:
    """Rows, not compressed bytes, which another version of zlib may make differently."""
    for split, whole in SIZES.items():
        found = [row for row in rows if row.startswith(f"{split}\t")]
        assert len(found) == whole
        assert make_rows(split, size or whole) == found[:size]


def test_train_has_none_of_the_held_out_compounds(rows: list[str]) -> None:
    held_out = {noun.german.lower() for noun in COMPOUNDS if is_held_out(noun)}
    words: dict[str, set[str]] = {split: set() for split in SIZES}
    for row in rows:
        split, _, german, _ = row.split("\t")
        words[split].update(word.strip(".,?") for word in german.lower().split())
    assert not held_out & words["train"]
    assert len(held_out & words["test"]) > 10


def verb(german: str) -> Verb:
    return next(v for v in VERBS if v.prefix + v.german == german)


def phrase(
    english: str, determiner: str = "the", adjective: str = "", **features: Any
) -> NounPhrase:
    noun = next(n for n in (*NOUNS, *COMPOUNDS) if n.english == english)
    if adjective:
        features["adjective"] = next(a for a in ADJECTIVES if a.english == adjective)
    return NounPhrase(noun, determiner, **features)


def clause(german_verb: str, subject: Nominal, *objects: Nominal, **features: Any) -> Clause:
    """A clause in the first frame of the verb that has room for the objects."""
    word = verb(german_verb)
    frame = next(frame for frame in word.frames if len(frame) == len(objects))
    complements = tuple(map(Complement, objects, frame))
    return Clause(subject, word, complements=complements, **features)


CALL = "anrufen", phrase("teacher"), phrase("pupil")
YESTERDAY, OUTSIDE = Text("yesterday", "gestern"), Text("in the garden", "im Garten")


@pytest.mark.parametrize(
    ("said", "english", "german"),
    [
        (
            clause(*CALL, front=YESTERDAY),
            "yesterday the teacher calls the pupil",
            "gestern ruft der Lehrer den Schüler an",
        ),
        (
            clause(*CALL, negated=True, tense="past"),
            "the teacher did not call the pupil",
            "der Lehrer hat den Schüler nicht angerufen",
        ),
        (
            clause(*CALL, tense="have to"),
            "the teacher has to call the pupil",
            "der Lehrer muss den Schüler anrufen",
        ),
        (
            clause("helfen", HE, phrase("girl", "a"), negated=True),
            "he does not help a girl",
            "er hilft keinem Mädchen",
        ),
        (
            clause("legen", SHE, phrase("book"), phrase("table")),
            "she puts the book on the table",
            "sie legt das Buch auf den Tisch",
        ),
        (
            clause("geben", SHE, phrase("boy"), phrase("book", "a"), tense="past"),
            "she gave the boy a book",
            "sie hat dem Jungen ein Buch gegeben",
        ),
        (
            clause("lesen", SHE, phrase("book", "a"), place=OUTSIDE),
            "she reads a book in the garden",
            "sie liest im Garten ein Buch",
        ),
        (
            clause("gehen", I, phrase("garden"), tense="past"),
            "I went into the garden",
            "ich bin in den Garten gegangen",
        ),
        (
            clause("singen", HE, tense="may", negated=True),
            "he must not sing",
            "er darf nicht singen",
        ),
    ],
)
def test_clauses_have_the_word_order_of_each_language(
    said: Clause, english: str, german: str
) -> None:
    assert said.text() == (english, german)


@pytest.mark.parametrize(
    ("nominal", "german"),
    [
        (phrase("boy"), "der Junge | den Jungen | dem Jungen | des Jungen"),
        (phrase("child", plural=True), "die Kinder | die Kinder | den Kindern | der Kinder"),
        (
            phrase("coat", "a", "expensive"),
            "ein teurer Mantel | einen teuren Mantel | einem teuren Mantel | eines teuren Mantels",
        ),
        (
            phrase("pupil", "", "clever", plural=True, count=3),
            "drei kluge Schüler | drei kluge Schüler | drei klugen Schülern | drei kluger Schüler",
        ),
        (
            phrase("car", adjective="old", owner=Name("Anna")),
            "Annas altes Auto | Annas altes Auto | Annas altem Auto | Annas alten Autos",
        ),
    ],
)
def test_noun_phrases_agree_in_gender_number_and_case(nominal: NounPhrase, german: str) -> None:
    cases: tuple[Case, ...] = ("nom", "akk", "dat", "gen")
    assert " | ".join(nominal.german(case) for case in cases) == german


@pytest.mark.parametrize(
    ("head", "german_verb", "subject", "english", "german"),
    [
        ("man", "schlafen", None, "the man who sleeps", "der Mann , der schläft ,"),
        ("man", "helfen", I, "the man whom I help", "der Mann , dem ich helfe ,"),
        ("bus", "warten", WE, "the bus for which we wait", "der Bus , auf den wir warten ,"),
    ],
)
def test_relative_pronouns_take_gender_and_case(
    head: str, german_verb: str, subject: Nominal | None, english: str, german: str
) -> None:
    word = verb(german_verb)
    slot = word.frames[0][0] if subject else None
    relative = relative_clause(phrase(head), Clause(subject or phrase(head), word), slot)
    said = phrase(head, relative=relative)
    assert (said.english(), said.german("nom")) == (english, german)


def test_numbers_years_and_times_are_spelt_out() -> None:
    assert (english_number(342), german_number(342)) == (
        "three hundred forty-two",
        "dreihundertzweiundvierzig",
    )
    assert year(1906) == ("in nineteen oh six", "im Jahr neunzehnhundertsechs")
    assert clock_time(3, 30) == ("at half past three", "um halb vier")


def test_links_join_nouns_and_adjectives_that_occur_once() -> None:
    english = "The tired music student brought along the fresh tart.".split()
    german = "Der müde Musikstudent hat die frische Torte mitgebracht.".split()
    links = find_links(" ".join(english), " ".join(german))
    assert [(english[s], german[t]) for s, t in sorted(links)] == [
        ("tired", "müde"), ("student", "Musikstudent"), ("fresh", "frische"), ("tart.", "Torte"),
    ]  # fmt: skip
    assert find_links("The dog sees the dog.", "Der Hund sieht den Hund.") == set()


def test_skeletons_tell_what_agrees_from_what_does_not() -> None:
    """Other words with the same inflection make no difference."""
    right = list_skeletons("Der Mann, der den kleinen Hund sieht, schläft.")
    assert right == list_skeletons("Der Vater, der den großen Stuhl kauft, schläft.")
    for wrong in (
        "Der Mann, die den kleinen Hund sieht, schläft.",
        "Der Mann, der der kleinen Hund sieht, schläft.",
        "Der Mann, der den kleines Hund sieht, schläft.",
        "Der Mann, der den kleinen Hund sehen, schläft.",
    ):
        assert list_skeletons(wrong) != right
