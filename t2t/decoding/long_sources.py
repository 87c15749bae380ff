"""Cuts sources that are longer than those of training: between sentences, clauses or words."""

import codecs
import itertools
import re
from collections.abc import Sequence

from t2t.data.sentences import UNSPACED, find_sentence_ends

_UNSPACED_CHARACTER = re.compile(f"[{UNSPACED}]")
_CLAUSE_MARKS = ",;:\u060c\u061b\u1363\u1364\u1365"  # with a space after them
_UNSPACED_CLAUSE_MARKS = "、，；：､"  # noqa: RUF001
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def cut(subwords: Sequence[str], size: int) -> list[range]:
    """Cuts a source into pieces of at most `size` sub-words; returns their positions.

    Possible cuts have these kinds, best first:

    1. after the end of a sentence (`find_sentence_ends`)
    2. after the end of a clause: a comma, semicolon or colon before a space, or one that follows
       an unspaced character (Chinese or Japanese)
    3. before a space
    4. before a letter or digit, if an unspaced character is beside the cut
    5. between sub-words that are not bytes of one character
    6. anywhere

    A piece ends at the best kind of cut within its first `size` sub-words, and among several of
    this kind at the last. So in a script with spaces a word is cut only if longer than `size`.

    Args:
        subwords: as SentencePiece spells them: "▁" is a space, "<0xE2>" a byte.
        size: at least 1.
    """
    starts, grades = [0], _grade_cuts(subwords) if len(subwords) > size else []
    while len(subwords) - starts[-1] > size:
        positions = range(starts[-1] + 1, starts[-1] + size + 1)
        starts.append(max(positions, key=lambda position: (grades[position], position)))
    pieces = itertools.pairwise([*starts, len(subwords)])
    return [range(start, stop) for start, stop in pieces if start < stop]


def join_translations(pieces: Sequence[str]) -> str:
    """Joins the translations of pieces with spaces, except between unspaced characters."""
    line = ""
    for piece in filter(None, pieces):
        unspaced = line and all(map(_UNSPACED_CHARACTER.match, (line[-1], piece[0])))
        line += piece if unspaced or not line else f" {piece}"
    return line


def _grade_cuts(subwords: Sequence[str]) -> list[int]:
    """Grades a cut before each sub-word: from 5 for kind 1 of `cut` to 0 for kind 6."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, offsets, inside = "", [], []
    for subword in subwords:
        offsets.append(len(text))
        inside.append(bool(decoder.getstate()[0]))
        if byte := _BYTE.fullmatch(subword):
            text += decoder.decode(bytes([int(byte[1], 16)]))
        else:
            decoder.reset()
            text += subword.replace("▁", " ")
    ends = {*find_sentence_ends(text)}

    def grade(offset: int) -> int:
        before, after = text[offset - 1 : offset], text[offset : offset + 1]
        if offset in ends:
            return 5
        follows_unspaced = bool(_UNSPACED_CHARACTER.match(text[offset - 2 : offset - 1]))
        if before and before in _CLAUSE_MARKS and (after.isspace() or follows_unspaced):
            return 4
        if before and before in _UNSPACED_CLAUSE_MARKS:
            return 4
        if after.isspace():
            return 3
        beside = any(map(_UNSPACED_CHARACTER.match, (before, after)))
        return 2 if beside and after.isalnum() else 1

    return [0 if within else grade(o) for o, within in zip(offsets, inside, strict=True)]
