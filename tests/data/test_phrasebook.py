"""The phrasebook: its German, phenomenon by phenomenon, and the promises of its splits."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from t2t.data import phrasebook as pb
from t2t.data.phrasebook_lexicon import (
    ADJECTIVES,
    COMPOUNDS,
    NOUNS,
    VERBS,
    Adjective,
    Case,
    Noun,
    Slot,
    Verb,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def splits() -> dict[str, list[tuple[str, str]]]:
    """All splits at full size, from another process: checked at run time they would be slow."""
    program = (
        "import json; from t2t.data.phrasebook import SIZES, generate; "
        "print(json.dumps({split: generate(split) for split in SIZES}))"
    )
    corpus = json.loads(run_python(program))
    return {split: [(en, de) for en, de in pairs] for split, pairs in corpus.items()}


def run_python(program: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def noun(english: str) -> Noun:
    return next(n for n in (*NOUNS, *COMPOUNDS) if n.english == english)


def adjective(english: str) -> Adjective:
    return next(a for a in ADJECTIVES if a.english == english)


def verb(german: str) -> Verb:
    return next(v for v in VERBS if v.prefix + v.german == german)


def phrase(english: str, determiner: str = "the", **features: Any) -> pb.NounPhrase:
    return replace(pb.NounPhrase(noun(english), determiner), **features)


def clause(
    german_verb: str, subject: pb.Nominal | None, *objects: pb.Nominal, **features: Any
) -> pb.Clause:
    """A clause in the first frame of the verb that has room for the objects."""
    word = verb(german_verb)
    frame = next(frame for frame in word.frames if len(frame) == len(objects))
    complements = tuple(map(pb.Complement, objects, frame))
    return replace(pb.Clause(subject, word, complements=complements), **features)


TEACHER, PUPIL, BOY = phrase("teacher"), phrase("pupil"), phrase("boy")


@pytest.mark.parametrize(
    ("n", "english", "german"),
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (12, "twelve", "zwölf"),
        (16, "sixteen", "sechzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (77, "seventy-seven", "siebenundsiebzig"),
        (101, "one hundred one", "einhunderteins"),
        (342, "three hundred forty-two", "dreihundertzweiundvierzig"),
        (1000, "one thousand", "eintausend"),
        (2017, "two thousand seventeen", "zweitausendsiebzehn"),
        (
            9999,
            "nine thousand nine hundred ninety-nine",
            "neuntausendneunhundertneunundneunzig",
        ),
    ],
)
def test_numbers_are_spelt_out(n: int, english: str, german: str) -> None:
    assert (pb.english_number(n), pb.german_number(n)) == (english, german)


def test_number_words_are_distinct() -> None:
    assert len({pb.english_number(n) for n in range(10_000)}) == 10_000
    assert len({pb.german_number(n) for n in range(10_000)}) == 10_000


def test_years_count_hundreds_until_1999() -> None:
    assert pb.year(1984) == ("in nineteen eighty-four", "im Jahr neunzehnhundertvierundachtzig")
    assert pb.year(1900) == ("in nineteen hundred", "im Jahr neunzehnhundert")
    assert pb.year(2005) == ("in two thousand five", "im Jahr zweitausendfünf")


def test_half_hours_look_forward_in_german() -> None:
    assert pb.clock_time(1, 0) == ("at one o'clock", "um ein Uhr")
    assert pb.clock_time(3, 30) == ("at half past three", "um halb vier")
    assert pb.clock_time(12, 45) == ("at quarter to one", "um Viertel vor eins")
    with pytest.raises(ValueError, match="minutes=20"):
        pb.clock_time(3, 20)


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
            phrase("car", owner=pb.Name("Anna"), adjective=adjective("old")),
            "Annas altes Auto | Annas altes Auto | Annas altem Auto | Annas alten Autos",
        ),
        (
            phrase("car", owner=phrase("brother", "my")),
            "das Auto meines Bruders | das Auto meines Bruders | dem Auto meines Bruders "
            "| des Autos meines Bruders",
        ),
    ],
)
def test_noun_phrases_agree_in_gender_number_and_case(nominal: pb.NounPhrase, german: str) -> None:
    cases: tuple[Case, ...] = ("nom", "akk", "dat", "gen")
    assert " | ".join(nominal.german(case) for case in cases) == german


@pytest.mark.parametrize(
    ("english", "german"),
    [
        ("kitchen table", "der Küchentisch"),
        ("school clock", "die Schuluhr"),
        ("history book", "das Geschichtsbuch"),
        ("cherry juice", "der Kirschsaft"),
        ("silk dress", "das Seidenkleid"),
        ("art student", "der Kunststudent"),
    ],
)
def test_compounds_link_and_take_the_gender_of_the_head(english: str, german: str) -> None:
    assert phrase(english).german("nom") == german


def test_compounds_of_weak_nouns_are_weak() -> None:
    assert phrase("art student").german("akk") == "den Kunststudenten"


@pytest.mark.parametrize(
    ("order", "front", "german"),
    [
        ("second", "", "der Lehrer ruft den Schüler an"),
        ("second", "gestern", "gestern ruft der Lehrer den Schüler an"),
        ("first", "", "ruft der Lehrer den Schüler an"),
        ("last", "", "der Lehrer den Schüler anruft"),
        ("infinitive", "", "den Schüler anzurufen"),
    ],
)
def test_separable_verb_in_each_order(order: pb.Order, front: str, german: str) -> None:
    assert clause("anrufen", TEACHER, PUPIL).german(order, front) == german


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
    assert call.german("last") == f"der Lehrer {last}"


def test_motion_forms_its_perfect_with_sein() -> None:
    go = clause("gehen", pb.I, phrase("garden"), tense="past")
    assert (go.english(), go.german()) == (
        "I went into the garden",
        "ich bin in den Garten gegangen",
    )


def test_have_and_be_have_a_preterite() -> None:
    have = clause("haben", pb.I, phrase("dog", "a"), tense="past")
    assert have.german() == "ich hatte einen Hund"
    old = pb.Clause(pb.WE, pb.BE, "past", rest=pb.Text("old", "alt"), negated=True)
    assert (old.english(), old.german()) == ("we were not old", "wir waren nicht alt")


def test_location_is_dative_and_direction_accusative() -> None:
    table = phrase("table")
    assert clause("liegen", phrase("cat"), table).german() == "die Katze liegt auf dem Tisch"
    put = clause("legen", pb.SHE, phrase("book"), table)
    assert put.german() == "sie legt das Buch auf den Tisch"


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
    slot = Slot("", preposition, case, ())
    assert pb.Complement(phrase(place), slot).german_core() == german


def test_article_before_a_relative_clause_does_not_contract() -> None:
    seen = pb.Clause(pb.WE, verb("sehen"))
    garden = phrase("garden", relative=pb.Relative(seen, pb.BARE))
    go = clause("gehen", pb.HE, garden, tense="past")
    german = pb.punctuate(go.german())
    assert german == "Er ist in den Garten gegangen, den wir sehen."
    sit = replace(go, complements=(pb.Complement(garden, pb.IN),), verb=verb("schlafen"))
    assert pb.punctuate(sit.german()) == "Er hat in dem Garten geschlafen, den wir sehen."


@pytest.mark.parametrize(
    ("english", "german"),
    [
        ("does not read a book", "liest kein Buch"),
        ("does not read the book", "liest das Buch nicht"),
    ],
)
def test_negation_is_kein_before_something_new(english: str, german: str) -> None:
    book = phrase("book", "a" if " a " in english else "the")
    read = clause("lesen", pb.SHE, book, negated=True)
    assert (read.english(), read.german()) == (f"she {english}", f"sie {german}")


def test_nicht_precedes_prefix_participle_and_preposition() -> None:
    call = clause("anrufen", TEACHER, PUPIL, negated=True)
    assert call.german() == "der Lehrer ruft den Schüler nicht an"
    assert replace(call, tense="past").german() == "der Lehrer hat den Schüler nicht angerufen"
    wait = clause("warten", TEACHER, PUPIL, negated=True)
    assert wait.german() == "der Lehrer wartet nicht auf den Schüler"


def test_kein_replaces_a_dative_too() -> None:
    assert clause("helfen", pb.HE, phrase("girl", "a"), negated=True).german() == (
        "er hilft keinem Mädchen"
    )


def test_must_not_and_does_not_have_to_differ() -> None:
    sing = clause("singen", pb.HE, negated=True)
    may, must = replace(sing, tense="may"), replace(sing, tense="have to")
    assert (may.english(), may.german()) == ("he must not sing", "er darf nicht singen")
    assert (must.english(), must.german()) == ("he does not have to sing", "er muss nicht singen")


@pytest.mark.parametrize(
    ("subject", "english", "german"),
    [
        (pb.I, "I want to help them", "ich will ihnen helfen"),
        (pb.YOU, "you want to help them", "Sie wollen ihnen helfen"),
        (pb.Name("Eva"), "Eva wants to help them", "Eva will ihnen helfen"),
    ],
)
def test_verbs_agree_with_their_subject(subject: pb.Nominal, english: str, german: str) -> None:
    help_them = clause("helfen", subject, pb.THEY, tense="want to")
    assert (help_them.english(), help_them.german()) == (english, german)


def test_first_person_keeps_the_stem_of_verbs_in_ern() -> None:
    assert clause("füttern", pb.I, phrase("dog")).german() == "ich füttere den Hund"


def test_pronouns_precede_and_english_particles_follow_them() -> None:
    call = clause("abholen", TEACHER, pb.HE, tense="past", time=pb.Text("today", "heute"))
    assert call.english() == "the teacher picked him up today"
    assert call.german() == "der Lehrer hat ihn heute abgeholt"


def test_dative_precedes_accusative() -> None:
    give = clause("geben", pb.SHE, BOY, phrase("book", "a"), tense="past")
    assert give.english() == "she gave the boy a book"
    assert give.german() == "sie hat dem Jungen ein Buch gegeben"


def test_place_stands_between_known_and_new_things() -> None:
    place = pb.Complement(phrase("garden"), pb.IN)
    known = clause("lesen", pb.SHE, phrase("book"), place=place)
    new = clause("lesen", pb.SHE, phrase("book", "a"), place=place)
    assert known.german() == "sie liest das Buch im Garten"
    assert new.german() == "sie liest im Garten ein Buch"
    assert replace(new, fronted="place").german() == "im Garten liest sie ein Buch"


@pytest.mark.parametrize(
    ("english", "relative", "german"),
    [
        ("man", pb.Relative(clause("schlafen", None)), "der Mann, der schläft"),
        (
            "man",
            pb.Relative(pb.Clause(pb.I, verb("helfen")), verb("helfen").frames[0][0]),
            "der Mann, dem ich helfe",
        ),
        ("child", pb.Relative(pb.Clause(pb.I, verb("sehen")), pb.BARE), "das Kind, das ich sehe"),
        (
            "bus",
            pb.Relative(pb.Clause(pb.WE, verb("warten")), verb("warten").frames[0][0]),
            "der Bus, auf den wir warten",
        ),
    ],
)
def test_relative_pronouns_take_gender_and_case(
    english: str, relative: pb.Relative, german: str
) -> None:
    head = phrase(english, relative=relative)
    assert pb.punctuate(head.german("nom")) == german[0].upper() + german[1:] + "."


def test_dative_plural_relative_pronoun_is_denen() -> None:
    helping = pb.Relative(pb.Clause(pb.I, verb("helfen")), verb("helfen").frames[0][0])
    children = phrase("child", plural=True, relative=helping)
    assert children.english() == "the children whom I help"
    assert pb.punctuate(children.german("nom")) == "Die Kinder, denen ich helfe."


def test_relative_clause_of_the_subject_is_closed_by_a_comma() -> None:
    man = phrase("man", relative=pb.Relative(clause("schlafen", None)))
    assert pb.punctuate(clause("haben", man, phrase("dog", "a")).german()) == (
        "Der Mann, der schläft, hat einen Hund."
    )


def test_it_has_the_gender_of_the_german_noun() -> None:
    forms = [pb.IT[phrase(thing).key].german("akk") for thing in ("letter", "newspaper", "book")]
    assert forms == ["ihn", "sie", "es"]


def test_animals_eat_with_another_verb() -> None:
    assert {v.german: v.subjects for v in VERBS if v.english == "eat"} == {
        "essen": ("person",),
        "fressen": ("animal",),
    }


def test_question_words_take_the_case_of_the_verb() -> None:
    sampler = pb.Sampler(random.Random(0), novel=True)
    whom = [sampler.asked(pb.Complement(pb.HE, verb(v).frames[0][0])) for v in ("sehen", "helfen")]
    assert whom == [("whom", "wen"), ("whom", "wem")]


def test_generation_is_deterministic_and_seeded() -> None:
    assert pb.generate("test", 50) == pb.generate("test", 50)
    assert pb.generate("test", 50) == pb.generate("test", 60)[:50]
    assert pb.generate("test", 50) != pb.generate("test", 50, seed=1)


def test_generation_does_not_depend_on_the_hash_seed() -> None:
    program = "from t2t.data.phrasebook import generate; print(ascii(generate('train', 50)))"
    outputs = [run_python(program, PYTHONHASHSEED=hash_seed) for hash_seed in ("1", "2")]
    assert outputs == [ascii(pb.generate("train", 50))] * 2


def test_splits_have_their_sizes_and_no_sentence_twice(
    splits: dict[str, list[tuple[str, str]]],
) -> None:
    assert {split: len(pairs) for split, pairs in splits.items()} == pb.SIZES
    for language in (0, 1):
        sentences = [pair[language] for pairs in splits.values() for pair in pairs]
        assert len(sentences) == len(set(sentences))


def test_another_seed_does_not_move_sentences_between_splits(
    splits: dict[str, list[tuple[str, str]]],
) -> None:
    test = pb.generate("test", 200, seed=1)
    for language in (0, 1):
        train = {pair[language] for pair in splits["train"]}
        assert not train & {pair[language] for pair in test}


def test_long_sentences_exceed_all_others_in_both_languages(
    splits: dict[str, list[tuple[str, str]]],
) -> None:
    longest = {
        split: max(len(text.split()) for pair in pairs for text in pair)
        for split, pairs in splits.items()
    }
    assert min(len(text.split()) for pair in splits["long"] for text in pair) > longest["train"]
    assert max(longest["train"], longest["validation"], longest["test"]) <= pb.MAX_WORDS


def test_words_of_test_occur_in_train_unless_compounds_or_numbers(
    splits: dict[str, list[tuple[str, str]]],
) -> None:
    def words(split: str) -> set[str]:
        return {word.strip(".,?").lower() for _, de in splits[split] for word in de.split()}

    numbers = {pb.german_number(n) for n in range(10_000)}
    numbers |= {word for n in range(1900, 2000) for word in pb.year(n).german.split()}
    unseen = words("test") - words("train") - numbers
    novel = {form.lower() for n in COMPOUNDS for form in (n.german, n.plural)}
    strangers = [w for w in unseen if not any(w.startswith(form) for form in novel if form)]
    assert strangers == []


def test_train_has_none_of_the_held_out_compounds(
    splits: dict[str, list[tuple[str, str]]],
) -> None:
    held_out = {n.german for n in COMPOUNDS if pb.held_out(n)}

    def count(split: str) -> int:
        return sum(w.strip(".,?") in held_out for _, de in splits[split] for w in de.split())

    assert count("train") == 0
    assert count("test") > 10


def test_sentences_are_capitalised_and_end_once(splits: dict[str, list[tuple[str, str]]]) -> None:
    for pairs in splits.values():
        for pair in pairs:
            for text in pair:
                assert text[0].isupper()
                assert text[-1] in ".?"
                assert "  " not in text
                assert " ," not in text
                assert ",," not in text


def test_unknown_split_names_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match=r"split='dev'.*train, validation, test, long"):
        pb.generate("dev")


def test_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="size=-1 is negative"):
        pb.generate("test", -1)


def test_size_beyond_the_grammar_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one = pb.Text("He sings.", "Er singt.")
    monkeypatch.setattr(pb.Sampler, "sentence", lambda _: one)
    split = pb.split_of(one)
    assert split is not None
    with pytest.raises(ValueError, match="size=2 is more than"):
        pb.generate(split, 2)
