"""Clauses and their word order in both languages: main, subordinate, relative and infinitive."""

from dataclasses import dataclass, replace
from typing import Literal

from tools.phrasebook.entries import Case, Slot, Verb
from tools.phrasebook.noun_phrases import Nominal, NounPhrase, Pronoun
from tools.phrasebook.nouns import DEFINITE
from tools.phrasebook.text import NOTHING, Text, join
from tools.phrasebook.verbs import english_predicate, german_predicate

# Position of the finite verb: second in statements, first in questions, last in German subordinate
# clauses; "infinitive" has none, but "to" and "zu".
Order = Literal["second", "first", "last", "infinitive"]

CONTRACTIONS = {
    "in dem": "im",
    "in das": "ins",
    "zu dem": "zum",
    "zu der": "zur",
    "von dem": "vom",
}
PARTICLES = ("up", "on", "off", "along")


@dataclass(frozen=True)
class Complement:
    """An object or a prepositional phrase."""

    nominal: Nominal
    slot: Slot

    def english(self) -> str:
        """The English preposition, if any, and the object."""
        return join([self.slot.english, self.nominal.english_object()])

    def german_core(self) -> str:
        """The German preposition and nominal, contracted ("im Haus"), without relative clause."""
        core = self.nominal.german_core(self.slot.case)
        article, _, rest = core.partition(" ")
        contracted = CONTRACTIONS.get(f"{self.slot.german} {article}")
        # A relative clause needs the full article: "in dem Haus, das ...", but "im Haus".
        if contracted and not self.nominal.relative.german:
            return f"{contracted} {rest}"
        return join([self.slot.german, core])

    def text(self) -> Text:
        """The complement in both languages; it must have no relative clause."""
        return Text(self.english(), self.german_core())


@dataclass(frozen=True)
class Clause:
    """A verb with its subject, complements and adverbs."""

    subject: Nominal
    verb: Verb
    tense: str = "present"  # or "progressive", "past", a key of MODALS
    complements: tuple[Complement, ...] = ()
    negated: bool = False
    elided: bool = False  # whether to leave out the subject, named in the clause before
    front: Text = NOTHING  # precedes the subject: a question word, a time or a place
    time: Text = NOTHING
    frequency: Text = NOTHING
    place: Text = NOTHING
    rest: Text = NOTHING  # predicate adjective, price, age

    def text(self, order: Order = "second") -> Text:
        """The clause in both languages."""
        return Text(self.english(order), self.german(order))

    def subordinate(self, conjunction: Text) -> Text:
        """The clause as a subordinate clause that follows its main clause."""
        return Text(
            f"{conjunction.english} {self.english()}",
            f", {conjunction.german} {self.german('last')}",
        )

    def english(self, order: Order = "second") -> str:
        """The English words; "last" gives the same order as "second"."""
        auxiliary, main = english_predicate(
            self.verb, self.tense, self.subject.agreement, self.negated, order == "first"
        )
        subject = "" if self.elided else self.subject.english()
        if order == "infinitive":
            subject, auxiliary, main = "", "to", self.verb.english
        objects = [complement.english() for complement in self.complements]
        verb, _, particle = main.rpartition(" ")
        if particle in PARTICLES and objects and isinstance(self.complements[0].nominal, Pronoun):
            main, objects[0] = verb, f"{objects[0]} {particle}"  # "turns it on"
        return join(
            [
                self.front.english,
                *([auxiliary, subject] if order == "first" else [subject, auxiliary]),
                self.frequency.english,
                main,
                *objects,
                self.rest.english,
                self.place.english,
                self.time.english,
            ]
        )

    def german(self, order: Order = "second") -> str:
        """The German words; a clause with "last" or "infinitive" ends in a comma."""
        finite, closing, cluster = german_predicate(self.verb, self.tense, self.subject.agreement)
        subject = "" if self.elided else self.subject.german("nom")
        middle, tail = self._german_middle()
        match order:
            case "last":
                return join([subject, *middle, cluster, tail, ","])
            case "infinitive":
                prefix, verb = self.verb.prefix, self.verb.german
                return join([*middle, f"{prefix}zu{verb}" if prefix else f"zu {verb}", tail, ","])
            case "second" if not self.front.german:
                return join([subject, finite, *middle, closing, tail])
        return join([self.front.german, finite, subject, *middle, closing, tail])

    def _german_middle(self) -> tuple[list[str], str]:
        """The words between the two parts of the verb, and the relative clause after both.

        The order is: pronouns, time, definite objects, place, indefinite objects. "nicht" comes
        after the definite objects; before an indefinite object it becomes "kein".
        """
        bare = [c for c in self.complements if not c.slot.german]
        pronouns = [c for c in bare if isinstance(c.nominal, Pronoun)]
        # A dative precedes the accusative even if it is indefinite.
        new = [c for c in bare if c.nominal.indefinite and len(bare) == 1]
        known = [c for c in bare if c not in pronouns and c not in new]
        denied = bare[-1] if self.negated and bare and bare[-1].nominal.indefinite else None
        tail = self.complements[-1].nominal.relative.german if self.complements else ""
        middle = [
            *(c.german_core() for c in pronouns),
            self.time.german,
            self.frequency.german,
            "gerade" if self.tense == "progressive" else "",
            *(self._german_object(c, c is denied) for c in known),
            "nicht" if self.negated and not denied else "",
            self.place.german,
            *(self._german_object(c, c is denied) for c in new),
            *(c.german_core() for c in self.complements if c.slot.german),
            self.rest.german,
        ]
        return middle, tail

    def _german_object(self, complement: Complement, denied: bool) -> str:
        nominal = complement.nominal
        relative = nominal.relative.german if complement is not self.complements[-1] else ""
        if denied and isinstance(nominal, NounPhrase):
            complement = replace(complement, nominal=replace(nominal, determiner="no"))
        return join([complement.german_core(), relative])


def relative_clause(head: NounPhrase, clause: Clause, gap: Slot | None = None) -> Text:
    """A relative clause about `head`, which is its subject or the complement of the slot `gap`."""
    preposition = Text(gap.english, gap.german) if gap else NOTHING
    if head.noun.kind == "person":
        english = "whom" if gap else "who"
    else:
        english = "which" if preposition.english else "that"
    case: Case = gap.case if gap else "nom"
    german = "denen" if (case, head.key) == ("dat", "p") else DEFINITE[case][head.key]
    clause = replace(clause, elided=gap is None)
    return Text(
        join([preposition.english, english, clause.english()]),
        f", {join([preposition.german, german])} {clause.german('last')}",
    )
