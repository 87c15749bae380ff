"""Tokenises a corpus once, in shards that are cached on disk as memory-mapped ragged arrays.

The shards are named by a hash of text, vocabulary and format. A corpus of up to `SHARD` pairs is
one shard; of a larger one, several processes can build different shards, and those that are there
are kept when the work was interrupted. No pair is dropped or cut here: the plan filters by length.

A shard is a folder. For each side it holds the concatenated ids of all sentences (`src.ids`) and
where each ends (`src.ends`); `cache.json` holds the type and size of each file. A folder whose
name begins with a dot is unfinished; delete it if no process is writing it.
"""

import contextlib
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from jaxtyping import Int, Integer

from t2t.data.batch import EOS_ID
from t2t.data.cache_folders import create_folder, show_progress
from t2t.data.corpus import Corpus, DataError
from t2t.data.tokenizer import Vocabulary
from t2t.storage.atomic_files import explain_write_errors, remove_folder, upload
from t2t.storage.staging import fetch_folder, fetch_once, find_local

SHARD = 1 << 20  # pairs
_FORMAT = 3  # increase it when the layout of the files or the tokenisation changes
_CHUNK = 10_000  # pairs tokenised at a time
_SIDES = ("src", "tgt")
_INDEX = "cache.json"

# Where each of some sentences begins in an array, and the array.
Destination = tuple[Int[np.ndarray, "n"], Int[np.ndarray, "_"]]


