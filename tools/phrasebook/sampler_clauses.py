"""Samples noun phrases and clauses of words that make sense together."""

import random
from dataclasses import replace
from typing import TypeVar

from tools.phrasebook.clauses import Clause, Complement, relative_clause
from tools.phrasebook.entries import ADJECTIVES, COMPOUNDS, NOUNS, VERBS, Noun, Slot, Verb
from tools.phrasebook.lexicon import (
    FREQUENCIES,
    FUTURE_TIMES,
    MODALS,
    NAMES,
    PAST_TIMES,
    RELATED,
    TIMES,
)
from tools.phrasebook.noun_phrases import (
    HE,
    SHE,
    THEY,
    WE,
    YOU,
    I,
    Name,
    Nominal,
    NounPhrase,
    Pronoun,
)
from tools.phrasebook.numbers import clock_time, year
from tools.phrasebook.splits import is_held_out
from tools.phrasebook.text import Text

Choice = TypeVar("Choice")

IN = Slot("in", "in", "dat", ("place",))
IN_FRONT = Slot("in front of", "vor", "dat", ("building",))
BEHIND = Slot("behind", "hinter", "dat", ("building",))
FREE_TENSES = ("present",) * 6 + ("past",) * 5 + ("progressive",) * 2 + tuple(MODALS)
DETERMINERS = {
    "the": 38,
    "plural": 12,
    "a": 16,
    "this": 6,
    "my": 12,
    "count": 5,
    "owner": 5,
    "every": 3,
}
MASS_DETERMINERS = {"the": 50, "": 25, "this": 8, "my": 12, "owner": 5}
POSSESSIVES = {"I": "my", "we": "our", "you": "your", "he": "his", "she": "her", "they": "their"}
# For each class of nouns, the verb frames in which it can be a complement, and its index there.
GAPS = {
    kind: [
        (verb, frame, i)
        for verb in VERBS
        for frame in verb.frames
        for i, slot in enumerate(frame)
        if kind in slot.kinds
    ]
    for kind in dict.fromkeys(noun.kind for noun in NOUNS)
}
FITTING = {kind: [a for a in ADJECTIVES if kind in a.kinds] for kind in GAPS}


def is_quantified(nominal: Nominal) -> bool:
    """Returns whether a negation of the clause could be read as negating "every" or the number."""
    return isinstance(nominal, NounPhrase) and (nominal.determiner == "every" or nominal.count > 0)


