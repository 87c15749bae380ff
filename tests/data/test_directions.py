"""Tags, the corpora of each direction, and the choice of one."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from t2t.config import variants
from t2t.config.fields import Config, ConfigError, DataConfig, TokenizerConfig
from t2t.config.rules import validate
from t2t.data import corpus_sources
from t2t.data.batch import EOS_ID
from t2t.data.corpus import ListCorpus
from t2t.data.directions import choose_task, find_tag, list_tags, list_tasks
from t2t.data.preparation import tokenize
from t2t.data.tokenizer import Vocabulary, train_vocabulary
from tests.data.small_corpus import CORPUS, PAIRS, read_pair

TAGS = ["<2de>", "<2fr>"]
# What a corpus about translation may contain, often enough to become pieces of its own.
TAG_TEXT = ListCorpus("tags", [("<2de>", "a<2de>b <2fr>"), ("x <2fr> y", "<2de> <2de>")] * 50)


@pytest.fixture(scope="module", params=[True, False], ids=["one vocabulary", "two vocabularies"])
def vocabulary(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Vocabulary:
    config = TokenizerConfig(vocab_size=360, shared=request.param)
    folder = tmp_path_factory.mktemp("vocab")
    train_vocabulary([CORPUS, TAG_TEXT], config, folder, TAGS)
    return Vocabulary.load(folder)


def test_tag_is_one_reserved_piece_in_front_of_each_source(vocabulary: Vocabulary) -> None:
    sentences = [src for src, _ in PAIRS[:9]]
    plain, targets = (side.encode(sentences) for side in (vocabulary.src, vocabulary.tgt))
    ids = set()
    for tag in TAGS:
        tagged = vocabulary.with_tag(tag)
        [tag_id] = tagged.src.tag_ids
        assert tagged.src.encode(sentences) == [[tag_id, *row] for row in plain]
        assert tagged.src.pieces([tag_id]) == [tag]
        assert tagged.src.decode(tagged.src.encode(sentences)) == sentences
        assert tagged.src.is_control(tag_id)
        assert tagged.tgt.encode(sentences) == targets
        assert tagged.src.encode(["", "  "]) == [[EOS_ID], [EOS_ID]]  # so that filters drop it
        ids.add(tag_id)
    assert len(ids) == len(TAGS)
    assert vocabulary.with_tag("") is vocabulary


@pytest.mark.parametrize("text", ["a <2de> b", "<2de><2fr>", "▁<2de>"])
def test_tag_in_a_text_is_text(vocabulary: Vocabulary, text: str) -> None:
    for tokenizer in (vocabulary.src, vocabulary.tgt, vocabulary.with_tag("<2fr>").src):
        [ids] = tokenizer.encode([text])
        controls = [i for i in ids if tokenizer.is_control(i)]
        assert controls == [*tokenizer.tag_ids, EOS_ID]
        assert tokenizer.decode([ids]) == [text.removeprefix("▁")]


def test_tokens_of_one_text_with_other_tags_are_kept_apart(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    data = DataConfig(cache_directory=str(tmp_path))
    found = set()
    for tag in ["", *TAGS]:
        corpus = ListCorpus("same", PAIRS[:3])
        corpus.tag = tag
        built, opened = (read_pair(tokenize(corpus, vocabulary, data), 0)[0][0] for _ in range(2))
        assert built == opened
        assert not tag or (built,) == vocabulary.with_tag(tag).src.tag_ids
        found.add(int(built))
    assert len(found) == 3
    assert vocabulary.with_tag("<2de>").shared == vocabulary.shared


def test_names_hold_the_languages_of_a_direction() -> None:
    data = DataConfig(
        "text+tfds",
        train_src=("a.{src}-{tgt}.{src}", "b.{src}"),
        tfds_name="wmt/{pair}",
        test_tgt="t.{tgt}",
        directions=("en-de", "fr-en"),
    )
    first, second = list_tasks(data)
    assert (first.src_language, first.tgt_language, first.directions) == ("en", "de", ("en-de",))
    assert (first.train_src, first.tfds_name) == (("a.en-de.en", "b.en"), "wmt/de-en")
    assert (second.train_src, second.tfds_name) == (("a.fr-en.fr", "b.fr"), "wmt/en-fr")
    assert second.test_tgt == "t.en"
    assert list_tasks(first) == [first]
    assert [find_tag(each) for each in (first, second)] == list_tags(data) == ["<2de>", "<2en>"]
    tagged = dataclasses.replace(data, direction_tags="both")
    assert [*map(find_tag, list_tasks(tagged))] == ["<2en> <2de>", "<2fr> <2en>"]
    assert list_tags(tagged) == ["<2en>", "<2de>", "<2fr>"]
    plain = DataConfig("text", tfds_name="{pair}")
    assert list_tasks(plain) == [plain]
    [filled] = list_tasks(DataConfig("multi30k+text"))
    assert (filled.src_language, filled.tgt_language) == ("en", "de")
    assert (find_tag(plain), list_tags(plain)) == ("", [])


def test_direction_is_named_if_there_are_several() -> None:
    data = DataConfig(directions=("en-de", "en-fr"))
    assert choose_task(data, "en-fr").tgt_language == "fr"
    with pytest.raises(ConfigError, match="translates en-de, en-fr; name one with --task, "):
        choose_task(data)
    with pytest.raises(ConfigError, match="--task=de-en: this run translates en-de, en-fr;"):
        choose_task(data, "de-en")
    plain = DataConfig(src_language="en", tgt_language="de")
    assert choose_task(plain) == choose_task(plain, "en-de") == plain
    with pytest.raises(ConfigError, match="--task=en-fr: this run has one task; leave out"):
        choose_task(plain, "en-fr")


@pytest.mark.usefixtures("own_variants")
def test_each_source_is_opened_once_for_each_direction(tmp_path: Path) -> None:
    same = ListCorpus("toy", [("one", "for all")])
    variants.register("data.source", "toy")(lambda data, split: same if split == "train" else None)
    files = {"a.en": "e1\ne2\n", "a.de": "d1\nd2\n", "v.en": "w\n", "v.de": "v\n"}
    for name, lines in files.items():
        (tmp_path / name).write_text(lines)
    data = DataConfig(
        "text+toy", train_src=(f"{tmp_path}/a.{{src}}",), train_tgt=(f"{tmp_path}/a.{{tgt}}",),
        validation_src=f"{tmp_path}/v.{{src}}", validation_tgt=f"{tmp_path}/v.{{tgt}}",
        cache_directory=str(tmp_path), directions=("en-de", "de-en"),
        train_weights=(1.0, 2.0, 3.0, 4.0),
    )  # fmt: skip
    validate(Config(data=data))
    opened = corpus_sources.open_training(data)
    assert [(corpus[0], corpus.tag, corpus.weight) for corpus in opened] == [
        (("e1", "d1"), "<2de>", 1.0),
        (("one", "for all"), "<2de>", 2.0),
        (("d1", "e1"), "<2en>", 3.0),
        (("one", "for all"), "<2en>", 4.0),
    ]
    assert opened[1].name == "en-de: toy"
    assert (same.tag, same.name) == ("", "toy")
    for split in ("train", "validation"):
        with pytest.raises(ConfigError, match="translates en-de, de-en; name one with"):
            corpus_sources.open_split(data, split)
    english = corpus_sources.open_split(choose_task(data, "de-en"), "train")
    assert (len(english), english.tag) == (3, "<2en>")
    assert choose_task(data, "de-en").train_weights == (3.0, 4.0)
    # Text alone: the same test set has the same hash in any run.
    plain = DataConfig("text", train_src=(f"{tmp_path}/a.de",), train_tgt=(f"{tmp_path}/a.en",))
    assert corpus_sources.open_split(plain, "train").fingerprint() == opened[2].fingerprint()


TEXT: dict[str, Any] = {"source": "text", "train_src": ("a.{src}",), "train_tgt": ("a.{tgt}",)}
HF: dict[str, Any] = {"source": "hf", "hf_files": ("train=a.tsv",)}
TWO = {"directions": ("en-de", "en-fr")}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"directions": ("ende",)}, "data.directions has 'ende'; write SOURCE-TARGET, such as en-"),
        ({"directions": ("en-de", "en-de")}, "names a direction twice; name each once"),
        (
            TEXT | TWO | {"train_src": ("a",), "train_tgt": ("b",)},
            "data.train_src='a' and data.train_tgt='b' are the same files in each of data.dir.*"
            r"write \{src\} and \{tgt\} for the languages, such as train\.\{src\}",
        ),
        (
            HF | TWO | {"src_column": "0", "tgt_column": "1"},
            "data.src_column='0' and data.tgt_column='1' are the same in each of data.directions",
        ),
        (
            HF | {"src_column": "de", "tgt_language": "de"},
            "data.src_column='de' and data.tgt_column='' both mean the column 'de'",
        ),
        (TEXT | TWO | {"train_weights": (1.0,)}, "data.train_weights has 1 values for 2 corpora"),
    ],
)
def test_impossible_directions_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(Config(data=DataConfig(**fields)))
