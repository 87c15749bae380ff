"""Tokenises a corpus once, in shards that are cached on disk (`token_shards`).

The shards are named by a hash of text, vocabulary and format. A corpus of up to `SHARD` pairs is
one shard; of a larger one, several processes can build different shards, and those that are there
are kept when the work was interrupted. No pair is dropped or cut here: the plan filters by length.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int, Integer

from t2t.data.cache_folders import remove_whole, show_progress
from t2t.data.corpus import Corpus, DataError
from t2t.data.token_shards import Shard, is_built, open_or_build
from t2t.data.tokenizer import Vocabulary
from t2t.storage.atomic_files import explain_write_errors

SHARD = 1 << 20  # pairs
_FORMAT = 3  # increase it when the layout of the files or the tokenisation changes


class TokenizedCorpus:
    """A tokenised corpus: pairs of source and target ids by index."""

    def __init__(self, shards: Sequence[Shard]):
        self.shards = shards
        self._ends = np.cumsum([len(shard.src.ends) for shard in shards], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def src_lengths(self) -> Int[np.ndarray, "n"]:
        """Sub-words of each source sentence, with EOS; a new array in memory."""
        return np.concatenate([shard.src.lengths for shard in self.shards])

    @property
    def tgt_lengths(self) -> Int[np.ndarray, "n"]:
        """Sub-words of each target sentence, with EOS; a new array in memory."""
        return np.concatenate([shard.tgt.lengths for shard in self.shards])

    def pair(self, index: int) -> tuple[Integer[np.ndarray, "S"], Integer[np.ndarray, "T"]]:
        """Source and target ids of one pair, ending in EOS; read-only views of the files."""
        number = int(np.searchsorted(self._ends, index, side="right"))
        shard = self.shards[number]
        place = index - int(self._ends[number]) + len(shard.src.ends)
        return shard.src.row(place), shard.tgt.row(place)

    def count_ids(self, side: str, size: int) -> Int[np.ndarray, "size"]:
        """How often each id below `size` occurs on a side, "src" or "tgt"."""
        counts = np.zeros(size, np.int64)
        for shard in self.shards:
            ids = getattr(shard, side).ids
            for start in range(0, len(ids), SHARD):
                counts += np.bincount(ids[start : start + SHARD], minlength=size)
        return counts

    def copy(
        self,
        indices: Int[np.ndarray, "n"],
        src_offsets: Int[np.ndarray, "n"],
        tgt_offsets: Int[np.ndarray, "n"],
        src: Int[np.ndarray, "src_positions"],
        tgt: Int[np.ndarray, "tgt_positions"],
    ) -> None:
        """Copies pairs into the arrays `src` and `tgt`, each sentence starting at its offset."""
        for shard, own, places in self._divide(indices):
            shard.src.copy(places, src_offsets[own], src)
            shard.tgt.copy(places, tgt_offsets[own], tgt)

    def read_targets(
        self, indices: Int[np.ndarray, "n"]
    ) -> tuple[Int[np.ndarray, "tokens"], Int[np.ndarray, "n"]]:
        """Returns the ids of some targets, one after the other, and the length of each."""
        lengths = np.empty(len(indices), np.int64)
        for shard, own, places in self._divide(indices):
            lengths[own] = shard.tgt.measure(places)
        offsets, ids = np.cumsum(lengths) - lengths, np.empty(lengths.sum(), np.int32)
        for shard, own, places in self._divide(indices):
            shard.tgt.copy(places, offsets[own], ids)
        return ids, lengths

    def _divide(
        self, indices: Int[np.ndarray, "n"]
    ) -> Iterator[tuple[Shard, Int[np.ndarray, "own"], Int[np.ndarray, "own"]]]:
        """Yields each shard with pairs of these indices: which ones, and their places in it."""
        numbers = np.searchsorted(self._ends, indices, side="right")
        for number in np.unique(numbers).tolist():
            shard = self.shards[number]
            (own,) = np.nonzero(numbers == number)
            yield shard, own, indices[own] - self._ends[number] + len(shard.src.ends)


def tokenize_corpus(
    corpus: Corpus,
    vocabulary: Vocabulary,
    directory: Path,
    *,
    share: tuple[int, int] = (0, 1),
    progress: bool = True,
) -> TokenizedCorpus:
    """Opens the shards of a corpus in `directory`; builds those that are missing or damaged.

    The sources get the tag of the corpus, unless the vocabulary has one.
    `share` is (number, count): only shards `number`, `number` + `count`, ... are meant.

    Raises:
        DataError: The corpus is empty, or the cache cannot be written.
    """
    if not len(corpus):
        raise DataError(f"{corpus.name} holds no sentence pair")
    vocabulary, (number, count) = _tag(vocabulary, corpus), share
    shards = [*_list_shards(corpus, vocabulary, directory).items()][number::count]
    with (
        explain_write_errors(DataError, f"data.cache_directory={directory}"),
        show_progress("tokenising", sum(len(pairs) for _, pairs in shards), progress) as bar,
    ):
        return TokenizedCorpus(
            [open_or_build(path, corpus, pairs, vocabulary, bar.update) for path, pairs in shards]
        )


def count_shards(corpus: Corpus) -> int:
    """The number of shards of a corpus."""
    return -(-len(corpus) // SHARD)


def is_tokenized(corpus: Corpus, vocabulary: Vocabulary, directory: Path) -> bool:
    """Returns whether all shards of a corpus are in `directory`."""
    return all(is_built(path) for path in _list_shards(corpus, vocabulary, directory))


def remove_tokens(corpus: Corpus, vocabulary: Vocabulary, directory: Path) -> None:
    """Removes the shards of a corpus from a local folder; who has them open keeps them."""
    for path in _list_shards(corpus, vocabulary, directory):
        remove_whole(path)


def _tag(vocabulary: Vocabulary, corpus: Corpus) -> Vocabulary:
    return vocabulary if vocabulary.src.tag_ids else vocabulary.with_tag(corpus.tag)


def _list_shards(corpus: Corpus, vocabulary: Vocabulary, directory: Path) -> dict[Path, range]:
    """Returns folder -> pairs of each shard, in order."""
    key = f"{_FORMAT} {corpus.fingerprint()} {_tag(vocabulary, corpus).fingerprint()}"
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    starts = range(0, len(corpus), SHARD)
    names = [name]
    if len(starts) > 1:
        names = [f"{name}-{number:05d}-of-{len(starts):05d}" for number in range(len(starts))]
    parts = [range(start, min(start + SHARD, len(corpus))) for start in starts]
    folder = directory.expanduser()
    return {folder / name: part for name, part in zip(names, parts, strict=True)}
