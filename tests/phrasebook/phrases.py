"""Noun phrases and clauses in few words, for the tests of the phrasebook's grammar."""

from typing import Any

from t2t.phrasebook.clauses import Clause, Complement
from t2t.phrasebook.entries import ADJECTIVES, COMPOUNDS, NOUNS, VERBS, Adjective, Noun, Verb
from t2t.phrasebook.noun_phrases import Nominal, NounPhrase


def noun(english: str) -> Noun:
    return next(n for n in (*NOUNS, *COMPOUNDS) if n.english == english)


def adjective(english: str) -> Adjective:
    return next(a for a in ADJECTIVES if a.english == english)


def verb(german: str) -> Verb:
    return next(v for v in VERBS if v.prefix + v.german == german)


def phrase(english: str, determiner: str = "the", **features: Any) -> NounPhrase:
    return NounPhrase(noun(english), determiner, **features)


def clause(german_verb: str, subject: Nominal, *objects: Nominal, **features: Any) -> Clause:
    """A clause in the first frame of the verb that has room for the objects."""
    word = verb(german_verb)
    frame = next(frame for frame in word.frames if len(frame) == len(objects))
    complements = tuple(map(Complement, objects, frame))
    return Clause(subject, word, complements=complements, **features)
