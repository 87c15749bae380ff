"""Samples sentences: statements, questions, and combinations of clauses."""

from dataclasses import replace

from tools.phrasebook.clauses import Clause, Complement
from tools.phrasebook.entries import VERBS, Noun, Slot
from tools.phrasebook.lexicon import NAMES, REPORTING, SUBORDINATORS
from tools.phrasebook.noun_phrases import (
    HE,
    IT,
    SHE,
    THEY,
    WHAT,
    WHO,
    Name,
    Nominal,
    NounPhrase,
    Pronoun,
)
from tools.phrasebook.numbers import english_number, german_number
from tools.phrasebook.sampler_clauses import (
    FITTING,
    FREE_TENSES,
    GAPS,
    IN,
    ClauseSampler,
    is_quantified,
)
from tools.phrasebook.splits import MAX_WORDS, word_counts
from tools.phrasebook.text import NOTHING, Text, concatenate, punctuate
from tools.phrasebook.verbs import BE, COST, PRETERITES

BARE = Slot("", "", "akk", ())
MOTIONS = tuple(verb for verb in VERBS if verb.english in ("go", "run", "drive", "come"))
ACTIONS = tuple(verb for verb in VERBS if not verb.stative and verb.frames[0])
ADVERBS_ASKED = (Text("when", "wann"), Text("why", "warum"))
PRICED = ("clothing", "vehicle", "thing", "surface", "device")
THINGS = tuple(kind for kind in GAPS if kind not in ("person", "animal"))


