"""Inflection of nouns, determiners and adjectives."""

import re

from tools.phrasebook.entries import Case, Noun
from tools.phrasebook.lexicon import ADJECTIVE_STEMS, ENGLISH_PLURALS

# By case, then gender or "p" for the plural. Strong endings are those of dies-, jed- and ein-, and
# of adjectives without a determiner.
DEFINITE = {
    "nom": {"m": "der", "f": "die", "n": "das", "p": "die"},
    "akk": {"m": "den", "f": "die", "n": "das", "p": "die"},
    "dat": {"m": "dem", "f": "der", "n": "dem", "p": "den"},
    "gen": {"m": "des", "f": "der", "n": "des", "p": "der"},
}
STRONG = {
    "nom": {"m": "er", "f": "e", "n": "es", "p": "e"},
    "akk": {"m": "en", "f": "e", "n": "es", "p": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "p": "en"},
    "gen": {"m": "es", "f": "er", "n": "es", "p": "er"},
}
DER_WORDS = {"this": "dies", "every": "jed", "which": "welch"}
EIN_WORDS = {
    "a": "ein", "no": "kein", "my": "mein", "his": "sein", "her": "ihr", "our": "unser",
    "their": "ihr", "your": "Ihr",
}  # fmt: skip


def english_plural(noun: str) -> str:
    """The plural of a noun or compound; only the last word of a compound inflects."""
    first, _, head = noun.rpartition(" ")
    if head in ENGLISH_PLURALS:
        plural = ENGLISH_PLURALS[head]
    elif head.endswith(("s", "x", "ch", "sh")):
        plural = head + "es"
    elif head[-1] == "y" and head[-2] not in "aeiou":
        plural = head[:-1] + "ies"
    else:
        plural = head + "s"
    return f"{first} {plural}".strip()


def german_noun(noun: Noun, case: Case, plural: bool) -> str:
    """The noun in its case, with the dative plural -n and the genitive -s or -es."""
    if plural:
        return noun.plural + ("n" if case == "dat" and noun.plural[-1] not in "ns" else "")
    if noun.gender == "w":
        return noun.german if case == "nom" else noun.plural
    if case == "gen" and noun.gender in "mn":
        one_syllable = len(re.findall("[aeiouyäöü]+", noun.german.lower())) == 1
        return noun.german + ("es" if one_syllable else "s")
    return noun.german


def german_determiner(word: str, case: Case, key: str) -> tuple[str, bool]:
    """The inflected article, possessive or pronoun, and whether its ending shows the gender."""
    if word == "the":
        return DEFINITE[case][key], True
    if word in DER_WORDS:
        return DER_WORDS[word] + STRONG[case][key], True
    if word in EIN_WORDS:
        bare = (case, key) in (("nom", "m"), ("nom", "n"), ("akk", "n"))
        return EIN_WORDS[word] + ("" if bare else STRONG[case][key]), not bare
    return word, False


def german_adjective(adjective: str, case: Case, key: str, shown: bool) -> str:
    """The inflected adjective: weak after a determiner that shows the gender, otherwise strong."""
    stem = ADJECTIVE_STEMS.get(adjective, adjective)
    if not shown and not (case == "gen" and key in "mn"):  # "Annas alten Autos"
        return stem + STRONG[case][key]
    weak_e = key != "p" and (case == "nom" or (case == "akk" and key != "m"))
    return stem + ("e" if weak_e else "en")
