import logging
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from t2t.config.fields import ConfigError, TokenizerConfig
from t2t.data import tokenizer
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t.data.corpus import ListCorpus
from t2t.data.sentences import clean_sentence
from t2t.data.tokenizer import Tokenizer, Vocabulary, VocabularyError, train_vocabulary
from tests.data.small_corpus import CORPUS, PAIRS

CONFIG = TokenizerConfig(vocab_size=360)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return train_vocabulary([CORPUS], CONFIG, tmp_path_factory.mktemp("vocab"))


def squeeze(text: str) -> str:
    return re.sub("[ ▁]+", " ", text).strip(" ")


@given(st.text("ab ▁½é\t\n\r\x00\x85\xa0\u2028\u3000\ufeff🇩日") | st.text())
@example("e\u0301 is not é: ½ … ﬁ ² Ⅳ")
@example("🙂 👨\u200d👩\u200d👧 🇩🇪 你好 мир שלום नमस्ते")
@example("<s> </s> <pad> <unk> <0x41>")
@example("\ufeff \ufffd \ue000 \U0010ffff")
@example("x" * 20_000)
def test_any_text_survives_but_for_spaces(vocabulary: Vocabulary, text: str) -> None:
    """Spaces at the ends and repeated spaces are lost; ▁ is SentencePiece's sign for a space.

    Nothing is left of a text without a visible character.
    """
    (ids,) = vocabulary.src.encode([text])
    assert ids.index(EOS_ID) == len(ids) - 1
    assert not {PAD_ID, BOS_ID, UNK_ID} & set(ids)
    (found,) = vocabulary.src.decode([ids])
    assert squeeze(found) == squeeze(clean_sentence(text))
    assert found == squeeze(found) or "▁" in text


def test_decoding_stops_at_the_end_mark_and_drops_special_ids(vocabulary: Vocabulary) -> None:
    """An empty sentence is its end mark."""
    assert vocabulary.src.encode(["", "\t\u200b\u2800\n"]) == [[EOS_ID]] * 2
    assert (vocabulary.src.encode([]), vocabulary.src.decode([])) == ([], [])
    (ids,) = vocabulary.src.encode(["the king sees"])
    noisy = [BOS_ID, *ids[:-1], UNK_ID, PAD_ID, EOS_ID, *ids]
    assert vocabulary.src.decode([noisy, [EOS_ID], []]) == ["the king sees", "", ""]


def test_without_byte_fallback_a_foreign_character_is_unknown(tmp_path: Path) -> None:
    config = TokenizerConfig(vocab_size=100, byte_fallback=False)
    foreign = train_vocabulary([CORPUS], config, tmp_path).src
    (ids,) = foreign.encode(["das 日 Mädchen"])
    assert UNK_ID in ids
    assert foreign.decode([ids]) == ["das  Mädchen"]
    assert foreign.find_unknown(["das 日 Mädchen", "das", "日本"]) == [["日"], [], ["日", "本"]]
    with pytest.raises(VocabularyError, match=r"lacks '<2xx>', '日' of data\.prefix='<2xx> d"):
        foreign.with_prefix("<2xx> das 日")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_lower_case_is_part_of_the_model(tmp_path: Path, kind: str) -> None:
    """Every reader of the file lower-cases; "ß" stays, which case folding would make "ss"."""
    config = TokenizerConfig(kind=kind, vocab_size=305)
    small = ListCorpus("x", [(src.lower(), tgt.lower()) for src, tgt in PAIRS])
    plain = train_vocabulary([small], config, tmp_path / "plain").src
    config.lowercase = True
    mixed = ListCorpus("x", [(src.upper(), tgt.title()) for src, tgt in PAIRS])
    train_vocabulary([mixed], config, tmp_path)
    lowercase = Tokenizer.load(tmp_path / "joint.model")
    assert lowercase.list_pieces() == plain.list_pieces()
    ids = lowercase.encode(["Die  GROẞE Äpfel ½ Ω"])
    assert ids == plain.encode(["die große äpfel ½ ω"])
    assert lowercase.decode(ids) == ["die große äpfel ½ ω"]
    assert lowercase.split_words([" Die  GROẞE ", ""]) == [["die", "große"], []]


@pytest.mark.parametrize(("kind", "shared"), [("bpe", True), ("unigram", False)])
def test_training_is_reproducible_and_saved(tmp_path: Path, kind: str, shared: bool) -> None:
    config = TokenizerConfig(kind=kind, shared=shared, vocab_size=305)
    first = train_vocabulary([CORPUS], config, tmp_path / "first")
    second = train_vocabulary([CORPUS], config, tmp_path / "second")
    assert first.shared == shared
    names = ["joint.model"] if shared else ["src.model", "tgt.model"]
    names.append("lines.json")
    assert {path.name for path in (tmp_path / "first").iterdir()} == {*names}
    for name in names:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    assert any(map(first.src.is_byte, first.src.encode(["ü"])[0])) != shared  # only in German
    loaded = Vocabulary.load(tmp_path / "first")
    assert loaded.shared == shared
    assert loaded.fingerprint() == first.fingerprint() == second.fingerprint()


