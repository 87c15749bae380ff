"""What belongs to which split: sentences by length and hash, compounds by hash."""

import zlib

from t2t.phrasebook.entries import Noun

MAX_WORDS = 16  # of a train, validation or test sentence, in either language; long ones have more
MAX_LONG_WORDS = 40


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


def is_held_out(compound: Noun) -> bool:
    """Whether a compound is kept out of train, so that the other splits test composition."""
    return zlib.crc32(compound.german.encode()) % 8 == 0
