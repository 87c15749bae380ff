"""Filters of training pairs: what each drops, how it is counted, and that text is read once."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from t2t.config.field_types import FILTERS as NAMES
from t2t.config.fields import Config, ConfigError, DataConfig, TokenizerConfig
from t2t.config.rules import validate
from t2t.data import text_filters
from t2t.data.corpus import Corpus, DataError, ListCorpus, Pair
from t2t.data.corpus_sources import open_split, open_training
from t2t.data.text_filters import FILTERS, FilteredCorpus, filter_corpora
from tests.full_disk import full_disk

PAIRS = [
    ("a house", "ein Haus"),
    ("a  house", "ein Haus\u200b "),  # the same to every vocabulary
    ("a house", "ein Haus"),
    ("OK. ", "ok."),
    ("дом в лесу", "ein Haus"),
    ("house дом", "ein Haus im Wald"),  # most letters are of the usual script
    ("1999", "1999!"),  # no letters
    ("two dogs", "zwei Hunde"),
    ("unseen", " zwei Katzen"),
]
HELD_OUT = [("two dogs", "Hunde"), ("cats", "zwei Katzen")]


def apply(
    names: Sequence[str],
    folder: Path,
    parts: Sequence[Sequence[Pair]] = (PAIRS,),
    **tokenizer: Any,
) -> list[Corpus]:
    corpora = [ListCorpus(f"part {number}", part) for number, part in enumerate(parts)]
    held_out = [ListCorpus("test", HELD_OUT)]
    return filter_corpora(corpora, names, held_out, folder, TokenizerConfig(**tokenizer))


@pytest.mark.parametrize(
    ("name", "dropped"),
    [("duplicates", [1, 2]), ("identical", [3]), ("script", [4]), ("overlap", [7, 8])],
)
def test_filter_drops_its_pairs(name: str, dropped: list[int], tmp_path: Path) -> None:
    [corpus] = apply([name], tmp_path)
    assert [*corpus] == [pair for number, pair in enumerate(PAIRS) if number not in dropped]
    assert corpus.dropped == {name: len(dropped)}
    assert tuple(FILTERS) == NAMES
    assert isinstance(corpus, FilteredCorpus)
    assert corpus.read_dropped(name, 1) == [PAIRS[dropped[0]]]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("lowercase", [False, True])
def test_pairs_that_a_vocabulary_spells_alike_are_equal(
    given: bool, lowercase: bool, tmp_path: Path
) -> None:
    """Also those of a vocabulary that exists, which has rules of its own."""
    pairs = [
        ("two dogs", "Hunde, groß"),
        ("\u00a0two dogs", "Hunde,  groß"),
        ("two\u2581dogs", "Hunde, groß\ufeff"),
        ("Two DOGS", "hunde, groß"),
        ("two dogs", "ﬁnden"),
        ("Two dogs", "finden"),
    ]
    tokenizer: dict[str, Any] = {"lowercase": lowercase}
    if given:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(map(" ".join, pairs)), model_prefix=f"{tmp_path}/given",
            normalization_rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc", vocab_size=30,
            pad_id=0, bos_id=1, eos_id=2, unk_id=3, minloglevel=2, hard_vocab_limit=False,
        )  # fmt: skip
        tokenizer = {"path": f"{tmp_path}/given.model"}
    [corpus] = apply(["duplicates"], tmp_path, [pairs], **tokenizer)
    distinct = [0, 4] if given and lowercase else [0, 4, 5] if lowercase else [0, 3, 4, 5]
    assert [*corpus] == [pairs[number] for number in distinct]
    [corpus] = apply(["overlap"], tmp_path, [[*pairs, ("no", "no")]], **tokenizer)
    assert len(corpus) == (1 if lowercase else 3)
    if given:
        (tmp_path / "given.model").unlink()
        with pytest.raises(ConfigError, match=r"tokenizer\.path: .* the copy in the run, --config"):
            apply(["overlap"], tmp_path, [pairs], **tokenizer)


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=60), st.data())
def test_any_range_of_a_filtered_corpus_is_that_of_a_list(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], data: st.DataObject
) -> None:
    """Duplicates are found across corpora."""
    pairs = [(word, word.upper() + "x") for word in words]
    parts = [[("f", "Fx"), *pairs[:1]], [("g", "Gx"), *pairs]]
    _, corpus = apply(["duplicates"], tmp_path_factory.mktemp("cache"), parts)
    expected = [*dict.fromkeys(parts[1])]
    expected.remove(pairs[0])
    assert len(corpus) == len(expected)
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.integers(start, len(expected)))
    assert corpus.read(start, stop) == expected[start:stop]


def test_text_is_read_once_by_each_version_of_a_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["duplicates", "script", "overlap"]
    [first] = apply(names, tmp_path)
    expected = [*first]
    monkeypatch.setattr(ListCorpus, "read", None)
    [again] = apply(names, tmp_path)
    assert (len(again), again.dropped) == (len(expected), first.dropped)
    monkeypatch.undo()
    assert [*again] == expected
    assert again.fingerprint() == first.fingerprint()
    [path] = (tmp_path / "filters").iterdir()
    os.truncate(path, 130)
    assert [*apply(names, tmp_path)[0]] == expected  # made again
    number, make = FILTERS["duplicates"]
    monkeypatch.setattr(text_filters, "FILTERS", {**FILTERS, "duplicates": (number + 1, make)})
    assert apply(names, tmp_path)[0].fingerprint() != first.fingerprint()


def test_text_that_begins_without_letters_has_no_script(tmp_path: Path) -> None:
    numbers = [(str(number), str(number)) for number in range(10_000)]
    with pytest.raises(DataError, match=r"the first 10,000 pairs .* no letters on the source side"):
        apply(["script"], tmp_path, [[*numbers, ("hello", "hallo")]])


def test_wide_and_narrow_letters_are_of_one_script(tmp_path: Path) -> None:
    wide = "\uff37\uff29\uff24\uff25"  # WIDE
    pairs = [("ﾃｽﾄです", "a test"), ("カタカナ", wide), ("漢字です", "Latin letters")]
    assert [*apply(["script"], tmp_path, [pairs])[0]] == pairs


def test_fingerprint_names_texts_and_filters(tmp_path: Path) -> None:
    names: list[list[str]] = [[], ["script"], ["identical"], ["identical", "script"], ["overlap"]]
    corpora = [apply(each, tmp_path)[0] for each in names]
    corpora += apply(["identical", "script"], tmp_path, [PAIRS[:-1]])
    assert len({corpus.fingerprint() for corpus in corpora}) == len(corpora)


def test_filters_that_leave_nothing_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"drop all pairs of part 0: 1 identical; remove"):
        apply(["identical"], tmp_path, [[("x", "x")]])


@pytest.mark.parametrize("names", [("duplicate",), ("script", "script")])
def test_unknown_and_repeated_filters_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="must be some of duplicates, identical"):
        validate(Config(data=DataConfig(filters=names)))


def test_training_and_its_split_have_the_pairs_that_are_kept(tmp_path: Path) -> None:
    for name, pairs in (("train", PAIRS), ("test", HELD_OUT)):
        for side in range(2):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (tmp_path / f"{name}.{side}").write_text(text)
    train: dict[str, Any] = {
        "train_src": (f"{tmp_path}/train.0",),
        "train_tgt": (f"{tmp_path}/train.1",),
    }
    test: dict[str, Any] = {"test_src": f"{tmp_path}/test.0", "test_tgt": f"{tmp_path}/test.1"}
    data = DataConfig("text", **train, **test, cache_directory=f"{tmp_path}/cache", filters=NAMES)
    [corpus] = open_training(data)
    kept = [PAIRS[number] for number in (0, 5, 6)]
    assert ([*corpus], corpus.weight) == (kept, 1.0)
    assert [*open_split(data, "train")] == kept
    assert [*open_split(data, "test")] == HELD_OUT
    np.testing.assert_array_equal([*corpus.dropped.values()], [2, 1, 1, 2])


def test_full_disk_names_the_field_and_leaves_nothing_that_counts(tmp_path: Path) -> None:
    message = rf"data\.cache_directory={tmp_path} cannot be written: File too large; free some"
    parts = [PAIRS * 100, PAIRS]  # the marks of the first part exceed the disk
    with full_disk(size=500), pytest.raises(DataError, match=message):
        apply(["identical"], tmp_path, parts)
    assert [*(tmp_path / "filters").iterdir()] == []
    first, second = apply(["identical"], tmp_path, parts)
    assert first.dropped == {"identical": 100}
    assert second.dropped == {"identical": 1}
