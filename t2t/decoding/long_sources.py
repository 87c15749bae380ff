"""Sources longer than the model takes, in pieces: cut at sentence ends, else between words."""

import codecs
import itertools
import re
from collections.abc import Sequence

# Characters of scripts that put no blanks between words, with their punctuation.
_UNSPACED = "\u2e80-\u312f\u31f0-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
# Marks that end a sentence before a blank: ASCII's, Greek, Arabic, Indic, Ethiopic, Burmese, Khmer.
_END = ".!?;\u037e\u061b\u061f\u06d4\u0964\u0965\u1362\u104b\u17d4"
_UNSPACED_END = "。！？；｡"  # noqa: RUF001  # marks that end one before anything
_CLOSING = "[\"'”’»›)\\]}」』）】》〉]*"  # noqa: RUF001  # brackets and quotes behind the mark
_SENTENCE_END = re.compile(
    rf"[{_END}]+{_CLOSING}(?=\s)|[{_UNSPACED_END}]+{_CLOSING}"
    # ASCII's marks beside an unspaced character; not the stop, which is in numbers, too.
    rf"|(?<=[{_UNSPACED}])[!?;]+{_CLOSING}|[!?;]+{_CLOSING}(?=[{_UNSPACED}])"
)
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_CLAUSE_MARKS = "、，：,:"  # noqa: RUF001
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def cut(pieces: Sequence[str], size: int) -> list[range]:
    """Positions of the parts, of at most `size` sub-words each, into which a source is cut.

    Each cut is at the last place of the best kind that the size allows: behind the end of a
    sentence, before a blank, in scripts without blanks behind a comma or else between characters,
    between sub-words that are not bytes of one character, anywhere. So a word is cut only where
    it is too long by itself.

    Args:
        pieces: the sub-words as SentencePiece spells them: "▁" is a blank, "<0xE2>" a byte.
        size: of a part, at least 1.
    """
    starts, quality = [0], _grade_cuts(pieces) if len(pieces) > size else []
    while len(pieces) - starts[-1] > size:
        places = range(starts[-1] + 1, starts[-1] + size + 1)
        starts.append(max(places, key=lambda place: (quality[place], place)))
    parts = itertools.pairwise([*starts, len(pieces)])
    return [range(start, stop) for start, stop in parts if start < stop]


def join_translations(parts: Sequence[str]) -> str:
    """Translations of the parts as one line; no blank between characters of unspaced scripts."""
    line = ""
    for part in filter(None, parts):
        unspaced = line and all(map(_UNSPACED_CHARACTER.match, (line[-1], part[0])))
        line += part if unspaced or not line else f" {part}"
    return line


def _grade_cuts(pieces: Sequence[str]) -> list[int]:
    """How good a cut before each sub-word is; the order is that in `cut`."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, offsets, inside = "", [], []
    for piece in pieces:
        offsets.append(len(text))
        inside.append(bool(decoder.getstate()[0]))
        if byte := _BYTE.fullmatch(piece):
            text += decoder.decode(bytes([int(byte[1], 16)]))
        else:
            decoder.reset()
            text += piece.replace("▁", " ")
    ends = {match.end() for match in _SENTENCE_END.finditer(text)}

    def grade(offset: int) -> int:
        before, after = text[offset - 1 : offset], text[offset : offset + 1]
        if offset in ends:
            return 5
        if after.isspace():
            return 4
        if before in _CLAUSE_MARKS and _UNSPACED_CHARACTER.match(text[offset - 2 : offset - 1]):
            return 3
        beside = any(map(_UNSPACED_CHARACTER.match, (before, after)))
        return 2 if beside and after.isalnum() else 1

    return [0 if within else grade(o) for o, within in zip(offsets, inside, strict=True)]
