"""Subjects and objects: noun phrases, names and pronouns."""

import abc
from dataclasses import dataclass
from typing import Literal

from tools.phrasebook.entries import Adjective, Case, Noun
from tools.phrasebook.nouns import (
    english_plural,
    german_adjective,
    german_determiner,
    german_noun,
)
from tools.phrasebook.numbers import english_number, german_number
from tools.phrasebook.text import NOTHING, Text, join

Agreement = Literal["I", "it", "they"]  # first singular, third singular, any plural and formal you


class Nominal(abc.ABC):
    """A subject or object, in both languages."""

    relative: Text = NOTHING  # relative clause; separate, because German may put it after the verb

    @property
    def agreement(self) -> Agreement:
        """Person and number, with which the verb agrees."""
        return "it"

    @property
    def indefinite(self) -> bool:
        """True if it is indefinite, so that its negation is "kein"."""
        return False

    @abc.abstractmethod
    def english(self) -> str:
        """The English words of the subject."""

    def english_object(self) -> str:
        """The English words of the object; only pronouns differ from the subject."""
        return self.english()

    @abc.abstractmethod
    def german_core(self, case: Case) -> str:
        """The German words without the relative clause."""

    def german(self, case: Case) -> str:
        """All German words."""
        return join([self.german_core(case), self.relative.german])


@dataclass(frozen=True)
class NounPhrase(Nominal):
    """A noun with determiner, adjective, number, owner and relative clause.

    `determiner` is English; "" gives a bare plural or mass noun.
    """

    noun: Noun
    determiner: str = "the"
    plural: bool = False
    adjective: Adjective | None = None
    count: int = 0  # 2 or more: "twelve chairs"
    owner: Nominal | None = None  # replaces the determiner: "my brother's car"
    relative: Text = NOTHING

    @property
    def agreement(self) -> Agreement:
        """Singular or plural."""
        return "they" if self.plural else "it"

    @property
    def key(self) -> str:
        """The column of the inflection tables: a gender, or "p" for the plural."""
        return "p" if self.plural else self.noun.gender.replace("w", "m")

    @property
    def indefinite(self) -> bool:
        """True if the noun is bare or has "a"."""
        return self.determiner in ("a", "") and not self.count and not self.owner

    def english(self) -> str:
        """Determiner, number, adjective, noun and relative clause."""
        words = join(
            [
                english_number(self.count) if self.count else "",
                self.adjective.english if self.adjective else "",
                english_plural(self.noun.english) if self.plural else self.noun.english,
            ]
        )
        determiner = f"{self.owner.english()}'s" if self.owner else self.determiner
        if determiner == "a" and words[0] in "aeiou":
            determiner = "an"
        if determiner == "this" and self.plural:
            determiner = "these"
        return join([determiner, words, self.relative.english])

    def german_core(self, case: Case) -> str:
        """Determiner, number, adjective, noun and genitive, inflected; no relative clause."""
        word, possessor = self.determiner, ""
        if isinstance(self.owner, Name):
            word = self.owner.german("gen")  # "Annas Auto", but "das Auto meines Bruders"
        elif self.owner:
            word, possessor = "the", self.owner.german("gen")
        determiner, shown = german_determiner(word, case, self.key)
        adjective = self.adjective
        return join(
            [
                determiner,
                german_number(self.count) if self.count else "",
                german_adjective(adjective.german, case, self.key, shown) if adjective else "",
                german_noun(self.noun, case, self.plural),
                possessor,
            ]
        )


@dataclass(frozen=True)
class Name(Nominal):
    """A proper name."""

    name: str

    def english(self) -> str:
        """The name."""
        return self.name

    def german_core(self, case: Case) -> str:
        """The name; "Annas" in the genitive."""
        return self.name + ("s" if case == "gen" else "")


@dataclass(frozen=True)
class Pronoun(Nominal):
    """A personal or interrogative pronoun; the German forms are nominative, accusative, dative."""

    subject: str
    object: str
    forms: tuple[str, str, str]
    agreement: Agreement = "it"

    def english(self) -> str:
        """The subject form."""
        return self.subject

    def english_object(self) -> str:
        """The object form."""
        return self.object

    def german_core(self, case: Case) -> str:
        """The form in this case; the genitive does not occur."""
        return self.forms[("nom", "akk", "dat").index(case)]


I = Pronoun("I", "me", ("ich", "mich", "mir"), "I")  # noqa: E741, the English word
WE = Pronoun("we", "us", ("wir", "uns", "uns"), "they")
YOU = Pronoun("you", "you", ("Sie", "Sie", "Ihnen"), "they")
HE = Pronoun("he", "him", ("er", "ihn", "ihm"))
SHE = Pronoun("she", "her", ("sie", "sie", "ihr"))
THEY = Pronoun("they", "them", ("sie", "sie", "ihnen"), "they")
WHO = Pronoun("who", "whom", ("wer", "wen", "wem"))
WHAT = Pronoun("what", "what", ("was", "was", "was"))
# "it" takes the gender of the German noun that it stands for.
IT = {
    "m": Pronoun("it", "it", ("er", "ihn", "ihm")),
    "f": Pronoun("it", "it", ("sie", "sie", "ihr")),
    "n": Pronoun("it", "it", ("es", "es", "ihm")),
}