def test_saving_replaces_what_was_there(tmp_path: Path, vocabulary: Vocabulary) -> None:
    separate = train_vocabulary([CORPUS], TokenizerConfig(shared=False, vocab_size=305), tmp_path)
    for saved in (vocabulary, separate, vocabulary):
        saved.save(tmp_path)
        assert Vocabulary.load(tmp_path).fingerprint() == saved.fingerprint()
    with pytest.raises(VocabularyError, match=r"vocab cannot be written: Not a directory"):
        vocabulary.save(tmp_path / "joint.model" / "vocab")


def test_weights_say_how_often_the_vocabulary_reads_a_pair(tmp_path: Path) -> None:
    first, second = ListCorpus("a", PAIRS[:7]), ListCorpus("b", PAIRS[7:])
    first.weight, second.weight = 3.0, 0.5
    weighted = train_vocabulary([first, second], CONFIG, tmp_path)
    pairs = [pair for pair in PAIRS[:7] for _ in range(3)] + PAIRS[7::2]
    repeated = [*train_vocabulary([ListCorpus("c", pairs)], CONFIG, tmp_path).src.list_pieces()]
    assert [*weighted.src.list_pieces()] == repeated


def test_large_corpora_are_sampled_evenly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    half = train_vocabulary([ListCorpus("half", PAIRS[::2])], CONFIG, tmp_path)
    monkeypatch.setattr(tokenizer, "_MAX_TRAINING_PAIRS", len(PAIRS) // 2)
    parts = [ListCorpus("a", PAIRS[:13]), ListCorpus("b", PAIRS[13:])]
    with caplog.at_level(logging.WARNING):
        sampled = train_vocabulary(parts, CONFIG, tmp_path)
    assert sampled.fingerprint() == half.fingerprint()
    assert "one of every 2 of 480 pairs" in caplog.text


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (5_000, r"tokenizer\.vocab_size=5000 .*lower it to (\d+) or less"),
        (280, r"tokenizer\.vocab_size=280 .*raise it to (\d+) or more"),
        (3, r"tokenizer\.vocab_size=3"),
    ],
)
def test_size_that_the_text_does_not_allow_names_the_field_and_a_size_that_works(
    size: int, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        train_vocabulary([CORPUS], TokenizerConfig(vocab_size=size), tmp_path)
    assert not list(tmp_path.iterdir())
    for limit in re.findall(r"it to (\d+)", str(error.value))[: "(" in message]:
        config = TokenizerConfig(vocab_size=int(limit))
        assert train_vocabulary([CORPUS], config, tmp_path).src.vocab_size == int(limit)
    assert capfd.readouterr() == ("", "")
    for blank in ("", " \u200b"):
        with pytest.raises(ConfigError, match="the training text has only empty lines; name other"):
            train_vocabulary([ListCorpus("empty", [("", blank)])], CONFIG, tmp_path)


def test_vocabulary_knows_how_many_lines_of_its_text_hold_several_sentences(tmp_path: Path) -> None:
    several = ListCorpus("several", [("The dog runs. It sleeps.", "x")] * 3)
    known = train_vocabulary([CORPUS, several], CONFIG, tmp_path)
    assert known.several_sentences == 3 / (len(CORPUS) + 3)
    assert Vocabulary.load(tmp_path).several_sentences == known.several_sentences
    (tmp_path / "lines.json").unlink()
    assert Vocabulary.load(tmp_path).several_sentences is None
    (tmp_path / "lines.json").write_text("{}")
    with pytest.raises(VocabularyError, match=r"lines\.json .*remove it"):
        Vocabulary.load(tmp_path)


def test_sentence_with_the_mark_of_unknown_text_is_trained_on(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    mark = "\N{LOWER FIVE EIGHTHS BLOCK}"
    marked = ListCorpus("text", [(f"{src}{mark}", f"{tgt}{mark}") for src, tgt in PAIRS])
    trained = train_vocabulary([marked], CONFIG, tmp_path)
    assert trained.fingerprint() == vocabulary.fingerprint()
    assert trained.src.decode(trained.src.encode([mark])) == [mark]


def test_missing_vocabulary_is_named(vocabulary: Vocabulary, tmp_path: Path) -> None:
    (tmp_path / "src.model").write_bytes(vocabulary.src.model)
    assert not Vocabulary.is_saved(tmp_path)
    with pytest.raises(VocabularyError, match="holds no vocabulary"):
        Vocabulary.load(tmp_path)
    (tmp_path / "tgt.model").mkdir()
    with pytest.raises(VocabularyError, match=r"tgt\.model cannot be read"):
        Vocabulary.load(tmp_path)
