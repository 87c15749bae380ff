"""Inflection of verbs: the predicate of a clause by tense, agreement and negation."""

import re

from tools.phrasebook.entries import Verb, read_verb
from tools.phrasebook.lexicon import ENGLISH_GERUNDS, MODALS
from tools.phrasebook.noun_phrases import Agreement
from tools.phrasebook.text import join

BE = read_verb("be, was", "sein ist gewesen sein", "", "!")
COST = read_verb("cost, cost", "kosten kostet gekostet", "", "!")
AUXILIARIES = {
    "haben": {"I": "habe", "it": "hat", "they": "haben"},
    "sein": {"I": "bin", "it": "ist", "they": "sind"},
}
# The two verbs whose past tense is the preterite; that of all others is the perfect.
PRETERITES = {
    "haben": {"I": "hatte", "it": "hatte", "they": "hatten"},
    "sein": {"I": "war", "it": "war", "they": "waren"},
}


def english_third(verb: str) -> str:
    """The third person singular: "(he) goes"."""
    if verb == "have":
        return "has"
    if verb.endswith(("s", "ch", "sh", "o")):
        return verb + "es"
    return verb[:-1] + "ies" if verb[-1] == "y" and verb[-2] not in "aeou" else verb + "s"


def english_gerund(verb: str) -> str:
    """The form that ends in "-ing"."""
    silent_e = verb.endswith("e") and not verb.endswith("ee")
    return ENGLISH_GERUNDS.get(verb, (verb[:-1] if silent_e else verb) + "ing")


def english_predicate(
    verb: Verb, tense: str, agreement: Agreement, negated: bool, inverted: bool
) -> tuple[str, str]:
    """The auxiliary, which precedes the subject of a question, and the words after it."""
    base, _, particle = verb.english.partition(" ")
    third = agreement == "it"
    be = {"I": "am", "it": "is", "they": "are"}[agreement]
    do = "does" if third else "do"
    if tense in ("want to", "have to"):
        modal, _, to = tense.partition(" ")
        rest = f"{to} {verb.english}"
        if negated or inverted:
            return do + " not" * negated, f"{modal} {rest}"
        return "", f"{english_third(modal) if third else modal} {rest}"
    if tense == "may" and negated:
        return "must not", verb.english  # "may not" could also mean "perhaps not"
    if tense in MODALS:
        return ("cannot" if tense == "can" and negated else tense + " not" * negated), verb.english
    if verb is BE:
        past = "were" if agreement == "they" else "was"
        return (past if tense == "past" else be) + " not" * negated, ""
    if tense == "progressive":
        return be + " not" * negated, join([english_gerund(base), particle])
    if negated or inverted:
        return ("did" if tense == "past" else do) + " not" * negated, verb.english
    if tense == "past":
        return "", join([verb.past, particle])
    return "", join([english_third(base) if third else base, particle])


def german_predicate(verb: Verb, tense: str, agreement: Agreement) -> tuple[str, str, str]:
    """The German predicate in three parts.

    Returns the finite verb, the words at the end of a main clause (separable prefix, participle or
    infinitive), and both in the order of a subordinate clause.
    """
    if tense in MODALS:
        singular, plural = MODALS[tense]
        finite = plural if agreement == "they" else singular
        if (tense, agreement) == ("will", "I"):
            finite = "werde"
        closing = verb.prefix + verb.german
    elif tense == "past" and verb.german in PRETERITES:
        finite = PRETERITES[verb.german][agreement]
        return finite, "", finite
    elif tense == "past":
        finite, closing = AUXILIARIES[verb.perfect_with][agreement], verb.participle
    else:
        finite = _german_present(verb, agreement)
        return finite, verb.prefix, verb.prefix + finite
    return finite, closing, f"{closing} {finite}"


def _german_present(verb: Verb, agreement: Agreement) -> str:
    if verb.german in AUXILIARIES:
        return AUXILIARIES[verb.german][agreement]
    if agreement == "I":
        return re.sub("n$", "e", verb.german) if verb.german.endswith("ern") else verb.german[:-1]
    return verb.third if agreement == "it" else verb.german
