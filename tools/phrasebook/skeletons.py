"""Skeletons of German sentences: what the grammar says of a sentence without its vocabulary.

Nouns, adjectives, names, numbers and verbs become classes of words with the same inflection, and a
noun phrase becomes the genders and cases in which it is right, so "den kleinen Hund" is `m.akk`. A
sentence is well formed if the grammar generates its skeleton: words agree and stand in their order,
whatever they mean. The grammar has no parser, so the skeletons of many sentences stand for all.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import get_args

from tools.phrasebook.clauses import CONTRACTIONS
from tools.phrasebook.entries import ADJECTIVES, COMPOUNDS, NOUNS, VERBS, Case, Verb
from tools.phrasebook.lexicon import (
    ADJECTIVE_STEMS,
    FREQUENCIES,
    FUTURE_TIMES,
    MODALS,
    NAMES,
    PAST_TIMES,
    REPORTING,
    SUBORDINATORS,
    TIMES,
)
from tools.phrasebook.nouns import (
    DER_WORDS,
    EIN_WORDS,
    german_adjective,
    german_determiner,
    german_noun,
)
from tools.phrasebook.numbers import german_number
from tools.phrasebook.verbs import german_predicate

Cell = tuple[str, Case]  # gender or "p", and case
_SPLIT = {short: long.split() for long, short in CONTRACTIONS.items()}
_NUMBERS = {german_number(n) for n in range(2, 10_000)}
_NAMES = {name for names in NAMES.values() for name in names}
_GENITIVES = {f"{name}s" for name in _NAMES}
_WORDS = ["the", *DER_WORDS, *EIN_WORDS]


def _list_nouns() -> dict[str, set[Cell]]:
    forms: dict[str, set[Cell]] = {}
    for noun in (*NOUNS, *COMPOUNDS):
        for case in get_args(Case):
            singular = noun.gender.replace("w", "m"), case
            forms.setdefault(german_noun(noun, case, False), set()).add(singular)
            if noun.plural:
                forms.setdefault(german_noun(noun, case, True), set()).add(("p", case))
    return forms


def _list_verbs() -> dict[str, set[tuple[str, str]]]:
    """Lists the forms of each verb: (prefix that must follow, form and complements)."""
    found: dict[str, set[tuple[str, str]]] = {}
    for verb in VERBS:
        frames = sorted({" ".join(f"{s.german}+{s.case}" for s in frame) for frame in verb.frames})
        for name, form in _list_forms(verb):
            prefix = verb.prefix if name in ("I", "it", "they") else ""
            found.setdefault(form, set()).add((prefix, f"{name}:{'|'.join(frames)}"))
    return found


def _list_forms(verb: Verb) -> Iterable[tuple[str, str]]:
    for agreement in ("I", "it", "they"):
        finite, _, joined = german_predicate(verb, "present", agreement)
        yield agreement, finite
        yield f"last {agreement}", joined
    yield f"participle {verb.perfect_with}", verb.participle
    yield "infinitive", verb.prefix + verb.german
    if verb.prefix:
        yield "zu", f"{verb.prefix}zu{verb.german}"


_NOUNS, _VERBS = _list_nouns(), _list_verbs()
_INFLECTED = {
    ADJECTIVE_STEMS.get(adjective.german, adjective.german) + ending: ending
    for adjective in ADJECTIVES
    for ending in ("e", "en", "er", "es", "em")
}


_TABLES: tuple[Mapping[str, str], ...] = (
    dict.fromkeys(_NAMES, "name"),
    dict.fromkeys(_NUMBERS, "number"),
    {form: f"modal.{n}" for forms in MODALS.values() for n, form in enumerate(forms)},
    {text.german: "reports" for text in REPORTING},
    {text.german: "if" for text in SUBORDINATORS},
    {text.german: "often" for text in FREQUENCIES},
    {adjective.german: "adjective" for adjective in ADJECTIVES},
    {adjective.german_more: "comparative" for adjective in ADJECTIVES if adjective.more},
)
_FIXED = "|".join(text.german for text in (*TIMES, *PAST_TIMES, *FUTURE_TIMES))
_TIME = re.compile(
    rf"\b({_FIXED.replace('am ', '[Aa]m ').replace('im ', '[Ii]m ')}|jeden Tag|gerade"
    r"|[Uu]m (halb |Viertel (vor|nach) )?\w+( Uhr)?|[Ii]m Jahr \w+)\b"
)
_PREFIXES = {verb.prefix for verb in VERBS if verb.prefix}
_RELATIVE = {"der", "die", "das", "den", "dem", "denen"}


@cache
def find_cells(determiner: str, ending: str, noun: str, counted: bool) -> str:
    """Genders and cases in which a noun phrase is right; empty if it is never."""
    words = [""] if not determiner or determiner in _GENITIVES else _WORDS
    found = set()
    for key, case in sorted(_NOUNS[noun]):
        for word in words:
            form, shown = german_determiner(word, case, key)
            fits = form == determiner or not word
            if counted and key != "p":
                continue
            if fits and (not ending or german_adjective("", case, key, shown) == ending):
                found.add(f"{key}.{case}")
    return " ".join(sorted(found))


def list_skeletons(sentence: str) -> list[str]:
    """Returns the skeletons of a sentence's clauses, each with the marks around it.

    A clause that begins with a relative pronoun carries the genders of the noun phrase before it.
    Words that the grammar does not have stay as they are.
    """
    if sentence.split(" ")[0] not in _NOUNS.keys() | _NAMES | _GENITIVES:
        sentence = sentence[:1].lower() + sentence[1:]
    sentence = _TIME.sub("oft", sentence)
    words = re.findall(r"\w+|[^\w\s]", sentence)
    words = [part for word in words for part in _SPLIT.get(word, [word])]
    skeletons, clause, place, genders = [], ["^"], 0, ""
    while place < len(words):
        found, place = _read(words, place)
        if found in (",", "und"):
            skeletons.append(_finish([*clause, ","]))
            clause = [found]
            continue
        if clause[-1] == "," and found in _RELATIVE:
            clause.append(genders)
        if found[0] == "[":
            cells = {tuple(cell.split(".")) for cell in found[1:-1].split()}
            if clause[-1][0] == "[" and {case for _, case in cells} == {"gen"}:
                continue  # the owner of what precedes
            cells = {cell for cell in cells if cell[1] != "gen"} or cells  # no verb takes one
            genders = " ".join(sorted({key for key, _ in cells}))
            numbered = {f"{'p' if key == 'p' else 's'}.{case}" for key, case in cells}
            found = f"[{' '.join(sorted(numbered))}]"
        clause.append(found)
    return [*skeletons, _finish(clause)]


def _finish(clause: list[str]) -> str:
    """Joins the classes of a clause, once it is known whether it ends with a verb's prefix."""
    has_prefix = len(clause) > 2 and clause[-2] in _PREFIXES
    prefix = clause[-2] if has_prefix else ""
    for place, word in enumerate(clause):
        fitting = {found for own, found in _VERBS.get(word, ()) if own in (prefix, "")}
        if prefix and any(own == prefix for own, _ in _VERBS.get(word, ())):
            fitting = {found for own, found in _VERBS[word] if own == prefix}
        if fitting:
            clause[place] = f"<{' '.join(sorted(fitting))}>"
    if has_prefix:
        clause[-2] = "prefix"
    return " ".join(clause)


def _read(words: Sequence[str], start: int) -> tuple[str, int]:
    """The class of the noun phrase or word at a place, and the place behind it."""
    for determiner in (words[start], ""):
        place, ending = start + bool(determiner), ""
        counted = place < len(words) and words[place] in _NUMBERS
        place += counted
        if place < len(words) and words[place] in _INFLECTED:
            ending, place = _INFLECTED[words[place]], place + 1
        if place < len(words) and words[place] in _NOUNS:
            cells = find_cells(determiner, ending, words[place], counted)
            if cells:
                return f"[{cells}]", place + 1
    word = words[start]
    return next((table[word] for table in _TABLES if word in table), word), start + 1