class ClauseSampler:
    """Samples noun phrases and clauses; `novel` includes the compounds held out of train."""

    def __init__(self, rng: random.Random, novel: bool):
        self.rng = rng
        self.nouns = {kind: [n for n in NOUNS if n.kind == kind] for kind in GAPS}
        self.compounds = {
            kind: [n for n in COMPOUNDS if n.kind == kind and (novel or not is_held_out(n))]
            for kind in GAPS
        }

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.rng.random() < probability

    def weighted(self, weights: dict[Choice, int]) -> Choice:
        """A random key, with a probability proportional to its value."""
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def noun(self, kinds: tuple[str, ...]) -> Noun:
        """A noun of one of the classes, simple or compound."""
        kind = self.rng.choice(kinds)
        if self.compounds[kind] and self.chance(0.2 if kind == "person" else 0.4):
            return self.rng.choice(self.compounds[kind])
        return self.rng.choice(self.nouns[kind])

    def noun_phrase(
        self, kinds: tuple[str, ...], possessive: str = "my", relative: bool = False
    ) -> NounPhrase:
        """A noun phrase; `possessive` is the possessive determiner to use if it gets one."""
        noun = self.noun(kinds)
        fitting = FITTING[noun.kind]
        adjective = self.rng.choice(fitting) if fitting and self.chance(0.25) else None
        form = self.weighted(DETERMINERS if noun.plural else MASS_DETERMINERS)
        if noun.kind == "person" and noun.english not in RELATED and form in ("my", "owner"):
            form = "the"  # "Anna's man" would be her husband
        match form:
            case "plural":
                determiner = self.rng.choice(("the", "the", "", "this"))
                phrase = NounPhrase(noun, determiner, True, adjective)
            case "count":
                count = self.rng.randint(2, self.rng.choice((12, 99)))
                return NounPhrase(noun, "", True, adjective, count)
            case "owner":
                owner = self.rng.choice((self.name(), NounPhrase(self.noun(("person",)))))
                return NounPhrase(noun, adjective=adjective, owner=owner)
            case "my":
                several = bool(noun.plural) and noun.english not in ("mother", "father")
                return NounPhrase(noun, possessive, several and self.chance(0.2), adjective)
            case determiner:
                phrase = NounPhrase(noun, determiner, False, adjective)
        if relative and phrase.determiner in ("the", "a"):
            return replace(phrase, relative=self.relative(phrase))
        return phrase

    def relative(self, head: NounPhrase) -> Text:
        """A relative clause about the head, which is its subject or one of its complements."""
        kind = head.noun.kind
        verbs = [verb for verb in VERBS if kind in verb.subjects]
        if verbs and self.chance(0.5):
            verb = self.rng.choice(verbs)
            frame = self.rng.choice(verb.frames)
            return relative_clause(head, self.fill(verb, frame, head, FREE_TENSES, plain=True))
        verb, frame, i = self.rng.choice(GAPS[kind])
        gap, others = frame[i], frame[:i] + frame[i + 1 :]
        if others and gap.case == "dat":
            gap = gap._replace(english="to")  # "gives the man a book", but "to whom she gives"
        subject = self.subject(verb.subjects)
        clause = self.fill(verb, others, subject, FREE_TENSES, plain=True)
        return relative_clause(head, clause, gap)

    def name(self) -> Name:
        """A random person's name."""
        return Name(self.rng.choice(NAMES["f"] + NAMES["m"]))

    def subject(self, kinds: tuple[str, ...], relative: bool = False) -> Nominal:
        """A definite subject, which can begin a sentence."""
        if kinds[0] == "person" and self.chance(0.35):
            return self.rng.choice((I, WE, YOU, HE, SHE, THEY, self.name(), self.name()))
        while True:
            phrase = self.noun_phrase(kinds, self.rng.choice(("my", "our", "your")), relative)
            if not phrase.indefinite:  # an indefinite phrase is a poor topic
                return phrase

    def object(self, slot: Slot, subject: Nominal, relative: bool) -> Nominal:
        """An object for a slot in a clause with this subject."""
        if slot.kinds[0] == "person" and self.chance(0.25):
            others = [pronoun for pronoun in (HE, SHE, THEY) if pronoun != subject]
            others += [] if subject in (I, WE) else [I, WE]
            return self.rng.choice((*others, self.name()))
        return self.noun_phrase(slot.kinds, self.possessive(subject), relative)

    def possessive(self, subject: Nominal) -> str:
        """The subject's possessive, if sex or number determine it; else another person's."""
        match subject:
            case Pronoun():
                return POSSESSIVES.get(subject.subject, "my")
            case Name():
                return "her" if subject.name in NAMES["f"] else "his"
            case NounPhrase() if subject.noun.kind == "person":
                return {"p": "their", "m": "his", "f": "her", "n": "my"}[subject.key]
        return self.rng.choice(("my", "our", "your"))

    def clause(
        self,
        subject: Nominal | None = None,
        tenses: tuple[str, ...] = FREE_TENSES,
        plain: bool = False,
        verbs: tuple[Verb, ...] = VERBS,
    ) -> Clause:
        """A random clause; a `plain` one has neither adverbs nor relative clauses."""
        kind = subject.noun.kind if isinstance(subject, NounPhrase) else "person"
        verb = self.rng.choice([v for v in verbs if subject is None or kind in v.subjects])
        if subject is None:
            subject = self.subject(verb.subjects, relative=not plain and self.chance(0.12))
        clause = self.fill(verb, self.rng.choice(verb.frames), subject, tenses, plain)
        return clause if plain else self.with_adverb(clause)

    def fill(
        self,
        verb: Verb,
        frame: tuple[Slot, ...],
        subject: Nominal,
        tenses: tuple[str, ...],
        plain: bool,
    ) -> Clause:
        """A clause with random complements for the slots of `frame`."""
        relative = not plain and self.chance(0.15)
        complements = tuple(
            Complement(self.object(slot, subject, relative and slot is frame[-1]), slot)
            for slot in frame
        )
        tense = self.tense(verb, subject, tenses)
        # "not every" and "not three" would negate the quantity instead of the verb.
        parts = (subject, *(complement.nominal for complement in complements))
        negated = self.chance(0.15) and not any(is_quantified(part) for part in parts)
        return Clause(subject, verb, tense, complements, negated)

    def tense(self, verb: Verb, subject: Nominal, tenses: tuple[str, ...]) -> str:
        """A random tense if it suits the verb and subject; else the first, which always does."""
        tense = self.rng.choice(tenses)
        personal = not isinstance(subject, NounPhrase) or subject.noun.kind == "person"
        if tense in MODALS and tense != "will" and not personal:
            return tenses[0]
        if verb.stative and tense not in ("present", "past", "will"):
            return tenses[0]
        if tense == "past" and verb.past == verb.english.split()[0] and subject.agreement != "it":
            return tenses[0]  # "they read" could be present or past
        return tense

    def with_adverb(self, clause: Clause) -> Clause:
        """Adds at most one adverb, at a position where it can only belong to this clause."""
        last = clause.complements[-1].nominal if clause.complements else None
        # After a relative clause an adverb would belong to that clause, so it must be fronted.
        fronted = bool(last and last.relative.german) or self.chance(0.35)
        counted = isinstance(clause.subject, NounPhrase) and clause.subject.count > 0
        if clause.tense == "progressive" or (fronted and counted):
            return clause  # "in two thousand two twelve monkeys ..." could be read in two ways
        if self.chance(0.35):
            time = self.time(clause)
            return replace(clause, front=time) if fronted else replace(clause, time=time)
        if clause.negated:
            return clause
        if self.chance(0.2):
            return replace(clause, frequency=self.rng.choice(FREQUENCIES))
        settled = clause.verb.stative or any(c.slot.english for c in clause.complements)
        if not settled and self.chance(0.4):
            place = self.place()
            return replace(clause, front=place) if fronted else replace(clause, place=place)
        return clause

    def time(self, clause: Clause) -> Text:
        """A time that fits the tense."""
        tense = clause.tense
        quarter = self.rng.choice((0, 15, 30, 45))
        # Stative verbs have no clock time: nobody loves somebody at three o'clock.
        choices = [] if clause.verb.stative else [clock_time(self.rng.randint(1, 12), quarter)] * 5
        if tense == "past":
            choices += PAST_TIMES * 2
            choices += [year(self.rng.randint(1900, 2029))] * 4
        elif tense in MODALS and tense != "could":
            choices += FUTURE_TIMES * 2
        elif tense == "present" and not clause.negated:  # "nicht jeden Tag" has another meaning
            choices += [Text("every day", "jeden Tag")] * 3
        return self.rng.choice([*choices, *TIMES])

    def place(self) -> Text:
        """A place, as an adverb."""
        slot = self.rng.choice((IN, IN, IN_FRONT, BEHIND))
        return Complement(NounPhrase(self.noun(slot.kinds)), slot).text()
