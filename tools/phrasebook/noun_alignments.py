"""True word alignments of nouns and adjectives, which the lexicon knows.

A link is known where one entry of the lexicon explains one word on each side and no other entry
explains either. Function words and verbs, whose German may be several words, have no known link.
"""

from collections import Counter, defaultdict

from tools.phrasebook.entries import ADJECTIVES, COMPOUNDS, NOUNS, Case
from tools.phrasebook.nouns import english_plural, german_adjective, german_noun

_CASES: tuple[Case, ...] = ("nom", "akk", "dat", "gen")


def find_links(english: str, german: str) -> set[tuple[int, int]]:
    """The known links of a pair: numbers of an English and of a German word, from 0."""
    sides = [[word.strip(",.?!") for word in text.split()] for text in (english, german)]
    places = [_find_places(words, forms) for words, forms in zip(sides, _FORMS, strict=True)]
    return {(places[0][entry], places[1][entry]) for entry in places[0] if entry in places[1]}


def _find_places(words: list[str], forms: dict[str, set[int]]) -> dict[int, int]:
    """Entries that explain exactly one word, which no other entry explains, with that word."""
    entries = {place: forms.get(word.lower(), set()) for place, word in enumerate(words)}
    counts = Counter(entry for found in entries.values() for entry in found)
    return {
        next(iter(found)): place
        for place, found in entries.items()
        if len(found) == 1 and counts[next(iter(found))] == 1
    }


def _list_forms() -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """For each language, the entries by inflected form in lower case.

    A compound explains the last word in English, whose noun it shares, and the whole in German.
    """
    english: dict[str, set[int]] = defaultdict(set)
    german: dict[str, set[int]] = defaultdict(set)
    numbers = {noun.english: number for number, noun in enumerate(NOUNS)}
    for noun in (*NOUNS, *COMPOUNDS):
        number = numbers[noun.english.split(" ")[-1]]
        if noun in NOUNS:
            english[noun.english].add(number)
            english[english_plural(noun.english)].add(number)
        for case in _CASES:
            for plural in (False, True)[: 1 + bool(noun.plural)]:
                german[german_noun(noun, case, plural).lower()].add(number)
    for number, adjective in enumerate(ADJECTIVES, start=len(NOUNS)):
        english[adjective.english].add(number)
        german[adjective.german].add(number)
        for case in _CASES:
            for key in "mfnp":
                for shown in (False, True):
                    form = german_adjective(adjective.german, case, key, shown)
                    german[form.lower()].add(number)
    return english, german


_FORMS = _list_forms()
