"""`Translation`, one result of a search, and how those of a sentence's pieces are joined."""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from t2t.decoding.length_penalty import LengthPenalty
from t2t.decoding.long_sources import join_translations

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # and line separators


@dataclasses.dataclass(frozen=True)
class Translation:
    """One translation of one sentence."""

    text: str  # one line
    score: float  # log_prob / length penalty, by which beam search ranks translations
    log_prob: float  # natural logarithm of the model's probability
    length: int  # sub-words, EOS included
    num_pieces: int = 1  # number of pieces into which the sentence was cut for translation
    alignment: str | None = None  # links of words as "0-0 1-2", if they were asked for


class Piece(NamedTuple):
    """A sentence, or a part of a sentence that is too long for the model."""

    ids: list[int]  # ends in EOS; at most `max_source_length`
    prefix: Sequence[int] = ()  # the first tokens of its translations
    sentence: int = 0  # number of the sentence in the whole input
    number: int = 0  # of the piece in the sentence


def join_pieces(
    pieces: list[list[Translation]], penalty: LengthPenalty, prefix: str = ""
) -> list[Translation]:
    """Joins the translations of a sentence's pieces: the best ones, the second best, and so on.

    A sentence without pieces is empty, and its translation is its prefix.
    """
    if not pieces:
        return [Translation(prefix, 0.0, 0.0, 0)]
    joined = []
    for ranked in zip(*pieces, strict=False):
        log_prob, length = sum(x.log_prob for x in ranked), sum(x.length for x in ranked)
        score = log_prob / float(penalty(length))
        text = join_translations([x.text for x in ranked])
        joined.append(Translation(text, score, log_prob, length, len(ranked)))
    return joined or [Translation("", -math.inf, -math.inf, 0, len(pieces))]


def drop_repeated(translations: Sequence[Translation]) -> list[Translation]:
    """Keeps the first translation of each text; others have the same text in other sub-words."""
    first: dict[str, Translation] = {}
    for each in translations:
        first.setdefault(each.text, each)
    return [*first.values()]


def clean_line(text: str) -> str:
    """The text as one line without control characters."""
    return _CONTROL_CHARACTERS.sub(" ", text).strip()
