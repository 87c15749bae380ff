"""Where sources are cut, how translations are joined, and what the user's own text becomes."""

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence

import pytest

from t2t.config.fields import Config
from t2t.data.corpus import ListCorpus
from t2t.data.tokenizer import Vocabulary, train_vocabulary
from t2t.decoding.beam_search import LengthPenalty
from t2t.decoding.translation import (
    Translation,
    cut,
    insert,
    join_best,
    join_pieces,
    join_translations,
)

ENGLISH = "The old man who sells fish sleeps. Two dogs run! A girl climbs; does she? Yes."
CHINESE = "他来了！我们走吧。今天天气很好，我们去公园玩。「你好吗？」他说。真的；很好。"  # noqa: RUF001
WORDS = [
    *ENGLISH.split(),
    "x" * 30,
    "ééé",
    "🙂🙂",
    "日本語",
    "3.5",
    "Dr.",
    "\t",
    "\u3000",
    *CHINESE,
    CHINESE,
]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """Knows English and Chinese, but spells emoji, accents and Japanese in bytes."""
    config = dataclasses.replace(Config().tokenizer, vocab_size=420)
    corpus = ListCorpus("toy", [(ENGLISH, CHINESE)] * 3)
    return train_vocabulary([corpus], config, tmp_path_factory.mktemp("vocab"))


def read(pieces: Sequence[str]) -> str:
    """The text of sub-words, some of which are bytes."""
    parts = (
        bytes([int(piece[3:5], 16)]) if piece.startswith("<0x") else piece.encode()
        for piece in pieces
    )
    return b"".join(parts).decode(errors="replace").replace("▁", " ")


@pytest.mark.parametrize(
    ("pieces", "size", "expected"),
    [
        ('▁a ! ▁b ? ) " ▁c ▁d', 7, [" a! b?)\"", " c d"]),  # the last sentence, with what closes it
        ("▁a , ▁b ▁c ▁d ▁e", 4, [" a,", " b c d e"]),  # behind a clause
        ("▁a ▁3 , 5 ▁b ▁c", 5, [" a 3,5 b", " c"]),  # a comma without a blank ends nothing
        ("▁a ▁b b b b b ▁c", 3, [" a", " bbb", "bb c"]),  # a word that is too long
        ("▁你 好 ， 我 们 走", 5, [" 你好，", "我们走"]),  # noqa: RUF001
        ("▁你 好 Trans former 走", 3, [" 你好", "Transformer走"]),
        ("▁a ! ▁b , ▁c", 4, [" a!", " b, c"]),  # a sentence before a clause
        ("▁ <0xE3> <0x80> <0x82> a b", 5, ["▁。", "ab"]),  # 。 in bytes
        ("<0xF0> <0x9F> <0x99> <0x82>", 3, ["\ufffd", "\ufffd"]),  # no other way
        ("", 2, []),
    ],
)  # fmt: skip
def test_cut_is_at_the_last_place_of_the_best_kind(
    pieces: str, size: int, expected: list[str]
) -> None:
    spelled = pieces.split()
    expected = [part.replace("▁", " ") for part in expected]
    parts = cut(spelled, size)
    assert [read(spelled[part.start : part.stop]) for part in parts] == expected


def make_source(rng: random.Random) -> str:
    words = rng.choices(WORDS, k=rng.randrange(60))
    return "".join(word + rng.choice(["", " ", " ", " "]) for word in words)


@pytest.mark.parametrize("size", [4, 11, 40])
def test_any_source_is_cut_into_parts_that_fit_and_join_to_it(
    vocabulary: Vocabulary, size: int
) -> None:
    rng = random.Random(size)
    for _ in range(300):
        [[*ids, _]] = vocabulary.src.encode([make_source(rng)])
        pieces = vocabulary.src.pieces(ids)
        parts = cut(pieces, size)
        assert [i for part in parts for i in part] == [*range(len(ids))]
        assert all(0 < len(part) <= size for part in parts)
        texts = [read(pieces[part.start : part.stop]) for part in parts]
        assert "".join(texts) == read(pieces)
        assert "\ufffd" not in "".join(texts)


def test_parts_are_joined_with_blanks_only_where_the_script_has_them() -> None:
    assert join_translations(["Hallo.", "", "Wie geht's?"]) == "Hallo. Wie geht's?"
    assert join_translations(["你好。", "我们走吧", "OK."]) == "你好。我们走吧 OK."
    assert join_translations([]) == join_translations([""]) == ""


@pytest.mark.parametrize("kind", ["gnmt", "length", "none"])
def test_n_best_of_a_line_are_the_best_of_all_combinations_of_its_pieces(kind: str) -> None:
    rng = random.Random(kind)
    for _ in range(100):
        penalty, n_best = LengthPenalty(kind, rng.choice([0.0, 0.6, 3.0])), rng.randint(1, 6)
        pieces = [
            [
                Translation(f"{part}-{rank}", 0.0, -5 * rng.random(), rng.randint(1, 9))
                for rank in range(rng.randint(1, 4))
            ]
            for part in range(rng.randint(1, 4))
        ]
        every = [
            join_pieces([[x] for x in each], penalty)[0] for each in itertools.product(*pieces)
        ]
        assert join_best(pieces, penalty, n_best) == sorted(every, key=lambda x: -x.score)[:n_best]


def test_n_best_of_a_line_have_different_texts() -> None:
    """A piece's list may hold a text in several divisions into sub-words."""
    piece = [Translation(text, 0.0, -rank, 1) for rank, text in enumerate("aab")]
    found = join_best([piece, piece[:2]], LengthPenalty("none", 0.0), 9)
    assert [(x.text, x.log_prob) for x in found] == [("a a", 0), ("b a", -2)]
    failed = join_best([piece, []], LengthPenalty("none", 0.0), 2)
    assert [(x.text, x.score) for x in failed] == [("", -math.inf)]


@pytest.mark.parametrize(
    ("given", "written", "expected"),
    [
        (["Zwei  HUNDE"], [" laufen "], "Zwei  HUNDE laufen"),
        (["Hun"], ["de\n!"], "Hunde !"),  # no word begins
        (["Hun "], ["de"], "Hun de"),  # the user's space stays
        (["Der "], [" Hund"], "Der Hund"),
        (["  "], [" x"], "  x"),
        ([""], [" x"], "x"),
        (["Ein ", " klettert."], ["  Hund "], "Ein Hund klettert."),
        (["Ein ", " klettert."], [""], "Ein klettert."),
        (["", " klettert."], [" "], "klettert."),
        (["(", ")"], [" a "], "( a )"),
        (["a", "b ", ""], ["", " "], "ab "),
    ],
)
def test_the_users_text_stays_and_spaces_are_not_doubled(
    given: list[str], written: list[str], expected: str
) -> None:
    assert insert(given, written) == expected