class SentenceSampler(ClauseSampler):
    """Samples sentences of all kinds."""

    def sentence(self) -> Text:
        """A sentence with a full stop or question mark."""
        if self.chance(0.2):
            return punctuate(self.question(), "?")
        return punctuate(self.declarative())

    def long_sentence(self) -> Text:
        """Coordinated main clauses, as many as make both languages exceed `MAX_WORDS`."""
        text = self.declarative()
        while word_counts(text)[0] <= MAX_WORDS:
            text = self.coordinate(text, self.declarative())
        return punctuate(text)

    def coordinate(self, one: Text, two: Text) -> Text:
        """Joins two main clauses with "and" or "but"."""
        english, german = self.rng.choice(((", and", "und"), (", but", ", aber")))
        return Text(f"{one.english}{english} {two.english}", f"{one.german} {german} {two.german}")

    def declarative(self) -> Text:
        """A sentence of any kind except a question, without a full stop."""
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
        return self.weighted(kinds)()

    def statement(self) -> Text:
        """One main clause."""
        return self.clause().text()

    def coordination(self) -> Text:
        """Two main clauses about different things."""
        one, two = self.clause(plain=True), self.clause(plain=True)
        return self.coordinate(one.text(), two.text())

    def subordination(self) -> Text:
        """A main and a subordinate clause, in either order, often about the same person."""
        conjunction = self.rng.choice(SUBORDINATORS)
        english, german = conjunction
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
        below = self.clause(self.pronoun_for(main.subject), tenses, plain=True)
        if english == "before":  # "before she does not come" makes no sense
            below = replace(below, negated=False)
        if self.chance(0.7):
            return concatenate(main.text(), below.subordinate(conjunction))
        return Text(
            f"{english} {below.english()}, {main.english()}",
            f"{german} {below.german('last')} {main.german('first')}",
        )

    def pronoun_for(self, subject: Nominal) -> Nominal | None:
        """A pronoun for the subject of another clause, or None for a new subject."""
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
        """Reported speech or thought: "that", German "dass" with the verb last."""
        verb = self.rng.choice(REPORTING)
        speaker = self.rng.choice((self.name(), NounPhrase(self.noun(("person",)))))
        # Nothing may precede the subject after "that".
        said = replace(self.clause(self.pronoun_for(speaker)), front=NOTHING)
        who = Text(speaker.english(), speaker.german("nom"))
        return concatenate(who, verb, said.subordinate(Text("that", "dass")))

    def description(self) -> Text:
        """A quality or the price of something, possibly compared with something else."""
        kind = self.rng.choice([kind for kind in GAPS if FITTING[kind]])
        subject = self.subject((kind,))
        tense = self.rng.choice(("present", "present", "past"))
        noun = None
        if isinstance(subject, NounPhrase):
            noun, subject = subject.noun, replace(subject, adjective=None)
            if kind in PRICED and self.chance(0.6):
                return Clause(subject, COST, rest=self.price()).text()
        negated = self.chance(0.2) and not is_quantified(subject)
        rest = self.quality(kind, noun)
        return Clause(subject, BE, tense, negated=negated, rest=rest).text()

    def price(self) -> Text:
        """A price in euros."""
        price = self.rng.randint(2, self.rng.choice((99, 999, 9999)))
        price += price % 100 == 1  # "hunderteins Euro" has other valid forms
        return Text(f"{english_number(price)} euros", f"{german_number(price)} Euro")

    def quality(self, kind: str, noun: Noun | None) -> Text:
        """An adjective, possibly graded or compared with something else than `noun`, or an age."""
        adjective = self.rng.choice(FITTING[kind])
        if kind == "person" and self.chance(0.25):
            age = self.rng.randint(2, 99)
            return Text(f"{english_number(age)} years old", f"{german_number(age)} Jahre alt")
        if adjective.more and self.chance(0.5):
            other = NounPhrase(self.noun((kind,)))
            while other.noun == noun:
                other = NounPhrase(self.noun((kind,)))
            if self.chance(0.7):
                than = Text(f"{adjective.more} than", f"{adjective.german_more} als")
            else:
                than = Text(f"as {adjective.english} as", f"so {adjective.german} wie")
            return concatenate(than, Text(other.english(), other.german("nom")))
        degrees = (NOTHING, Text("very", "sehr"), Text("too", "zu"))
        degree = self.rng.choice(degrees if adjective.more else degrees[:1])
        return concatenate(degree, Text(adjective.english, adjective.german))

    def anaphora(self) -> Text:
        """Two clauses about one thing: the second calls it "it" or "them", with German gender."""
        clause, thing = self.mention()
        it = THEY if thing.plural else IT[thing.key]
        kind = thing.noun.kind
        verbs = [
            verb
            for verb, frame, _ in GAPS[kind]
            if len(frame) == 1 and not frame[0].english and "person" in verb.subjects
            if not verb.stative and verb != clause.verb
        ]
        located = bool(clause.complements[-1].slot.english)
        if FITTING[kind] and (not verbs or located or self.chance(0.4)):
            reason = Clause(it, BE, clause.tense, rest=self.quality(kind, thing.noun))
            return concatenate(clause.text(), reason.subordinate(Text("because", "weil")))
        verb = self.rng.choice(verbs)
        second = Clause(clause.subject, verb, clause.tense, (Complement(it, BARE),), elided=True)
        echo = second.german()
        if clause.tense == "past" and not {verb.german, clause.verb.german} & PRETERITES.keys():
            echo = echo.partition(" ")[2]  # "hat ... gekauft und geputzt": one auxiliary for both
        return concatenate(clause.text(), Text("and", "und"), Text(second.english(), echo))

    def mention(self) -> tuple[Clause, NounPhrase]:
        """A clause about a person and a single thing, so that "it" is unambiguous."""
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
        """A sentence with "there is", German "es gibt" with an accusative."""
        while True:
            phrase = self.noun_phrase(("person", "animal", "thing", "surface", "vessel"))
            if phrase.indefinite or phrase.count:
                break
        place = Complement(NounPhrase(self.noun(IN.kinds)), IN).text()
        be = "are" if phrase.plural else "is"
        there_is = Text(f"there {be}", "es gibt")
        return concatenate(there_is, Text(phrase.english(), phrase.german("akk")), place)

    def purpose(self) -> Text:
        """A sentence with "in order to": somebody goes somewhere to do something."""
        main = self.clause(plain=True, verbs=MOTIONS)
        aim = self.clause(main.subject, ("present",), plain=True, verbs=ACTIONS)
        aim = replace(aim, negated=False)
        return concatenate(main.text(), Text("in order", ", um"), aim.text("infinitive"))

    def question(self) -> Text:
        """A question: yes or no, for the subject, for an object, or with "when" or "why"."""
        form = self.weighted({"yes or no": 40, "who": 15, "object": 30, "adverb": 15})
        if form == "who":
            return self.clause(WHO, plain=True).text()
        clause = replace(self.clause(plain=True), negated=False)
        if form == "object" and clause.complements:
            *others, asked = clause.complements
            clause = replace(clause, complements=tuple(others), front=self.question_word(asked))
        elif form != "yes or no":
            clause = replace(clause, front=self.rng.choice(ADVERBS_ASKED))
        return clause.text("first")

    def question_word(self, complement: Complement) -> Text:
        """The question word that asks for a complement: "whom", "what" or "which ..."."""
        nominal, slot = complement.nominal, complement.slot
        asked: Nominal = WHO
        if isinstance(nominal, NounPhrase):
            which = replace(nominal, determiner="which", owner=None, count=0, plural=False)
            thing = nominal.noun.kind in THINGS and not slot.english
            asked = WHAT if thing and self.chance(0.5) else which
        return Complement(asked, slot).text()
