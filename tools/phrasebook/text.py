"""Texts in both languages; joins words to sentences."""

import re
from collections.abc import Iterable
from typing import NamedTuple


class Text(NamedTuple):
    """An English text and its German translation."""

    english: str
    german: str


NOTHING = Text("", "")


def join(words: Iterable[str]) -> str:
    """Joins words with spaces; skips empty ones."""
    return " ".join(filter(None, words))


def concatenate(*texts: Text) -> Text:
    """Joins texts with spaces, in each language."""
    return Text(join(text.english for text in texts), join(text.german for text in texts))


def punctuate(text: Text, end: str = ".") -> Text:
    """Makes sentences: normalises commas, capitalises the first letter and appends `end`."""
    english, german = (re.sub(r"(\s*,)+", ",", side).rstrip(",") for side in text)
    return Text(english[0].upper() + english[1:] + end, german[0].upper() + german[1:] + end)
