"""True links of nouns and adjectives."""

from t2t.phrasebook import generate
from t2t.phrasebook.noun_alignments import find_links


def test_links_of_a_pair_are_those_of_its_nouns_and_adjectives() -> None:
    english = "The sports pupil believes that the tired music student brought along the fresh tart."
    german = (
        "Der Sportschüler glaubt, dass der müde Musikstudent die frische Torte mitgebracht hat."
    )
    words = english.split(), german.split()
    assert [(words[0][s], words[1][t]) for s, t in sorted(find_links(english, german))] == [
        ("pupil", "Sportschüler"), ("tired", "müde"), ("student", "Musikstudent"),
        ("fresh", "frische"), ("tart.", "Torte"),
    ]  # fmt: skip


def test_word_that_occurs_twice_has_no_known_link() -> None:
    assert find_links("The dog sees the dog.", "Der Hund sieht den Hund.") == set()
    assert find_links("You wake up.", "Sie wachen auf.") == set()


def test_most_sentences_have_links_that_cross_none_twice() -> None:
    pairs = generate("validation", 200)
    found = [find_links(*pair) for pair in pairs]
    assert sum(map(bool, found)) > 150
    for links in found:
        assert len({s for s, _ in links}) == len({t for _, t in links}) == len(links)
