"""The phrasebook: an embedded English-German corpus, generated from a small synchronous grammar.

Every pair is rendered twice from one structure (noun phrase, clause, sentence): once with English
morphology and word order, once with German. So gender, case, verb position and separable prefixes
are right by construction, no download is needed, and the German is a function of the English.

Here live the grammar, the sampler that fills it with words, and the rule that assigns sentences to
splits. The words themselves are in `phrasebook_lexicon.py`; other corpora are in `sources.py`.
"""

import random
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from t2t.data.phrasebook_lexicon import (
    ADJECTIVE_STEMS,
    ADJECTIVES,
    COMPOUNDS,
    ENGLISH_GERUNDS,
    ENGLISH_PLURALS,
    ENGLISH_TENS,
    ENGLISH_UNITS,
    FREQUENCIES,
    FUTURE_TIMES,
    GERMAN_TENS,
    GERMAN_UNITS,
    MODALS,
    NAMES,
    NOUNS,
    PAST_TIMES,
    RELATED,
    REPORTING,
    SUBORDINATORS,
    TIMES,
    VERBS,
    Adjective,
    Case,
    Noun,
    Slot,
    Verb,
)

Order = Literal["second", "first", "last", "infinitive"]
Agreement = Literal["I", "it", "they"]  # first singular, third singular, any plural and formal you

SIZES = {"train": 40_000, "validation": 500, "test": 1_000, "long": 500}
MAX_WORDS = 16  # of a train, validation or test sentence, in either language; long ones have more
MAX_LONG_WORDS = 40
TRIES = 10_000  # in a row that may bring nothing new before a split counts as exhausted

# By case, then gender or plural. Strong endings stand on dies-, jed-, ein- and bare adjectives.
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
CONTRACTIONS = {
    "in dem": "im",
    "in das": "ins",
    "zu dem": "zum",
    "zu der": "zur",
    "von dem": "vom",
}


class Text(NamedTuple):
    """The same thing said in English and in German."""

    english: str
    german: str


# --- Numbers --------------------


