"""Sentences in raw text: white space at their ends, empty ones, and several in one line.

Every program cleans sentences with `clean_sentence`, through `Tokenizer.encode`. Measures such as
BLEU see references as they are.
"""

import itertools
import re
import unicodedata
from collections.abc import Sequence

# White space, and two that Unicode counts as format characters: zero width space, byte order mark.
_SPACES = "".join(filter(str.isspace, map(chr, range(0x3001)))) + "\u200b\ufeff"
# Letters and marks without ink: combining grapheme joiner, Hangul fillers, Khmer inherent vowels,
# selectors of variants, and Braille without dots.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
# Format characters with ink, such as the Arabic sign before a number.
_VISIBLE_FORMATS = re.compile(
    "[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd\U00013430-\U0001343f]"
)
_LINE_BREAK = re.compile(r"[\r\n]+")
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")

# Unspaced characters: those of Chinese and Japanese, which put no spaces between words, and their
# punctuation.
UNSPACED = "\u2e80-\u312f\u31f0-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
# Marks that end a sentence if a space follows: ASCII, ellipsis, Greek, Arabic, Indic, Ethiopic,
# Burmese and Khmer.
_END = ".!?\u2026\u037e\u061f\u06d4\u0964\u0965\u1362\u104b\u17d4"
_UNSPACED_END = "。！？｡"  # noqa: RUF001  # end a sentence whatever follows
_CLOSING = "[\"'”’»›)\\]}」』）】》〉]*"  # noqa: RUF001  # brackets and quotes after the mark
_OPENING = "[\"'“‘„‚«‹(\\[{¿¡–—-]*"  # noqa: RUF001  # those, and dashes, before a sentence
_SENTENCE_END = re.compile(
    # A run of marks is tried from its first one alone, else a long one would take quadratic time.
    rf"(?<!\.)(?P<stop>\.){_CLOSING}(?=\s)|(?<![{_END}])[{_END}]+{_CLOSING}(?=\s)"
    rf"|[{_UNSPACED_END}]+{_CLOSING}"
    # Beside an unspaced character, ! and ? need no space. A full stop does: numbers contain it.
    rf"|(?<=[{UNSPACED}])[!?]+{_CLOSING}|(?<![!?])[!?]+{_CLOSING}(?=[{UNSPACED}])"
    # In Greek, a semicolon is a question mark.
    rf"|(?<=[\u0370-\u03ff\u1f00-\u1fff]);{_CLOSING}(?=\s)"
)
_SENTENCE_START = re.compile(rf"\s+{_OPENING}(\w)")
# A word before a full stop that ends no sentence: an initial, letters between stops ("z.B", "U.S"),
# the number of a day, or an abbreviation before a name or a number.
_NO_END = re.compile(
    r"(?:[^\W\d_]\.)+[^\W\d_]|\d{1,2}"
    r"|(?i:mr|mrs|ms|dr|prof|st|messrs|mme|mlle|hr|fr|nr|vs|bzw|ca|vgl|inkl|ggf|sog|gen|capt|lt"
    r"|sgt|rev|hon|gov|sen|vol|pp|approx|bd|hrsg)"
)


def clean_sentence(text: str) -> str:
    """Removes white space at both ends; a line break within becomes a space.

    Returns "" if nothing is visible: if all characters are spaces (Unicode's categories Z*),
    control or format characters (Cc, Cf), or letters and marks without ink, such as U+2800. Private
    and unassigned characters count as visible: fonts or later versions of Unicode may have them.
    """
    text = _LINE_BREAK.sub(" ", text.strip(_SPACES))
    # Nearly all sentences have a letter or a digit among the first characters.
    if any(map(str.isalnum, text[:2])) and not _BLANK.match(text):
        return text
    return text if any(map(_is_visible, text)) else ""


def _is_visible(character: str) -> bool:
    if _BLANK.match(character):
        return False
    category = unicodedata.category(character)
    return not (category[0] == "Z" or category in ("Cc", "Cf")) or bool(
        _VISIBLE_FORMATS.match(character)
    )


def count_empty_references(sources: Sequence[str], references: Sequence[str]) -> int:
    """Returns how many references are empty though their source is not; no translation matches."""
    pairs = zip(sources, references, strict=True)
    return sum(bool(clean_sentence(src)) and not clean_sentence(tgt) for src, tgt in pairs)


def describe_empty_references(
    sources: Sequence[str], references: Sequence[Sequence[str]]
) -> list[str]:
    """Says how many references are empty though their source is not, of each text of them."""
    several = len(references) > 1
    return [
        f"{count} references{f' of text {number}' * several} are empty, but not their sources; "
        "nothing matches them"
        + ", and BLEU and TER count each as a reference of length 0"
        * several
        for number, lines in enumerate(references, 1)
        if (count := count_empty_references(sources, lines))
    ]


def find_sentence_ends(text: str) -> list[int]:
    """Returns the places behind the sentences of a line, except one at the end of the line.

    A mark such as a full stop ends a sentence if white space follows, and Chinese or Japanese ones
    always. It does not if the next word begins in lower case, unless the whole line does. A full
    stop does not after an initial ("J. S. Bach"), a number of one or two digits (in German, "am 3.
    Oktober") or a common abbreviation before names and numbers ("Dr. Who").
    """
    has_case, length = text != text.lower(), len(text.rstrip())
    ends = []
    for match in _SENTENCE_END.finditer(text):
        start = _SENTENCE_START.match(text, match.end())
        if has_case and start and start[1].islower():
            continue
        if match["stop"] and _ends_no_sentence(text, match.start(), has_case):
            continue
        if match.end() < length:
            ends.append(match.end())
    return ends


def _ends_no_sentence(text: str, stop: int, has_case: bool) -> bool:
    """Returns whether the word before a full stop is an abbreviation or an ordinal number."""
    before = text[max(stop - 20, 0) : stop].split()
    word = before[-1].lstrip("\"'“‘„‚«‹([{") if before else ""  # noqa: RUF001
    is_initial = has_case and len(word) == 1 and word.isupper()
    return is_initial or bool(_NO_END.fullmatch(word))


def split_sentences(text: str) -> list[str]:
    """Splits a line into its sentences, without the white space between them.

    What holds no letter or digit, such as "...", stays with the sentence before it or else with the
    one after it.
    """
    ends = [0, *find_sentence_ends(text), len(text)]
    parts = [text[start:stop] for start, stop in itertools.pairwise(ends)]
    sentences: list[list[str]] = []  # the parts of each
    has_words = False  # whether the last one has a letter or a digit
    for part in parts:
        is_words = _LETTER_OR_DIGIT.search(part) is not None
        if sentences and not (is_words and has_words):
            sentences[-1].append(part)
            has_words |= is_words
        else:
            sentences.append([part])
            has_words = is_words
    return [cleaned for each in sentences if (cleaned := clean_sentence("".join(each)))]