class Side(NamedTuple):
    """The sentences of one language: their ids, one after the other, and where each ends."""

    ids: Integer[np.ndarray, "tokens"]
    ends: Int[np.ndarray, "n"]
    origin: str = ""  # the folder, for messages

    def measure(self, indices: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
        """Sub-words of some sentences, with EOS."""
        lengths: np.ndarray = self.ends[indices] - np.where(indices > 0, self.ends[indices - 1], 0)
        return lengths

    def copy(
        self,
        indices: Int[np.ndarray, "n"],
        offsets: Int[np.ndarray, "n"],
        into: Int[np.ndarray, "positions"],
    ) -> None:
        """Copies sentences into an array, each starting at its offset.

        Raises:
            DataError: the files are damaged: a sentence does not end in EOS.
        """
        lengths = self.measure(indices)
        ids = self.ids[find_ragged(self.ends[indices] - lengths, lengths)]
        if (ids[np.cumsum(lengths) - 1] != EOS_ID).any():
            raise DataError(
                f"the cache {self.origin} is damaged: a sentence does not end in EOS; remove this "
                "folder, and it is built again"
            )
        into[find_ragged(offsets, lengths)] = ids


Shard = tuple[Side, Side]  # source and target of consecutive pairs of a corpus


def find_ragged(
    starts: Int[np.ndarray, "n"], lengths: Int[np.ndarray, "n"]
) -> Int[np.ndarray, "tokens"]:
    """Concatenates start, start + 1, ..., start + length - 1 of each sentence."""
    ends = np.cumsum(lengths)
    tokens = np.arange(ends[-1] if len(ends) else 0)
    indices: np.ndarray = tokens + np.repeat(starts - (ends - lengths), lengths)
    return indices


def is_built(path: Path) -> bool:
    """Returns whether the folder, local or in a bucket, holds a complete shard."""
    return (path / _INDEX).exists()


def open_or_build(
    path: Path,
    corpus: Corpus,
    pairs: range,
    vocabulary: Vocabulary,
    advance: Callable[[int], object],
) -> Shard:
    """Opens the shard of some pairs, or builds it if it is missing or damaged.

    Several processes may build the same shard at once; the first to finish gives it its name. A
    shard in a bucket is copied to this host by one of its processes, and uploaded if it is not
    there; it is complete when its `cache.json` is. `advance` is called with the number of pairs
    that are tokenised, or that were found.

    Raises:
        OSError: the shard cannot be written.
    """
    local = find_local(path, "tokens")
    with fetch_once(path, local):
        shard = None
        if local.exists() and not (shard := _open(local, local)):
            remove_folder(local)
        if shard:
            advance(len(pairs))
        else:
            with create_folder(local) as draft:
                shard = _fetch(path, draft) if local != path and is_built(path) else None
                if shard:
                    advance(len(pairs))
                else:
                    _write(draft, corpus, pairs, vocabulary, advance)
                    shard = _open(draft, local)
                    assert shard, "what was just written is whole"
        if local != path and not is_built(path):
            upload(local, path, last=_INDEX)
    return shard


def _fetch(remote: Path, draft: Path) -> Shard | None:
    """Copies a shard from a bucket; None if it is damaged there."""
    fetch_folder(remote, draft)
    shard = _open(draft, remote)
    if not shard:
        (remote / _INDEX).unlink(missing_ok=True)
    return shard


def _write(
    folder: Path,
    corpus: Corpus,
    pairs: range,
    vocabulary: Vocabulary,
    advance: Callable[[int], object],
) -> None:
    """Writes a shard in chunks, so that memory does not grow with its size."""
    tokenizers = dict(zip(_SIDES, (vocabulary.src, vocabulary.tgt), strict=True))
    files: dict[str, tuple[IO[bytes], str]] = {}  # with the type of their integers
    total = dict.fromkeys(_SIDES, 0)  # ids written so far
    with contextlib.ExitStack() as stack:
        for side, tokenizer in tokenizers.items():
            ids_dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<i4"
            for name, dtype in ((f"{side}.ids", ids_dtype), (f"{side}.ends", "<i8")):
                files[name] = stack.enter_context((folder / name).open("wb")), dtype
        for start in range(pairs.start, pairs.stop, _CHUNK):
            chunk = corpus.read(start, min(start + _CHUNK, pairs.stop))
            for side, sentences in zip(_SIDES, zip(*chunk, strict=True), strict=True):
                try:
                    rows = tokenizers[side].encode(sentences)
                except DataError as error:
                    raise DataError(f"{corpus.name}: {error}") from None
                ids = itertools.chain.from_iterable(rows)
                _, *ends = itertools.accumulate(map(len, rows), initial=total[side])
                total[side] = ends[-1]
                for name, values in ((f"{side}.ids", ids), (f"{side}.ends", ends)):
                    file, dtype = files[name]
                    file.write(np.fromiter(values, dtype).tobytes())
            advance(len(chunk))
        index = {n: {"dtype": dtype, "size": file.tell()} for n, (file, dtype) in files.items()}
    (folder / _INDEX).write_text(json.dumps(index, indent=2), "utf-8")


def _open(folder: Path, origin: Path) -> Shard | None:
    """Maps a shard; None if it is damaged, which is logged under the name `origin`."""
    try:
        index = json.loads((folder / _INDEX).read_text("utf-8"))
        arrays = {}
        for name, entry in index.items():
            arrays[name] = np.asarray(np.memmap(folder / name, entry["dtype"], mode="r"))
            if arrays[name].nbytes != entry["size"]:
                raise ValueError(f"{name} does not have the size of {_INDEX}")
        src, tgt = (Side(arrays[f"{n}.ids"], arrays[f"{n}.ends"], str(origin)) for n in _SIDES)
        for side in (src, tgt):
            if side.ends[-1] != len(side.ids) or np.diff(side.ends, prepend=0).min() < 1:
                raise ValueError("the ends of sentences do not fit the ids")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        logging.warning("the cache %s is damaged (%s); it is built again", origin, reason)
        return None
    return src, tgt


class TokenizedCorpus:
    """A tokenised corpus: pairs of source and target ids by index."""

    def __init__(self, shards: Sequence[Shard]):
        self.shards = shards
        sizes = np.array([len(tgt.ends) for _, tgt in shards], np.int64)
        self._ends = np.cumsum(sizes)  # the number of pairs up to each shard's end
        self._starts = self._ends - sizes

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def lengths(self) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
        """Sub-words of each source and of each target, with EOS; new arrays in memory."""
        sides = zip(*self.shards, strict=True)
        src, tgt = (
            np.concatenate([np.diff(each.ends, prepend=0).astype(np.int32) for each in side])
            for side in sides
        )
        return src, tgt

    def count_ids(self, side: int, size: int) -> Int[np.ndarray, "size"]:
        """How often each id below `size` occurs on a side, 0 or 1 (source or target)."""
        counts = np.zeros(size, np.int64)
        for shard in self.shards:
            ids = shard[side].ids
            for start in range(0, len(ids), SHARD):
                counts += np.bincount(ids[start : start + SHARD], minlength=size)
        return counts

    def copy(self, indices: Int[np.ndarray, "n"], src: Destination, tgt: Destination) -> None:
        """Copies the sides of pairs to their destinations."""
        for shard, own, places in self._divide(indices):
            for side, (offsets, into) in zip(shard, (src, tgt), strict=True):
                side.copy(places, offsets[own], into)

    def read_targets(
        self, indices: Int[np.ndarray, "n"]
    ) -> tuple[Int[np.ndarray, "tokens"], Int[np.ndarray, "n"]]:
        """Returns the ids of some targets, one after the other, and the length of each."""
        lengths = np.empty(len(indices), np.int64)
        for (_, tgt), own, places in self._divide(indices):
            lengths[own] = tgt.measure(places)
        offsets, ids = np.cumsum(lengths) - lengths, np.empty(lengths.sum(), np.int32)
        for (_, tgt), own, places in self._divide(indices):
            tgt.copy(places, offsets[own], ids)
        return ids, lengths

    def _divide(
        self, indices: Int[np.ndarray, "n"]
    ) -> Iterator[tuple[Shard, Int[np.ndarray, "own"], Int[np.ndarray, "own"]]]:
        """Yields each shard with pairs of these indices: which ones, and their places in it."""
        numbers = np.searchsorted(self._ends, indices, side="right")
        for number in np.unique(numbers).tolist():
            (own,) = np.nonzero(numbers == number)
            yield self.shards[number], own, indices[own] - self._starts[number]


def tokenize_corpus(
    corpus: Corpus,
    vocabulary: Vocabulary,
    directory: Path,
    *,
    share: tuple[int, int] = (0, 1),
) -> TokenizedCorpus:
    """Opens the shards of a corpus in `directory`; builds those that are missing or damaged.

    The sentences get the tag of the corpus; a vocabulary with a tag is for corpora without one.
    `share` is (number, count): only shards `number`, `number` + `count`, ... are meant.

    Raises:
        DataError: The corpus is empty, or the cache cannot be written.
    """
    if not len(corpus):
        raise DataError(f"{corpus.name} holds no sentence pair")
    (number, count), tagged = share, vocabulary.with_tag(corpus.tag, corpus.prefix)
    shards = [*_list_shards(corpus, vocabulary, directory).items()][number::count]
    with (
        explain_write_errors(DataError, f"data.cache_directory={directory}"),
        show_progress("tokenising", sum(len(pairs) for _, pairs in shards)) as bar,
    ):
        return TokenizedCorpus(
            [open_or_build(path, corpus, pairs, tagged, bar.update) for path, pairs in shards]
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
        remove_folder(path)


def _list_shards(corpus: Corpus, vocabulary: Vocabulary, directory: Path) -> dict[Path, range]:
    """Returns folder -> pairs of each shard, in order."""
    tagged = vocabulary.with_tag(corpus.tag, corpus.prefix)
    key = f"{_FORMAT} {corpus.fingerprint()} {tagged.fingerprint()}"
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    starts = range(0, len(corpus), SHARD)
    names = [name]
    if len(starts) > 1:
        names = [f"{name}-{number:05d}-of-{len(starts):05d}" for number in range(len(starts))]
    parts = [range(start, min(start + SHARD, len(corpus))) for start in starts]
    return {directory / name: part for name, part in zip(names, parts, strict=True)}
