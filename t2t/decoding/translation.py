"""`Translation`, one output of a model; how long sources are cut, and their pieces joined."""

import codecs
import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from t2t.data.batch import BOS_ID
from t2t.data.sentences import UNSPACED, find_sentence_ends
from t2t.decoding.beam_search import LengthPenalty

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # and line separators
_UNSPACED_CHARACTER = re.compile(f"[{UNSPACED}]")
_CLAUSE_MARKS = ",;:\u060c\u061b\u1363\u1364\u1365"  # with a space after them
_UNSPACED_CLAUSE_MARKS = "、，；：､"  # noqa: RUF001
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class Gap(NamedTuple):
    """The text that fills a gap, and its log-probability."""

    text: str
    log_prob: float  # with the end of the gap; -inf: the output says nothing of this gap


@dataclasses.dataclass(frozen=True)
class Translation:
    """One output for one line: a translation, a continued prompt, or a text with its gaps filled.

    Attributes:
        text: one line.
        score: log_prob / length penalty, by which beam search ranks translations.
        log_prob: natural logarithm of the model's probability of the output's sub-words.
        length: sub-words, EOS included; of a continued prompt those behind the prompt.
        num_pieces: number of pieces in which the source was translated.
        is_cut: a sentence of the source was longer than a piece may be.
        at_limit: a piece has as many sub-words as an output may have.
        alignment: links of words as "0-0 1-2", if they were asked for.
        ids: the output's sub-words, EOS included; pieces stand one after the other.
        gaps: of a text with gaps what fills each.
    """

    text: str
    score: float
    log_prob: float
    length: int
    num_pieces: int = 1
    is_cut: bool = False
    at_limit: bool = False
    alignment: str | None = None
    ids: tuple[int, ...] = dataclasses.field(default=(), repr=False)
    gaps: tuple[Gap, ...] = ()


class SourcePiece(NamedTuple):
    """A line, a sentence of it, or a part of a sentence that is too long."""

    ids: list[int]  # ends in EOS; at most `max_source_length`
    prefix: Sequence[int] = ()  # the first tokens of its translations
    sentence: int = 0  # number of the sentence in the whole input
    number: int = 0  # of the piece in the sentence
    is_cut: bool = False  # it is a part of a sentence that is too long
    first: int = BOS_ID  # the token that the first step takes
    text: str = ""  # of the source
    # The user's own text of the output: a prefix or prompt, or what stands around the gaps.
    given: Sequence[str] = ("",)


def join_pieces(
    pieces: Sequence[Sequence[Translation]], penalty: LengthPenalty, prefix: str = ""
) -> list[Translation]:
    """Joins the translations of a sentence's pieces: the first ones, the second ones, and so on.

    A sentence without pieces is empty, and its translation is its prefix.
    """
    if not pieces:
        return [Translation(prefix, 0.0, 0.0, 0)]
    joined = [_join(each, penalty) for each in zip(*pieces, strict=False)]
    return joined or [Translation("", -math.inf, -math.inf, 0, len(pieces))]


