"""Invisible sentences, and the ends of sentences within a line."""

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from t2t.data.sentences import clean_sentence, find_sentence_ends, split_sentences

BLANK = [
    "", " ", "\t", "\xa0", "\u3000", "\u200b", "\u200d", "\ufeff", "\xad", "  \u2003 ", "\u2800",
    "\r", "\0", "\x0c", "\u2028", "\x85", "\u115f\u3164", "\u2060\ufe0f",
]  # fmt: skip


@pytest.mark.parametrize("text", BLANK)
def test_text_without_a_visible_character_is_empty(text: str) -> None:
    assert clean_sentence(text) == clean_sentence(f"{text}\n") == ""


@pytest.mark.parametrize("text", [".", "\u0600", "\ue000", "\u0378", "🙂", "❤\ufe0f", "می\u200c"])
def test_what_is_visible_stays_as_it_is(text: str) -> None:
    assert clean_sentence(text) == text


@pytest.mark.parametrize("space", [blank for blank in BLANK if blank.isspace()] + ["\ufeff"])
def test_white_space_at_the_ends_is_no_part_of_a_sentence(space: str) -> None:
    """A line break within is a space."""
    assert clean_sentence(f"{space}Who reads\r\n\nit?{space}\r\n") == "Who reads it?"


@pytest.mark.parametrize(
    "sentences",
    [
        ["Dr. Who came.", "He left!", "Did he?", "Yes"],
        ["J. S. Bach lebte hier.", "Am 3. Oktober z.B. kam er."],
        ['"Come!" he said.', '"Go."', "(Nobody went.)", "They stayed."],
        ["He won. ...", "Then?", "— Yes."],
        ["क ख।", "ग घ।"],
        ["Τι κάνεις;", "Καλά."],  # noqa: RUF001
    ],
)
def test_a_line_is_split_behind_its_sentences(sentences: list[str]) -> None:
    found = split_sentences("\t" + "  ".join(sentences) + "\n")
    assert [re.sub(" +", " ", sentence) for sentence in found] == sentences
    assert [split_sentences(sentence) for sentence in sentences[:1]] == [sentences[:1]]


def test_chinese_sentences_need_no_space() -> None:
    assert split_sentences("他来了！我们走吧。「好吗？」他说") == [  # noqa: RUF001
        "他来了！", "我们走吧。", "「好吗？」", "他说",  # noqa: RUF001
    ]  # fmt: skip


@given(st.text("ab.A !?…。x3\"' \t\u200b\n") | st.text())
@example("...")
def test_splitting_loses_nothing_but_white_space(text: str) -> None:
    sentences = split_sentences(text)
    assert all(clean_sentence(sentence) == sentence != "" for sentence in sentences)
    joined = "".join(sentences) if clean_sentence(text) else ""
    kept = str.maketrans("", "", "\u200b\ufeff")
    expected = clean_sentence(text)
    assert "".join(joined.split()).translate(kept) == "".join(expected.split()).translate(kept)
    assert all(0 < end < len(text) for end in find_sentence_ends(text))


@pytest.mark.parametrize(
    "unit",
    [
        ".", "!", "?!", "…", "।", "。", "!)", '?"', "-.", "字!", "!字", "! ", ". ", "! (", "。」",
        "A. ", "z.B. ", "\u03b1;", " ", "(", ")", "_", "\u200b",
    ],
)  # fmt: skip
def test_long_lines_of_marks_are_split_in_linear_time(unit: str) -> None:
    """A crawled line may hold 100,000 marks. Quadratic time was 5 s for 8,000."""
    for start, stop in (("", ""), ("", "x"), ("字", "x"), ("a!", ")")):
        began = time.perf_counter()
        split_sentences(start + 50_000 * unit + stop)
        assert time.perf_counter() - began < 20
