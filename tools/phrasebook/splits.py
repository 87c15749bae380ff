"""Assigns sentences to splits by length and hash, and holds out compounds by hash."""

import zlib

from tools.phrasebook.entries import Noun

MAX_WORDS = 16  # of a train, validation or test sentence; sentences of "long" have more
MAX_LONG_WORDS = 40


def word_counts(pair: tuple[str, str]) -> tuple[int, int]:
    """The number of words of the shorter and of the longer sentence of a pair."""
    english, german = (len(text.split()) for text in pair)
    return min(english, german), max(english, german)


def split_of(pair: tuple[str, str]) -> str | None:
    """The split of a pair, by its length and then by a hash of its German sentence.

    The German is a function of the English, so English sentences with the same translation are in
    the same split, and no sentence of either language is in two splits. None if only one side is
    longer than `MAX_WORDS`, or if a side is longer than `MAX_LONG_WORDS`.
    """
    shorter, longer = word_counts(pair)
    if longer > MAX_WORDS:
        return "long" if shorter > MAX_WORDS and longer <= MAX_LONG_WORDS else None
    bucket = zlib.crc32(pair[1].encode()) % 20
    return "validation" if bucket < 2 else "test" if bucket < 5 else "train"


def is_held_out(compound: Noun) -> bool:
    """Returns whether a compound is held out of train, so that other splits test composition."""
    return zlib.crc32(compound.german.encode()) % 8 == 0