def join_best(
    pieces: Sequence[Sequence[Translation]], penalty: LengthPenalty, n_best: int, prefix: str = ""
) -> list[Translation]:
    """Returns the `n_best` of all ways to take one translation of each piece, joined, best first.

    Texts differ. The score of a whole is its log P, a sum, divided by the penalty of its length. So
    among the beginnings of one length those with the highest log P lead to the best wholes, and of
    each length only the `n_best` are kept.
    """
    if not (pieces and all(pieces)):
        return join_pieces(pieces, penalty, prefix)
    pieces = [drop_repeated(piece) for piece in pieces]
    bases = [min(each.length for each in piece) for piece in pieces]
    log_probs = np.full((1, n_best), -np.inf)  # [length - those of the shortest, rank]
    log_probs[0, 0] = 0.0
    taken: list[np.ndarray] = []  # of each beginning's last piece: its translation, then the rank
    for piece, base in zip(pieces, bases, strict=True):
        spread = max(each.length for each in piece) - base
        longer = np.full((len(log_probs) + spread, len(piece), n_best), -np.inf)
        for number, each in enumerate(piece):
            start = each.length - base
            longer[start : start + len(log_probs), number] = log_probs + each.log_prob
        flat = longer.reshape(len(longer), -1)
        taken.append(np.argsort(-flat, axis=1, kind="stable")[:, :n_best])
        log_probs = np.take_along_axis(flat, taken[-1], axis=1)

    def trace(row: int, rank: int) -> list[Translation]:
        """The translations of a whole, which are found from the last one to the first."""
        parts = []
        for piece, base, choices in zip(pieces[::-1], bases[::-1], taken[::-1], strict=True):
            number, rank = divmod(int(choices[row, rank]), n_best)
            parts.append(piece[number])
            row -= piece[number].length - base
        return parts[::-1]

    lengths = sum(bases) + np.arange(len(log_probs))
    penalties = np.array([float(penalty(length)) for length in lengths.tolist()])
    found: dict[str, Translation] = {}
    for place in np.argsort(-log_probs / penalties[:, None], axis=None, kind="stable").tolist():
        row, rank = divmod(place, n_best)
        if len(found) == n_best or log_probs[row, rank] == -np.inf:
            break
        whole = _join(trace(row, rank), penalty)
        found.setdefault(whole.text, whole)
    return [*found.values()]


def _join(parts: Sequence[Translation], penalty: LengthPenalty) -> Translation:
    """Joins one translation of each piece."""
    log_prob, length = sum(x.log_prob for x in parts), sum(x.length for x in parts)
    return Translation(
        join_translations([x.text for x in parts]),
        log_prob / float(penalty(length)),
        log_prob,
        length,
        num_pieces=len(parts),
        is_cut=any(x.is_cut for x in parts),
        at_limit=any(x.at_limit for x in parts),
        ids=tuple(itertools.chain.from_iterable(x.ids for x in parts)),
    )


def drop_repeated(translations: Sequence[Translation]) -> list[Translation]:
    """Keeps the first translation of each text; others have the same text in other sub-words."""
    first: dict[str, Translation] = {}
    for each in translations:
        first.setdefault(each.text, each)
    return [*first.values()]


def clean_line(text: str) -> str:
    """The text as one line without control characters."""
    return _CONTROL_CHARACTERS.sub(" ", text).strip()


def keep_line(text: str) -> str:
    """The user's text as one line: each run of control characters within becomes a space."""
    return _CONTROL_CHARACTERS.sub(" ", text.strip("\r\n"))


def insert(given: Sequence[str], written: Sequence[str]) -> str:
    """Puts each text that a model wrote behind one of the user's texts, which stay as they are.

    A space at an end of what the model wrote counts only where the user has none.
    """
    line = given[0]
    for text, after in itertools.zip_longest(written, given[1:], fillvalue=""):
        new = _CONTROL_CHARACTERS.sub(" ", text)
        new = new.lstrip() if ends_word(line) else new
        new = new.rstrip() if ends_word(after[:1]) else new
        is_doubled = not new and ends_word(line) and after[:1].isspace()
        line += new + after[is_doubled:]
    return line


def ends_word(text: str) -> bool:
    """Returns whether what follows a text needs no space."""
    return not text or text[-1].isspace()


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
    SentencePiece spells a space in sub-words as "▁", and a byte as "<0xE2>".
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


def format_lines(
    number: int, translations: Sequence[Translation], numbered: bool, scored: bool
) -> str:
    """Formats the outputs for line `number`: number, score, text, alignment and scored gaps."""

    def format_line(found: Translation) -> str:
        columns = [str(number)] * numbered + [f"{found.score:.4f}"] * scored + [found.text]
        columns += [] if found.alignment is None else [found.alignment]
        columns += [x for gap in found.gaps * scored for x in (f"{gap.log_prob:.4f}", gap.text)]
        return "\t".join(columns) + "\n"

    return "".join(map(format_line, translations))
