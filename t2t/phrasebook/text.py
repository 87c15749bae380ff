"""Texts in both languages, and how words become a sentence."""

import re
from collections.abc import Iterable
from typing import NamedTuple


class Text(NamedTuple):
    """The same thing said in English and in German."""

    english: str
    german: str


NOTHING = Text("", "")


def join(words: Iterable[str]) -> str:
    """The words that are not empty, with spaces."""
    return " ".join(filter(None, words))


def concatenate(*texts: Text) -> Text:
    """One text after the other."""
    return Text(join(text.english for text in texts), join(text.german for text in texts))


def punctuate(text: Text, end: str = ".") -> Text:
    """Sentences: commas once and attached, none at the end, a capital first, `end` last."""
    english, german = (re.sub(r"(\s*,)+", ",", side).rstrip(",") for side in text)
    return Text(english[0].upper() + english[1:] + end, german[0].upper() + german[1:] + end)
