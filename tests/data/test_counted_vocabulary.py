"""Vocabularies of symbols, characters and bytes: which types they have, and what text survives."""

import dataclasses
import logging
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from t2t.config.fields import Config, ConfigError, DataConfig, TokenizerConfig
from t2t.data import tokenizer
from t2t.data.batch import EOS_ID, UNK_ID
from t2t.data.corpus import ListCorpus
from t2t.data.preparation import fill_tokenizer
from t2t.data.sentences import clean_sentence
from t2t.data.tokenizer import Tokenizer, Vocabulary, train_vocabulary

KINDS = ("characters", "bytes")
WORDS = ListCorpus("words", [("ab  ba", "äb B\tc"), ("▁ a", "e\u0301")])


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Vocabulary]:
    folder = tmp_path_factory.mktemp("vocab")
    return {
        kind: train_vocabulary([WORDS], TokenizerConfig(kind=kind), folder / kind) for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS)
@given(st.text("ab ▁½é\t\n\r\x00\x85\xa0\u2028\u3000\ufeff🇩日") | st.text())
@example("a  b\t ▁▁ e\u0301 é <s> <0x41> \x00")
@example("\U0010ffff\ue000\ufffd ▅ x")
@example("x" * 20_000)
def test_characters_and_bytes_keep_every_text_as_it_is(
    vocabularies: dict[str, Vocabulary], kind: str, text: str
) -> None:
    """Only the ends of a sentence are cleaned, and line breaks, as for all vocabularies."""
    own = vocabularies[kind].src
    [ids] = own.encode([text])
    assert ids.index(EOS_ID) == len(ids) - 1
    assert own.decode([ids]) == [clean_sentence(text)]
    assert own.find_unknown([text]) == [[]]
    if kind == "bytes":  # the ids of ByT5, plus one
        assert ids[:-1] == [4 + byte for byte in clean_sentence(text).encode()]


def test_size_of_a_counted_vocabulary_follows_from_the_text(
    vocabularies: dict[str, Vocabulary],
) -> None:
    """The default of `vocab_size` is a limit; "▁" and other characters are spelled in bytes."""
    own = vocabularies["characters"].src
    assert [*own.list_pieces()] == [" ", "a", "b", "\t", "B", "c", "e", "ä", "\u0301"]
    assert own.vocab_size == 4 + 256 + 9
    assert vocabularies["bytes"].sizes == (260, 260)
    assert tuple(own.src.kind for own in vocabularies.values()) == KINDS
    [ids] = own.encode(["a é"])
    assert len(ids) == 2 + 2 + 1


def test_rare_characters_are_bytes_or_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = TokenizerConfig(kind="characters", vocab_size=262, lowercase=True)
    few = train_vocabulary([WORDS], config, tmp_path / "bytes").src
    assert [*few.list_pieces()] == [" ", "b"]
    assert "6 of 8 characters of the training text are spelled in bytes, the rarest" in caplog.text
    assert "tokenizer.vocab_size=262 is too small; 268 holds all" in caplog.text
    assert few.decode(few.encode(["B a"])) == ["b a"]
    config = dataclasses.replace(config, byte_fallback=False)
    plain = train_vocabulary([WORDS], config, tmp_path / "unknown").src
    assert plain.vocab_size == 4 + 8
    assert plain.find_unknown(["b日 本"]) == [["日", "本"]]
    with pytest.raises(ConfigError, match=r"vocab_size=4 leaves no room .* raise it to 12, which"):
        train_vocabulary([WORDS], dataclasses.replace(config, vocab_size=4), tmp_path)
    for kind in ("symbols", "characters"):
        empty = ListCorpus("empty", [("", " \u200b")])
        with pytest.raises(ConfigError, match="the training text has only empty lines; name other"):
            train_vocabulary([empty], TokenizerConfig(kind=kind), tmp_path)


def test_symbols_between_spaces_are_one_piece_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pieces are sorted by frequency, then by text; the rarest are unknown if there is no room."""
    sentences = ["C4 e#5 C4 <2de>", "C4 rest rest ü", "C4 <extra_id_0>"]
    corpus = ListCorpus("music", [(text, "C4 rest") for text in sentences])
    config = TokenizerConfig(kind="symbols", sentinels=1)
    vocabulary = train_vocabulary([corpus], config, tmp_path / "all", ["<2de>"])
    assert vocabulary.several_sentences is None
    own = vocabulary.src
    found = own.pieces(range(own.vocab_size))
    assert found[:8] == [
        *("<pad>", "<s>", "</s>", "<unk>", "<2de>", "<extra_id_0>"),
        *("▁C4", "▁rest"),
    ]
    assert found[8:] == ["▁<2de>", "▁<extra_id_0>", "▁e#5", "▁ü"]  # text, and no special pieces
    text = "ü C4 e#5 <2de> rest"
    [ids] = own.encode([f" {text}  "])
    assert len(ids) == 6
    assert own.decode([ids]) == [text]
    assert own.encode(["new C4 other one"])[0] == [UNK_ID, found.index("▁C4"), UNK_ID, EOS_ID]
    assert own.find_unknown(["new C4 other one"]) == [["new", "other", "one"]]
    assert not caplog.text
    small = dataclasses.replace(config, vocab_size=8)
    few = train_vocabulary([corpus], small, tmp_path / "few", ["<2de>"]).src
    assert UNK_ID in few.encode(["ü"])[0]
    assert UNK_ID not in few.encode(["rest C4"])[0]
    assert "4 of 6 symbols of the training text are unknown, the rarest" in caplog.text
    assert "vocab_size=8 is too small; 12 holds all" in caplog.text


def test_types_are_counted_in_the_whole_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However few pairs a learned vocabulary would read, and with weights."""
    monkeypatch.setattr(tokenizer, "_MAX_TRAINING_PAIRS", 10)
    common = ListCorpus("common", [(f"w{n}", "x x") for n in range(50)])
    rare = ListCorpus("rare", [("y", "z")])
    rare.weight = 200.0
    with caplog.at_level(logging.WARNING):
        own = train_vocabulary([common, rare], TokenizerConfig(kind="symbols"), tmp_path).src
    assert own.vocab_size == 4 + 53
    assert [*own.list_pieces()][:4] == ["▁y", "▁z", "▁x", "▁w0"]
    assert not caplog.text


def test_counted_vocabulary_is_saved_with_its_kind(tmp_path: Path) -> None:
    config = TokenizerConfig(kind="bytes", sentinels=2)
    made = train_vocabulary([WORDS], config, tmp_path / "vocab", ["<2de>"])
    loaded = Tokenizer.load(tmp_path / "vocab" / "joint.model")
    assert loaded.sentinel_ids == [261, 262]
    assert loaded.with_tag("<2de>").encode(["a"]) == [[260, 4 + ord("a"), EOS_ID]]
    data = DataConfig(directions=("en-de",), objective="translation")
    filled = fill_tokenizer(Config(data=data, tokenizer=config)).tokenizer
    assert filled.vocab_size == made.src.vocab_size == 263
    given = TokenizerConfig(path=str(tmp_path / "vocab"))
    assert fill_tokenizer(Config(tokenizer=given)).tokenizer == dataclasses.replace(
        given, kind="bytes", vocab_size=263, sentinels=2
    )
