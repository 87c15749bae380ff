"""Records of nouns, verbs and adjectives, read from the tables of the lexicon."""

from typing import Literal, NamedTuple

from tools.phrasebook import lexicon

Case = Literal["nom", "akk", "dat", "gen"]


class Noun(NamedTuple):
    """A noun and its semantic class, by which verbs select their subjects and objects."""

    english: str
    german: str
    gender: str  # "m", "f" or "n"; "w" is a masculine of the n-declension (der Junge, den Jungen)
    plural: str  # German plural; empty for a mass noun
    kind: str  # the semantic class


class Slot(NamedTuple):
    """A complement of a verb: a bare object, or one with a preposition in both languages."""

    english: str  # preposition; empty for a bare object
    german: str
    case: Case
    kinds: tuple[str, ...]


class Verb(NamedTuple):
    """A verb with its principal forms and its frames: the complements that it takes."""

    english: str  # infinitive; the first word inflects ("look for")
    past: str
    german: str  # infinitive without its separable prefix
    prefix: str  # separable prefix ("an" of "anrufen") or empty
    third: str  # third person singular ("er ruft": "ruft")
    participle: str
    perfect_with: str  # "haben" or "sein"
    subjects: tuple[str, ...]
    frames: tuple[tuple[Slot, ...], ...]  # alternatives
    stative: bool  # has no English progressive


class Adjective(NamedTuple):
    """An adjective, its comparatives, and the classes of nouns that it can describe."""

    english: str
    german: str
    more: str  # English comparative; empty if the adjective cannot be compared
    german_more: str
    kinds: tuple[str, ...]


def read_verb(english: str, german: str, subjects: str, frames: str) -> Verb:
    """Reads one row of `lexicon.VERBS`; the notation is explained there."""
    base, past = english.split(", ")
    infinitive, third, participle, *sein = german.split()
    prefix, _, stem = infinitive.rpartition("-")
    return Verb(
        english=base,
        past=past,
        german=stem,
        prefix=prefix,
        third=third,
        participle=participle,
        perfect_with=sein[0] if sein else "haben",
        subjects=_read_kinds(subjects),
        frames=_read_frames(frames.removesuffix("!")),
        stative=frames.endswith("!"),
    )


def _read_kinds(words: str) -> tuple[str, ...]:
    return tuple(" ".join(lexicon.GROUPS.get(word, word) for word in words.split()).split())


def _read_frames(text: str) -> tuple[tuple[Slot, ...], ...]:
    for group, members in lexicon.FRAME_GROUPS.items():
        before, name, case = text.partition(group)
        if name:
            text = ";".join(before + member.format(case.strip()) for member in members)
    return tuple(
        tuple(_read_slot(slot) for slot in frame.split(",") if slot.strip())
        for frame in text.split(";")
    )


def _read_slot(text: str) -> Slot:
    words = text.split()
    case: Case = "akk" if "akk" in words else "dat"
    at = words.index(case)
    german = words[at - 1] if at else ""
    kinds = _read_kinds(" ".join(words[at + 1 :]))
    return Slot(" ".join(words[: max(at - 1, 0)]), german, case, kinds)


def _read_nouns() -> tuple[Noun, ...]:
    nouns = []
    for kind, table in lexicon.NOUNS.items():
        for entry in table.split(";"):
            english, german, gender, plural = entry.split()
            nouns.append(Noun(english, german, gender, plural.strip("-"), kind))
    return tuple(nouns)


def _read_compounds(nouns: tuple[Noun, ...]) -> tuple[Noun, ...]:
    by_english = {noun.english: noun for noun in nouns}
    compounds = []
    for modifiers, heads in lexicon.COMPOUNDS:
        for pair in modifiers.split(", "):
            english, german = pair.split()
            for head in (by_english[name] for name in heads.split(", ")):
                compounds.append(
                    head._replace(
                        english=f"{english} {head.english}",
                        german=german + head.german.lower(),
                        plural=head.plural and german + head.plural.lower(),
                    )
                )
    return tuple(compounds)


def _read_adjective(words: str, comparatives: str, kinds: str) -> Adjective:
    english, german = words.split()
    more, _, german_more = comparatives.strip("-").replace("_", " ").rpartition(" ")
    return Adjective(english, german, more, german_more, _read_kinds(kinds))


def _split_rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.split("|")] for row in table.strip().splitlines()]


NOUNS = _read_nouns()
COMPOUNDS = _read_compounds(NOUNS)
VERBS = tuple(read_verb(*row) for row in _split_rows(lexicon.VERBS))
ADJECTIVES = tuple(_read_adjective(*row) for row in _split_rows(lexicon.ADJECTIVES))
