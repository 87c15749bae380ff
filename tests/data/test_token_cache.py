import errno
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from t2t.config.fields import TokenizerConfig
from t2t.data import token_cache
from t2t.data.corpus import Corpus, DataError, ListCorpus, Pair
from t2t.data.token_cache import TokenizedCorpus, is_tokenized, tokenize_corpus
from t2t.data.tokenizer import Vocabulary, train_vocabulary
from tests.data.small_corpus import CORPUS, PAIRS, read_pair


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    config = TokenizerConfig(vocab_size=310, shared=False)
    return train_vocabulary([CORPUS], config, tmp_path_factory.mktemp("vocab"))


def assert_whole(tokenized: TokenizedCorpus, vocabulary: Vocabulary) -> None:
    src = vocabulary.src.encode([src for src, _ in PAIRS])
    tgt = vocabulary.tgt.encode([tgt for _, tgt in PAIRS])
    assert len(tokenized) == len(PAIRS)
    wanted = [[len(ids) for ids in side] for side in (src, tgt)]
    assert [side.tolist() for side in tokenized.lengths] == wanted
    for index in range(len(PAIRS)):
        assert read_pair(tokenized, index) == [src[index], tgt[index]]


def test_ids_beyond_sixteen_bits_are_kept(
    tmp_path: Path, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LargeTokenizer:
        vocab_size = (1 << 16) + 1

        def encode(self, sentences: list[str]) -> list[list[int]]:
            return [[1 << 16, 2] for _ in sentences]

    object.__setattr__(large := Vocabulary(vocabulary.src, vocabulary.tgt), "tgt", LargeTokenizer())
    monkeypatch.setattr(Vocabulary, "fingerprint", lambda _: "large")
    tokenized = tokenize_corpus(CORPUS, large, tmp_path)
    [(src, tgt)] = tokenized.shards
    assert (src.ids.dtype, tgt.ids.dtype) == (np.dtype(np.uint16), np.dtype(np.int32))
    assert read_pair(tokenized, 5)[1] == [1 << 16, 2]


def test_cache_has_the_permissions_of_other_folders_and_files(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    tokenize_corpus(CORPUS, vocabulary, tmp_path / "cache")
    vocabulary.save(tmp_path / "vocab")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    modes = {(path.is_dir(), path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert len(modes) == 2


def test_text_and_vocabulary_have_caches_of_their_own(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    swapped = Vocabulary(vocabulary.tgt, vocabulary.src)
    tokenize_corpus(CORPUS, vocabulary, tmp_path)
    tokenize_corpus(ListCorpus("shorter", PAIRS[1:]), vocabulary, tmp_path)
    tokenize_corpus(CORPUS, swapped, tmp_path)
    tokenize_corpus(ListCorpus("small, under another name", PAIRS), vocabulary, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def zero(content: bytes) -> bytes:
    return bytes(len(content) - 8) + content[-8:]


def change(file: Path, change_content: Callable[[bytes], bytes | None]) -> None:
    content = change_content(file.read_bytes())
    file.unlink()
    if content is not None:
        file.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "change_content"),
    [
        ("src.ids", lambda content: content[:10]),
        ("tgt.ends", zero),
        ("cache.json", lambda content: None),
        ("cache.json", lambda content: b"{"),
        ("cache.json", lambda content: content.replace(b"<u2", b"no type")),
    ],
)
def test_damaged_cache_is_built_again_with_a_warning(
    tmp_path: Path,
    vocabulary: Vocabulary,
    caplog: pytest.LogCaptureFixture,
    name: str,
    change_content: Callable[[bytes], bytes | None],
) -> None:
    tokenize_corpus(CORPUS, vocabulary, tmp_path)
    (folder,) = tmp_path.iterdir()
    change(folder / name, change_content)
    with caplog.at_level(logging.WARNING):
        assert_whole(tokenize_corpus(CORPUS, vocabulary, tmp_path), vocabulary)
    (warning,) = caplog.messages
    assert f"{folder} is damaged" in warning
    assert "\n" not in warning
    assert_whole(tokenize_corpus(CORPUS, vocabulary, tmp_path), vocabulary)
    assert len(caplog.messages) == 1
    assert list(tmp_path.iterdir()) == [folder]


def test_ids_that_a_full_disk_or_a_crash_made_zero_are_noticed_when_they_are_read(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    tokenize_corpus(CORPUS, vocabulary, tmp_path)
    (folder,) = tmp_path.iterdir()
    change(folder / "tgt.ids", lambda content: bytes(len(content)))
    tokenized = tokenize_corpus(CORPUS, vocabulary, tmp_path)
    into = np.zeros((2, 100), np.int32)
    with pytest.raises(DataError, match=rf"cache {folder} is damaged: .*EOS; remove this folder"):
        tokenized.copy(np.array([7]), *((np.array([0]), side) for side in into))


def test_several_builders_at_once_all_get_a_whole_cache(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    """In place of a damaged one."""
    everybody_reads = threading.Barrier(4)

    class SlowCorpus(ListCorpus):
        def read(self, start: int, stop: int) -> list[Pair]:
            everybody_reads.wait(timeout=600)
            return super().read(start, stop)

    tokenize_corpus(CORPUS, vocabulary, tmp_path)
    change(next(tmp_path.iterdir()) / "tgt.ends", zero)
    corpus: Corpus = SlowCorpus("small", PAIRS)
    with ThreadPoolExecutor(4) as pool:
        for built in pool.map(lambda _: tokenize_corpus(corpus, vocabulary, tmp_path), range(4)):
            assert_whole(built, vocabulary)
    assert len(list(tmp_path.iterdir())) == 1
    assert_whole(tokenize_corpus(CORPUS, vocabulary, tmp_path), vocabulary)


def test_full_disk_names_the_field(
    tmp_path: Path, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    message = rf"data\.cache_directory={tmp_path} cannot be written: No space left.*free some space"
    with pytest.raises(DataError, match=message):
        tokenize_corpus(CORPUS, vocabulary, tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="nothing holds no sentence pair"):
        tokenize_corpus(ListCorpus("nothing", []), vocabulary, tmp_path)


def test_processes_build_shards_of_their_own_and_nobody_builds_one_again(
    tmp_path: Path, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_cache, "SHARD", 100)
    monkeypatch.setattr(token_cache, "_CHUNK", 7)
    read: list[int] = []

    class WatchedCorpus(ListCorpus):
        def read(self, start: int, stop: int) -> list[Pair]:
            read.extend(range(start, stop))
            return super().read(start, stop)

    corpus = WatchedCorpus("watched", PAIRS)
    tokenize_corpus(corpus, vocabulary, tmp_path, share=(1, 2))
    assert not is_tokenized(corpus, vocabulary, tmp_path)
    assert 0 < len(read) < len(PAIRS)
    tokenize_corpus(corpus, vocabulary, tmp_path, share=(0, 2))
    assert is_tokenized(corpus, vocabulary, tmp_path)
    assert_whole(tokenize_corpus(corpus, vocabulary, tmp_path), vocabulary)
    assert sorted(read) == [*range(len(PAIRS))]