def english_number(n: int) -> str:
    """The words for 0 <= n < 10,000: "three hundred forty-two"."""
    for unit, name in ((1000, "thousand"), (100, "hundred")):
        if n >= unit:
            rest = n % unit
            return f"{english_number(n // unit)} {name}" + (rest > 0) * f" {english_number(rest)}"
    if n < 20:
        return ENGLISH_UNITS[n]
    return ENGLISH_TENS[n // 10] + (n % 10 > 0) * f"-{ENGLISH_UNITS[n % 10]}"


def german_number(n: int) -> str:
    """The word for 0 <= n < 10,000, units before tens: "dreihundertzweiundvierzig"."""
    for unit, name in ((1000, "tausend"), (100, "hundert")):
        if n >= unit:
            rest = n % unit
            return _german_factor(n // unit) + name + (german_number(rest) if rest else "")
    if n < 20:
        return GERMAN_UNITS[n]
    return (f"{_german_factor(n % 10)}und" if n % 10 else "") + GERMAN_TENS[n // 10]


def _german_factor(n: int) -> str:
    return "ein" if n == 1 else german_number(n)


def year(n: int) -> Text:
    """A year: up to 1999 both languages count hundreds, "nineteen eighty-four"."""
    if n >= 2000:
        return Text(f"in {english_number(n)}", f"im Jahr {german_number(n)}")
    century, rest = divmod(n, 100)
    return Text(
        f"in {english_number(century)} {english_number(rest) if rest else 'hundred'}",
        f"im Jahr {german_number(century)}hundert{german_number(rest) if rest else ''}",
    )


def clock_time(hour: int, minutes: int) -> Text:
    """1 <= hour <= 12; "half past three" is "halb vier", half of the fourth hour."""
    this, after = hour, hour % 12 + 1
    match minutes:
        case 0:
            return Text(f"at {english_number(this)} o'clock", f"um {_german_factor(this)} Uhr")
        case 15:
            return Text(
                f"at quarter past {english_number(this)}", f"um Viertel nach {german_number(this)}"
            )
        case 30:
            return Text(f"at half past {english_number(this)}", f"um halb {german_number(after)}")
        case 45:
            return Text(
                f"at quarter to {english_number(after)}", f"um Viertel vor {german_number(after)}"
            )
    raise ValueError(f"minutes={minutes} is not a quarter of an hour; use 0, 15, 30 or 45")


# --- Nouns and what stands before them --------------------


def english_plural(noun: str) -> str:
    """The plural of a noun or compound, of which the last word inflects."""
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
    """Weak after a determiner that shows gender and case, otherwise strong."""
    stem = ADJECTIVE_STEMS.get(adjective, adjective)
    if not shown and not (case == "gen" and key in "mn"):  # "Annas alten Autos"
        return stem + STRONG[case][key]
    weak_e = key != "p" and (case == "nom" or (case == "akk" and key != "m"))
    return stem + ("e" if weak_e else "en")


class Nominal:
    """What can be a subject or an object: a noun phrase, a name or a pronoun."""

    agreement: Agreement = "it"
    relative: "Relative | None" = None

    @property
    def indefinite(self) -> bool:
        """Whether it brings up something new, so that its negation is "kein"."""
        return False

    def english(self) -> str:
        """The English words, as a subject."""
        raise NotImplementedError

    def english_object(self) -> str:
        """The English words, as an object: only pronouns differ."""
        return self.english()

    def german_core(self, case: Case) -> str:
        """Without the relative clause, which German may put behind the verb."""
        raise NotImplementedError

    def german_relative(self) -> str:
        """The relative clause, if there is one."""
        return ""

    def german(self, case: Case) -> str:
        """All the German words."""
        return join([self.german_core(case), self.german_relative()])


@dataclass(frozen=True)
class NounPhrase(Nominal):
    """A noun with what belongs to it. `determiner` is English; "" is a bare plural or mass noun."""

    noun: Noun
    determiner: str = "the"
    plural: bool = False
    adjective: Adjective | None = None
    count: int = 0  # 2 or more: "twelve chairs"
    owner: Nominal | None = None  # replaces the determiner: "my brother's car"
    relative: "Relative | None" = None

    @property
    def agreement(self) -> Agreement:  # type: ignore[override]
        """Singular or plural, for the verb."""
        return "they" if self.plural else "it"

    @property
    def key(self) -> str:
        """The column of the inflection tables: a gender, or "p" for the plural."""
        return "p" if self.plural else self.noun.gender.replace("w", "m")

    @property
    def indefinite(self) -> bool:
        """Whether it is bare or has "a": its negation is "kein"."""
        return self.determiner in ("a", "") and not self.count and not self.owner

    def english(self) -> str:
        """Determiner, number, adjective, noun and relative clause."""
        noun = english_plural(self.noun.english) if self.plural else self.noun.english
        words = [self.adjective.english] if self.adjective else []
        words = [english_number(self.count)] * (self.count > 0) + words + noun.split()
        determiner = f"{self.owner.english()}'s" if self.owner else self.determiner
        if determiner == "a" and words[0][0] in "aeiou":
            determiner = "an"
        if determiner == "this" and self.plural:
            determiner = "these"
        relative = [self.relative.english(self.noun.kind == "person")] if self.relative else []
        return join([determiner, *words, *relative])

    def german_core(self, case: Case) -> str:
        """The same without the relative clause, inflected; a genitive follows its noun."""
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

    def german_relative(self) -> str:
        """The relative clause between commas, or nothing."""
        return self.relative.german(self.key) if self.relative else ""


@dataclass(frozen=True)
class Name(Nominal):
    """A proper name; the German genitive is "Annas"."""

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
        """The form of the case; there is no genitive."""
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
POSSESSIVES = {"I": "my", "we": "our", "you": "your", "he": "his", "she": "her", "they": "their"}

# --- Verbs --------------------

BE = Verb("be", "was", "sein", "", "ist", "gewesen", "sein", (), ((),), True)
COST = Verb("cost", "cost", "kosten", "", "kostet", "gekostet", "haben", (), ((),), True)
AUXILIARIES = {
    "haben": {"I": "habe", "it": "hat", "they": "haben"},
    "sein": {"I": "bin", "it": "ist", "they": "sind"},
}
# The two verbs whose past is not the perfect ("ist gewesen") in good German.
PRETERITES = {
    "haben": {"I": "hatte", "it": "hatte", "they": "hatten"},
    "sein": {"I": "war", "it": "war", "they": "waren"},
}


PARTICLES = ("up", "on", "off", "along")


def english_third(verb: str) -> str:
    """he, she, it ...: the third person singular."""
    if verb in ("be", "have"):
        return {"be": "is", "have": "has"}[verb]
    if verb.endswith(("s", "ch", "sh", "o")):
        return verb + "es"
    return verb[:-1] + "ies" if verb[-1] == "y" and verb[-2] not in "aeou" else verb + "s"


def english_gerund(verb: str) -> str:
    """The form in -ing."""
    silent_e = verb.endswith("e") and not verb.endswith("ee")
    return ENGLISH_GERUNDS.get(verb, (verb[:-1] if silent_e else verb) + "ing")


def english_predicate(
    verb: Verb, tense: str, agreement: Agreement, negated: bool, inverted: bool
) -> tuple[str, str]:
    """The auxiliary (it goes before the subject of a question) and the words that follow it."""
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
    """The finite verb, what closes the sentence bracket, and both as a verb-final cluster."""
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


# --- Clauses --------------------


@dataclass(frozen=True)
class Complement:
    """An object or a prepositional phrase."""

    nominal: Nominal
    slot: Slot

    def english(self) -> str:
        """The preposition, if any, and the object."""
        return join([self.slot.english, self.nominal.english_object()])

    def german_core(self, nominal: Nominal | None = None) -> str:
        """Preposition and nominal (or another one in its place), contracted: "im Haus"."""
        core = (nominal or self.nominal).german_core(self.slot.case)
        article, _, rest = core.partition(" ")
        contracted = CONTRACTIONS.get(f"{self.slot.german} {article}")
        # A relative clause needs the full article: "in dem Haus, das ...", but "im Haus".
        if contracted and not self.nominal.german_relative() and self._has_article():
            return f"{contracted} {rest}"
        return join([self.slot.german, core])

    def _has_article(self) -> bool:
        return isinstance(self.nominal, NounPhrase) and (
            self.nominal.determiner == "the" and not isinstance(self.nominal.owner, Name)
        )


@dataclass(frozen=True)
class Clause:
    """A verb with its subject and complements; `subject` is None where it was said before."""

    subject: Nominal | None
    verb: Verb
    tense: str = "present"  # or "progressive", "past", a key of MODALS
    complements: tuple[Complement, ...] = ()
    agreement: Agreement = "it"  # of the missing subject
    negated: bool = False
    time: Text | None = None
    frequency: Text | None = None
    place: Complement | None = None
    rest: Text | None = None  # predicate adjective, price, age
    fronted: Literal["", "time", "place"] = ""

    def english(self, order: Order = "second", front: str = "") -> str:
        """The English words: "first" is the order of questions, the others begin with the subject.

        `front` is a question word or the like; the clause's own fronted adverb is the default.
        """
        agreement = self.subject.agreement if self.subject else self.agreement
        auxiliary, main = english_predicate(
            self.verb, self.tense, agreement, self.negated, order == "first"
        )
        if order == "infinitive":
            auxiliary, main = "", self.verb.english
        subject = self.subject.english() if self.subject else ""
        objects = [complement.english() for complement in self.complements]
        verb, _, particle = main.rpartition(" ")
        if particle in PARTICLES and objects and isinstance(self.complements[0].nominal, Pronoun):
            main, objects[0] = verb, f"{objects[0]} {particle}"  # "turns it on"
        return join(
            [
                front or self._fronted().english,
                *([auxiliary, subject] if order == "first" else [subject, auxiliary]),
                self.frequency.english if self.frequency else "",
                main,
                *objects,
                self.rest.english if self.rest else "",
                self.place.english() if self.place and self.fronted != "place" else "",
                self.time.english if self.time and self.fronted != "time" else "",
            ]
        )

    def _fronted(self) -> Text:
        if self.fronted == "time" and self.time:
            return self.time
        if self.fronted == "place" and self.place:
            return Text(self.place.english(), self.place.german_core())
        return Text("", "")

    def german(self, order: Order = "second", front: str = "") -> str:
        """The German words: the verb second, first or last, or an infinitive with "zu"."""
        agreement = self.subject.agreement if self.subject else self.agreement
        finite, closing, cluster = german_predicate(self.verb, self.tense, agreement)
        subject = self.subject.german("nom") if self.subject else ""
        front = front or self._fronted().german
        middle, tail = self._german_middle()
        match order:
            case "last":
                return join([front, subject, *middle, cluster, tail])
            case "infinitive":
                zu = f"{self.verb.prefix}zu{self.verb.german}" if self.verb.prefix else ""
                return join([*middle, zu or f"zu {self.verb.german}", tail])
            case "first":
                return join([front, finite, subject, *middle, closing, tail])
            case "second" if front:
                return join([front, finite, subject, *middle, closing, tail])
        return join([subject, finite, *middle, closing, tail])

    def _german_middle(self) -> tuple[list[str], str]:
        """What stands between the verb's two places, and a relative clause moved behind both.

        Pronouns come first, then time, known things, place, new things. "nicht" stands before the
        first thing that it can deny besides the verb; before something new it becomes "kein".
        """
        bare = [c for c in self.complements if not c.slot.german]
        pronouns = [c for c in bare if isinstance(c.nominal, Pronoun)]
        # A dative precedes the accusative, also when it is the newer of the two.
        new = [c for c in bare if c.nominal.indefinite and len(bare) == 1]
        known = [c for c in bare if c not in pronouns and c not in new]
        denied = bare[-1] if self.negated and bare and bare[-1].nominal.indefinite else None
        tail = self.complements[-1].nominal.german_relative() if self.complements else ""
        middle = [
            *(c.german_core() for c in pronouns),
            self.time.german if self.time and self.fronted != "time" else "",
            self.frequency.german if self.frequency else "",
            "gerade" if self.tense == "progressive" else "",
            *(self._german_object(c, c is denied) for c in known),
            "nicht" if self.negated and not denied else "",
            self.place.german_core() if self.place and self.fronted != "place" else "",
            *(self._german_object(c, c is denied) for c in new),
            *(c.german_core() for c in self.complements if c.slot.german),
            self.rest.german if self.rest else "",
        ]
        return middle, tail

    def _german_object(self, complement: Complement, denied: bool) -> str:
        nominal = complement.nominal
        if denied and isinstance(nominal, NounPhrase):
            nominal = replace(nominal, determiner="no")
        followed = complement is not self.complements[-1]
        relative = nominal.german_relative() if followed else ""
        return join([complement.german_core(nominal), relative])


@dataclass(frozen=True)
class Relative:
    """A relative clause: `clause` lacks its subject, or the complement that `gap` describes."""

    clause: Clause
    gap: Slot | None = None

    def english(self, personal: bool) -> str:
        """who, whom, that, with whom, for which ... and the clause."""
        if self.gap is None:
            return f"{'who' if personal else 'that'} {self.clause.english()}"
        if self.gap.english:
            return f"{self.gap.english} {'whom' if personal else 'which'} {self.clause.english()}"
        return f"{'whom' if personal else 'that'} {self.clause.english()}"

    def german(self, key: str) -> str:
        """The clause between commas; the pronoun agrees with the `key` of the noun."""
        case: Case = self.gap.case if self.gap else "nom"
        pronoun = "denen" if (case, key) == ("dat", "p") else DEFINITE[case][key]
        preposition = self.gap.german if self.gap else ""
        return f", {join([preposition, pronoun])} {self.clause.german('last')} ,"


def join(words: Iterable[str]) -> str:
    """The words that are not empty, with spaces."""
    return " ".join(filter(None, words))


def punctuate(text: str, end: str = ".") -> str:
    """A sentence: commas once and attached, none at the end, a capital first, `end` last."""
    text = re.sub(r"(\s*,)+", ",", text).rstrip(",")
    return text[0].upper() + text[1:] + end


# --- The sampler: structures filled with words that make sense together --------------------

BARE = Slot("", "", "akk", ())
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
# For each class of noun, the verb frames in which it can be a complement, and which one it is.
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
MOTIONS = tuple(verb for verb in VERBS if verb.english in ("go", "run", "drive", "come"))
ACTIONS = tuple(verb for verb in VERBS if not verb.stative and verb.frames[0])
THINGS = tuple(kind for kind in GAPS if kind not in ("person", "animal"))


def quantified(nominal: Nominal) -> bool:
    """Whether negating the clause could be taken as negating "every" or the number."""
    return isinstance(nominal, NounPhrase) and (nominal.determiner == "every" or nominal.count > 0)


def held_out(compound: Noun) -> bool:
    """Whether a compound is kept out of train, so that the other splits test composition."""
    return zlib.crc32(compound.german.encode()) % 8 == 0


class Sampler:
    """Draws sentences; `novel` admits the compounds that are held out of train."""

    def __init__(self, rng: random.Random, novel: bool):
        self.rng = rng
        self.nouns = {kind: [n for n in NOUNS if n.kind == kind] for kind in GAPS}
        self.compounds = {
            kind: [n for n in COMPOUNDS if n.kind == kind and (novel or not held_out(n))]
            for kind in GAPS
        }

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.rng.random() < probability

    def weighted(self, weights: dict[str, int]) -> str:
        """A key, as often as its value says."""
        return self.rng.choices(list(weights), list(weights.values()))[0]

    # Nominals

    def noun(self, kinds: tuple[str, ...]) -> Noun:
        """A noun of one of the classes, simple or compound."""
        kind = self.rng.choice(kinds)
        if self.compounds[kind] and self.chance(0.2 if kind == "person" else 0.4):
            return self.rng.choice(self.compounds[kind])
        return self.rng.choice(self.nouns[kind])

    def noun_phrase(
        self, kinds: tuple[str, ...], possessive: str = "my", relative: bool = False
    ) -> NounPhrase:
        """A noun phrase; `possessive` is the word to use where it gets one."""
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

    def relative(self, phrase: NounPhrase) -> Relative:
        """A clause about the phrase, which is its subject or one of its complements."""
        kind = phrase.noun.kind
        verbs = [verb for verb in VERBS if kind in verb.subjects]
        if verbs and self.chance(0.5):
            verb = self.rng.choice(verbs)
            clause = self.fill(verb, self.rng.choice(verb.frames), phrase, FREE_TENSES, plain=True)
            return Relative(replace(clause, subject=None))
        verb, frame, i = self.rng.choice(GAPS[kind])
        others = frame[:i] + frame[i + 1 :]
        subject = self.subject(verb.subjects)
        return Relative(self.fill(verb, others, subject, FREE_TENSES, plain=True), frame[i])

    def name(self) -> Name:
        """A person by name."""
        return Name(self.rng.choice(NAMES["f"] + NAMES["m"]))

    def subject(self, kinds: tuple[str, ...], relative: bool = False) -> Nominal:
        """Something known, which can open a sentence."""
        if kinds[0] == "person" and self.chance(0.35):
            return self.rng.choice((I, WE, YOU, HE, SHE, THEY, self.name(), self.name()))
        while True:
            phrase = self.noun_phrase(kinds, self.rng.choice(("my", "our", "your")), relative)
            if not phrase.indefinite:  # what is new makes a poor topic
                return phrase

    def object(self, slot: Slot, subject: Nominal, relative: bool) -> Nominal:
        """What fills a slot beside this subject."""
        if slot.kinds[0] == "person" and self.chance(0.25):
            others = [pronoun for pronoun in (HE, SHE, THEY) if pronoun != subject]
            others += [] if subject in (I, WE) else [I, WE]
            return self.rng.choice((*others, self.name()))
        return self.noun_phrase(slot.kinds, self.possessive(subject), relative)

    def possessive(self, subject: Nominal) -> str:
        """The subject's own, where sex or number decide the word; else somebody else's."""
        match subject:
            case Pronoun():
                return POSSESSIVES.get(subject.subject, "my")
            case Name():
                return "her" if subject.name in NAMES["f"] else "his"
            case NounPhrase() if subject.noun.kind == "person":
                return {"p": "their", "m": "his", "f": "her", "n": "my"}[subject.key]
        return self.rng.choice(("my", "our", "your"))

    # Clauses

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
        """A clause with these slots filled; see `clause`."""
        relative = not plain and self.chance(0.15)
        complements = tuple(
            Complement(self.object(slot, subject, relative and slot is frame[-1]), slot)
            for slot in frame
        )
        tense = self.tense(verb, subject, tenses)
        # "not every" and "not three" deny the number: another order, and not what is meant.
        parts = (subject, *(complement.nominal for complement in complements))
        negated = self.chance(0.15) and not any(quantified(part) for part in parts)
        return Clause(subject, verb, tense, complements, subject.agreement, negated)

    def tense(self, verb: Verb, subject: Nominal, tenses: tuple[str, ...]) -> str:
        """One of `tenses` that suits verb and subject; else the first, which suits all."""
        tense = self.rng.choice(tenses)
        personal = not isinstance(subject, NounPhrase) or subject.noun.kind == "person"
        if tense in MODALS and tense != "will" and not personal:
            return tenses[0]
        if verb.stative and tense not in ("present", "past", "will"):
            return tenses[0]
        if tense == "past" and verb.past == verb.english.split()[0] and subject.agreement != "it":
            return tenses[0]  # "they read" would be present or past
        return tense

    def with_adverb(self, clause: Clause) -> Clause:
        """At most one adverb, where it attaches to this clause beyond doubt."""
        last = clause.complements[-1].nominal if clause.complements else None
        # Behind a relative clause an adverb would belong to that: there it must be fronted.
        fronted = bool(last and last.relative) or self.chance(0.35)
        counted = isinstance(clause.subject, NounPhrase) and clause.subject.count > 0
        if clause.tense == "progressive" or (fronted and counted):
            return clause  # "in two thousand two twelve monkeys ..." could be read in two ways
        if self.chance(0.35):
            time = self.time(clause)
            return replace(clause, time=time, fronted="time" if fronted else "")
        if clause.negated:
            return clause
        if self.chance(0.2):
            return replace(clause, frequency=Text(*self.rng.choice(FREQUENCIES)))
        settled = clause.verb.stative or any(c.slot.english for c in clause.complements)
        if not settled and self.chance(0.4):
            return replace(clause, place=self.place(), fronted="place" if fronted else "")
        return clause

    def time(self, clause: Clause) -> Text:
        """A time that goes with the tense."""
        tense = clause.tense
        quarter = self.rng.choice((0, 15, 30, 45))
        # One does not love somebody at three o'clock.
        choices = [] if clause.verb.stative else [clock_time(self.rng.randint(1, 12), quarter)] * 5
        if tense == "past":
            choices += [Text(*words) for words in PAST_TIMES] * 2
            choices += [year(self.rng.randint(1900, 2029))] * 4
        elif tense in MODALS and tense != "could":
            choices += [Text(*words) for words in FUTURE_TIMES] * 2
        elif tense == "present" and not clause.negated:  # "nicht jeden Tag" is something else
            choices += [Text("every day", "jeden Tag")] * 3
        return self.rng.choice(choices + [Text(*words) for words in TIMES])

    def place(self) -> Complement:
        """Where something happens."""
        slot = self.rng.choice((IN, IN, IN_FRONT, BEHIND))
        return Complement(NounPhrase(self.noun(slot.kinds)), slot)

    # Sentences

    def sentence(self) -> Text:
        """A sentence with its full stop or question mark."""
        if self.chance(0.2):
            return self.finish(self.question(), "?")
        return self.finish(self.declarative(), ".")

    def long_sentence(self) -> Text:
        """Main clauses strung together until both languages exceed `MAX_WORDS`."""
        text = self.declarative()
        while word_counts(text)[0] <= MAX_WORDS:
            text = self.joined(text, self.declarative())
        return self.finish(text, ".")

    def finish(self, text: Text, end: str) -> Text:
        """Both sides as sentences."""
        return Text(punctuate(text.english, end), punctuate(text.german, end))

    def joined(self, one: Text, two: Text) -> Text:
        """Two main clauses, coordinated."""
        english, german = self.rng.choice(((", and", "und"), (", but", ", aber")))
        return Text(f"{one.english}{english} {two.english}", f"{one.german} {german} {two.german}")

    def declarative(self) -> Text:
        """A sentence of any kind but a question, without its full stop."""
        kinds = {
            self.statement: 36,
            self.subordination: 16,
            self.report: 8,
            self.description: 12,
            self.coordination: 6,
            self.anaphora: 8,
            self.existence: 4,
            self.purpose: 5,
        }
        return self.rng.choices(list(kinds), list(kinds.values()))[0]()

    def statement(self) -> Text:
        """One main clause."""
        clause = self.clause()
        return Text(clause.english(), clause.german())

    def coordination(self) -> Text:
        """Two main clauses about different things."""
        one, two = self.clause(plain=True), self.clause(plain=True)
        return self.joined(Text(one.english(), one.german()), Text(two.english(), two.german()))

    def subordination(self) -> Text:
        """Main and subordinate clause, in either order, often about the same person."""
        english, german = self.rng.choice(SUBORDINATORS)
        tenses = {
            "if": ("present", "will", "should", "can"),
            "while": ("present", "past"),
            "before": ("present", "past"),
        }.get(english, FREE_TENSES)
        main = self.clause(tenses=tenses, plain=True)
        if english in ("while", "before"):
            tenses = (main.tense,)
        elif english == "if":
            tenses = ("present",)
        below = self.clause(self.again(main.subject), tenses, plain=True)
        if english == "before":  # before something that does not happen?
            below = replace(below, negated=False)
        if self.chance(0.7):
            return Text(
                f"{main.english()} {english} {below.english()}",
                f"{main.german()} , {german} {below.german('last')} ,",
            )
        return Text(
            f"{english} {below.english()}, {main.english()}",
            f"{german} {below.german('last')} , {main.german('first')}",
        )

    def again(self, subject: Nominal | None) -> Nominal | None:
        """A pronoun for the subject of the other clause, or None: somebody else."""
        if self.chance(0.3):
            return None
        if isinstance(subject, Pronoun):
            return subject
        if isinstance(subject, Name):
            return SHE if subject.name in NAMES["f"] else HE
        if isinstance(subject, NounPhrase) and subject.noun.kind == "person":
            return {"p": THEY, "m": HE, "f": SHE, "n": None}[subject.key]
        return None

    def report(self) -> Text:
        """What somebody says or thinks: "dass" and the verb last."""
        english, german = self.rng.choice(REPORTING)
        speaker = self.rng.choice((self.name(), NounPhrase(self.noun(("person",)))))
        said = self.clause(self.again(speaker))
        if said.fronted:  # no place for that behind "that"
            said = replace(said, time=None, place=None, fronted="")
        return Text(
            f"{speaker.english()} {english} that {said.english()}",
            f"{speaker.german('nom')} {german} , dass {said.german('last')} ,",
        )

    def description(self) -> Text:
        """What something is like, in comparison with something else, or what it costs."""
        kind = self.rng.choice([kind for kind in GAPS if FITTING[kind]])
        subject = self.subject((kind,))
        tense: str = self.rng.choice(("present", "present", "past"))
        if isinstance(subject, NounPhrase):
            subject = replace(subject, adjective=None)
            if kind in ("clothing", "vehicle", "thing", "surface", "device") and self.chance(0.6):
                price = self.rng.randint(2, self.rng.choice((99, 999, 9999)))
                price += price % 100 == 1  # "hunderteins Euro" has rivals
                rest = Text(f"{english_number(price)} euros", f"{german_number(price)} Euro")
                clause = Clause(subject, COST, "present", rest=rest)
                return Text(clause.english(), clause.german())
        negated = self.chance(0.2) and not quantified(subject)
        rest = self.quality(kind, subject.noun if isinstance(subject, NounPhrase) else None)
        clause = Clause(subject, BE, tense, negated=negated, rest=rest)
        return Text(clause.english(), clause.german())

    def quality(self, kind: str, noun: Noun | None) -> Text:
        """An adjective, graded or compared with something other than `noun`, or an age."""
        adjective = self.rng.choice(FITTING[kind])
        english, german = adjective.english, adjective.german
        if kind == "person" and self.chance(0.25):
            age = self.rng.randint(2, 99)
            return Text(f"{english_number(age)} years old", f"{german_number(age)} Jahre alt")
        if adjective.more and self.chance(0.5):
            other = NounPhrase(self.noun((kind,)))
            while other.noun == noun:
                other = NounPhrase(self.noun((kind,)))
            if self.chance(0.7):
                english, german = f"{adjective.more} than", f"{adjective.german_more} als"
            else:
                english, german = f"as {english} as", f"so {german} wie"
            return Text(f"{english} {other.english()}", f"{german} {other.german('nom')}")
        degrees = (("", ""), ("very", "sehr"), ("too", "zu"))
        more, mehr = self.rng.choice(degrees if adjective.more else degrees[:1])
        return Text(join([more, english]), join([mehr, german]))

    def anaphora(self) -> Text:
        """A thing, taken up by "it" or "them", which has the gender of the German noun."""
        clause, thing = self.mention()
        it = THEY if thing.plural else IT[thing.key]
        kind = thing.noun.kind
        english, german = clause.english(), clause.german()
        verbs = [
            verb
            for verb, frame, _ in GAPS[kind]
            if len(frame) == 1 and not frame[0].english and "person" in verb.subjects
            if not verb.stative and verb != clause.verb
        ]
        located = bool(clause.complements[-1].slot.english)
        if FITTING[kind] and (not verbs or located or self.chance(0.4)):
            reason = Clause(it, BE, clause.tense, rest=self.quality(kind, thing.noun))
            return Text(
                f"{english} because {reason.english()}",
                f"{german} , weil {reason.german('last')} ,",
            )
        verb = self.rng.choice(verbs)
        second = Clause(None, verb, clause.tense, (Complement(it, BARE),), clause.agreement)
        echo = second.german()
        if clause.tense == "past" and not {verb.german, clause.verb.german} & PRETERITES.keys():
            echo = echo.partition(" ")[2]  # "hat ... gekauft und geputzt": one auxiliary for both
        return Text(f"{english} and {second.english()}", f"{german} und {echo}")

    def mention(self) -> tuple[Clause, NounPhrase]:
        """A clause in which a person deals with one thing only, so that "it" is clear."""
        while True:
            clause = self.clause(plain=True, tenses=("present", "past"))
            if clause.negated or not clause.complements:
                continue
            thing = clause.complements[-1].nominal
            if isinstance(thing, NounPhrase) and thing.noun.kind in THINGS:
                others = (clause.subject, *(c.nominal for c in clause.complements[:-1]))
                if all(not isinstance(o, NounPhrase) or o.noun.kind == "person" for o in others):
                    return clause, thing

    def existence(self) -> Text:
        """The sentence with "there is": German "es gibt" takes an accusative."""
        while True:
            phrase = self.noun_phrase(("person", "animal", "thing", "surface", "vessel"))
            if phrase.indefinite or phrase.count:
                break
        place = Complement(NounPhrase(self.noun(IN.kinds)), IN)
        be = "are" if phrase.plural else "is"
        return Text(
            f"there {be} {phrase.english()} {place.english()}",
            f"es gibt {phrase.german('akk')} {place.german_core()}",
        )

    def purpose(self) -> Text:
        """Going somewhere in order to do something."""
        main = self.clause(plain=True, verbs=MOTIONS)
        aim = self.clause(main.subject, ("present",), plain=True, verbs=ACTIONS)
        aim = replace(aim, subject=None, negated=False)
        return Text(
            f"{main.english()} in order to {aim.english('infinitive')}",
            f"{main.german()} , um {aim.german('infinitive')} ,",
        )

    def question(self) -> Text:
        """Yes or no, who, which object, or when, where and why."""
        form = self.weighted({"yes or no": 40, "who": 15, "object": 30, "adverb": 15})
        if form == "who":
            clause = self.clause(WHO, plain=True)
            return Text(clause.english(), clause.german())
        clause = replace(self.clause(plain=True), negated=False)
        if form == "yes or no":
            return Text(clause.english("first"), clause.german("first"))
        if form == "object" and clause.complements:
            *others, asked = clause.complements
            clause = replace(clause, complements=tuple(others))
            front = self.asked(asked)
            return Text(
                clause.english("first", front.english), clause.german("second", front.german)
            )
        front = Text(*self.rng.choice((("when", "wann"), ("why", "warum"))))
        return Text(clause.english("first", front.english), clause.german("second", front.german))

    def asked(self, complement: Complement) -> Text:
        """The question word for a complement: whom, what or which ..."""
        nominal, slot = complement.nominal, complement.slot
        asked: Nominal = WHO
        if isinstance(nominal, NounPhrase):
            which = replace(nominal, determiner="which", owner=None, count=0, plural=False)
            thing = nominal.noun.kind in THINGS and not slot.english
            asked = WHAT if thing and self.chance(0.5) else which
        complement = Complement(asked, slot)
        return Text(complement.english(), complement.german_core())


# --- Splits --------------------


def word_counts(pair: tuple[str, str]) -> tuple[int, int]:
    """The smaller and the larger of the two sentences' numbers of words."""
    english, german = (len(text.split()) for text in pair)
    return min(english, german), max(english, german)


def split_of(pair: tuple[str, str]) -> str | None:
    """The one split to which a pair may belong: by length, then by a hash of its German.

    The German decides because it is a function of the English: two English sentences with one
    translation come together, and so no sentence of either language is in two splits. None if the
    pair is too long for train on one side only, or too long for all.
    """
    shorter, longer = word_counts(pair)
    if longer > MAX_WORDS:
        return "long" if shorter > MAX_WORDS and longer <= MAX_LONG_WORDS else None
    bucket = zlib.crc32(pair[1].encode()) % 20
    return "validation" if bucket < 2 else "test" if bucket < 5 else "train"


def generate(split: str, size: int | None = None, seed: int = 0) -> list[tuple[str, str]]:
    """The (English, German) pairs of "train", "validation", "test" or "long", all different.

    "long" holds sentences that exceed every sentence of the other splits in both languages. `size`
    defaults to `SIZES[split]`. The same arguments give the same pairs on every machine; another
    seed gives other pairs, but no sentence ever changes its split.

    Raises:
        ValueError: the split is unknown, or `size` is negative or more than the grammar yields.
    """
    if split not in SIZES:
        raise ValueError(
            f"split={split!r} is not a split of the phrasebook; use {', '.join(SIZES)}"
        )
    size = SIZES[split] if size is None else size
    if size < 0:
        raise ValueError(f"size={size} is negative; use 0 or more, or None for {SIZES[split]}")
    sampler = Sampler(random.Random(f"phrasebook {split} {seed}"), novel=split != "train")
    draw = sampler.long_sentence if split == "long" else sampler.sentence
    pairs: dict[str, str] = {}  # by German, so that neither language repeats
    tries = 0
    while len(pairs) < size:
        pair = draw()
        tries += 1
        if split_of(pair) == split and pair.german not in pairs:
            pairs[pair.german] = pair.english
            tries = 0
        elif tries == TRIES:
            raise ValueError(
                f"size={size} is more than the phrasebook's split {split!r} yields: {len(pairs)} "
                f"pairs, then none in {TRIES} tries; use size={len(pairs)} or less"
            )
    return [(english, german) for german, english in pairs.items()]
