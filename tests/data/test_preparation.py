"""Vocabularies of runs: trained once for a text and its settings, or given (`tokenizer.path`)."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from t2t.config.fields import Config, ConfigError, DataConfig, ModelConfig, TokenizerConfig
from t2t.data.corpus import Corpus, ListCorpus
from t2t.data.preparation import fill_tokenizer, make_vocabulary
from t2t.data.tokenizer import Vocabulary, VocabularyError, train_vocabulary
from tests.data.small_corpus import CORPUS, PAIRS

KINDS = {
    "bpe": TokenizerConfig(vocab_size=330),
    "unigram": TokenizerConfig(kind="unigram", vocab_size=320, lowercase=True),
    "symbols": TokenizerConfig(kind="symbols", vocab_size=60, byte_fallback=False, sentinels=3),
    "apart": TokenizerConfig(vocab_size=90, shared=False, byte_fallback=False),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocab/ folder of each kind."""
    folder = tmp_path_factory.mktemp("vocabularies")
    for name, config in KINDS.items():
        train_vocabulary([CORPUS], config, folder / name)
    return folder


@pytest.fixture
def own(folder: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return Path(shutil.copytree(folder, tmp_path / "vocabularies"))


def make_config(path: object, tie: str = "decoder", **data: Any) -> Config:
    return Config(
        model=ModelConfig(tie_embeddings=tie),
        data=DataConfig(**data),
        tokenizer=TokenizerConfig(path=str(path)),
    )


def test_runs_of_one_text_and_one_setting_share_a_vocabulary(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cache = tmp_path / "cache"

    def make(name: str, size: int = 330, corpus: Corpus = CORPUS) -> tuple[bool, str]:
        data = DataConfig(cache_directory=str(cache))
        config = Config(data=data, tokenizer=TokenizerConfig(vocab_size=size))
        caplog.clear()
        made = make_vocabulary(config, tmp_path / name, [corpus]).fingerprint()
        assert made == Vocabulary.load(tmp_path / name / "vocab").fingerprint()
        return "training the vocabulary" in caplog.messages, made

    (trained, first), second = make("first"), make("second")
    assert trained
    assert second == (False, first)
    assert make("larger", size=331)[0]
    weighted = ListCorpus("small", PAIRS)
    weighted.weight = 2.0
    assert make("weighted", corpus=weighted)[0]
    for model in cache.rglob("joint.model"):
        model.write_bytes(model.read_bytes()[:50])
    assert make("damaged") == (True, first)
    assert "is damaged" in caplog.text
    assert make("last") == (False, first)


@pytest.mark.parametrize("name", KINDS)
def test_fields_of_the_tokenizer_follow_from_the_given_vocabulary(name: str, folder: Path) -> None:
    path = folder / name
    wanted = dataclasses.replace(KINDS[name], path=str(path))
    assert fill_tokenizer(make_config(path)).tokenizer == wanted
    if wanted.shared:
        wanted.path = str(path / "joint.model")
        assert fill_tokenizer(make_config(wanted.path, tie="all")).tokenizer == wanted


def test_config_without_a_path_gets_the_sentinels_that_its_objective_needs() -> None:
    config = Config()
    assert fill_tokenizer(config) is config
    data = DataConfig(objective="span_corruption")
    for given, expected in ((0, 14), (13, 14), (20, 20)):
        filled = fill_tokenizer(Config(data=data, tokenizer=TokenizerConfig(sentinels=given)))
        assert filled.tokenizer == TokenizerConfig(sentinels=expected)


@pytest.mark.parametrize("name", ["bpe", "apart"])
def test_given_vocabulary_is_copied_into_the_run_with_its_other_files(
    name: str, own: Path, tmp_path: Path
) -> None:
    for file, text in (("ids.json", "[1]"), ("text.sha256", "of other text")):
        (own / name / file).write_text(text, "utf-8")
    config = fill_tokenizer(make_config(own / name))
    made = make_vocabulary(config, tmp_path, [CORPUS])
    saved, given = Vocabulary.load(tmp_path / "vocab"), Vocabulary.load(own / name)
    assert made.fingerprint() == saved.fingerprint() == given.fingerprint()
    assert saved.several_sentences == 0.0  # measured on this run's text
    assert make_vocabulary(config, tmp_path, [CORPUS]).shared == given.shared
    assert (tmp_path / "vocab" / "ids.json").read_text("utf-8") == "[1]"
    assert (tmp_path / "vocab" / "text.sha256").read_text("utf-8") != "of other text"


def test_run_needs_the_given_vocabulary_only_once_and_refuses_another(
    own: Path, tmp_path: Path
) -> None:
    config = fill_tokenizer(make_config(own / "bpe"))
    made = make_vocabulary(config, tmp_path, [CORPUS])
    shutil.rmtree(own / "bpe")
    with pytest.raises(ConfigError, match=r"tokenizer.path: .*bpe cannot be read: No such file"):
        fill_tokenizer(make_config(own / "bpe"))
    assert fill_tokenizer(make_config(own / "bpe"), tmp_path) == config
    again = make_vocabulary(config, tmp_path, [CORPUS])
    assert again.fingerprint() == made.fingerprint()
    shutil.copytree(own / "unigram", own / "bpe")
    with pytest.raises(VocabularyError, match=r"tokenizer.path=.* is not the vocabulary in"):
        make_vocabulary(fill_tokenizer(config), tmp_path, [CORPUS])


def test_special_tokens_with_other_ids_are_refused_with_the_remedy(tmp_path: Path) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(src for src, _ in PAIRS), model_prefix=str(tmp_path / "plain"),
        vocab_size=50, minloglevel=2,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"tokenizer.path: .*PAD the id -1 .* with pad_id=0"):
        fill_tokenizer(make_config(tmp_path / "plain.model"))


def test_vocabulary_that_does_not_fit_is_refused(own: Path) -> None:
    (own / "bpe" / "joint.model").write_bytes(b"\xff\xff")
    for path, options, message in (
        (own / "bpe", {}, "tokenizer.path: .*joint.model is damaged"),
        (own / "apart", {"tie": "all"}, "two vocabularies, but model.tie_embeddings='all'.* set"),
        (
            own / "unigram",
            {"directions": ("en-de", "de-en")},
            r"tokenizer.path=.* no tag <2de>.* data.directions .* without tokenizer.path",
        ),
        (
            own / "symbols",
            {"objective": "span_corruption"},
            r"tokenizer.path=.* has 3 sentinels, but .* needs 14; leave tokenizer.path out",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            fill_tokenizer(make_config(path, **options))
