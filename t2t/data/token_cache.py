"""Tokenises a corpus once and caches it on disk as memory-mapped ragged arrays.

A cache is a folder named by a hash of text, vocabulary and format. For each side it holds the
concatenated ids of all sentences (`src.ids`) and their lengths (`src.lengths`); `cache.json` holds
the size and checksum of each file. No pair is dropped or cut here: the plan filters by length. A
folder whose name begins with a dot is unfinished; delete it if no process is writing it.
"""

import contextlib
import dataclasses
import errno
import hashlib
import itertools
import json
import logging
import os
import shutil
import uuid
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
import tqdm
from jaxtyping import Int, Integer

from t2t.data.corpus import Corpus, DataError
from t2t.data.tokenizer import Vocabulary
from t2t.storage.atomic_files import explain_write_errors, upload
from t2t.storage.paths import is_bucket
from t2t.storage.staging import FOLDER, fetch_folder

_FORMAT = 1  # increase it when the layout of the files or the tokenisation changes
_CHUNK = 10_000  # pairs tokenised at a time
_BLOCK = 1 << 24  # bytes read at a time to compute a checksum
_SIDES = ("src", "tgt")
_INDEX = "cache.json"


class _DamagedError(Exception):
    """A cache whose files are missing or differ from what was written."""


@dataclasses.dataclass(frozen=True)
class Side:
    """The sentences of one language: row i is ids[ends[i] - lengths[i] : ends[i]]."""

    ids: Integer[np.ndarray, "tokens"]
    lengths: Int[np.ndarray, "n"]
    ends: Int[np.ndarray, "n"]

    def row(self, index: int) -> Integer[np.ndarray, "length"]:
        """The ids of one sentence, as a view of the file."""
        end = self.ends[index]
        return self.ids[end - self.lengths[index] : end]

    def copy(
        self,
        indices: Int[np.ndarray, "n"],
        offsets: Int[np.ndarray, "n"],
        into: Int[np.ndarray, "positions"],
    ) -> None:
        """Copies sentences into an array, each starting at its offset."""
        lengths = self.lengths[indices]
        ends = np.cumsum(lengths)
        tokens = np.arange(ends[-1] if len(ends) else 0)

        def ragged_indices(starts: Int[np.ndarray, "n"]) -> Int[np.ndarray, "tokens"]:
            """Concatenates start, start + 1, ..., start + length - 1 of each sentence."""
            indices: np.ndarray = tokens + np.repeat(starts - (ends - lengths), lengths)
            return indices

        into[ragged_indices(offsets)] = self.ids[ragged_indices(self.ends[indices] - lengths)]


class TokenizedCorpus:
    """A tokenised corpus: pairs of source and target ids by index."""

    def __init__(self, src: Side, tgt: Side):
        self._src, self._tgt = src, tgt

    def __len__(self) -> int:
        return len(self._src.lengths)

    @property
    def src_lengths(self) -> Int[np.ndarray, "n"]:
        """Sub-words of each source sentence, with EOS."""
        return self._src.lengths

    @property
    def tgt_lengths(self) -> Int[np.ndarray, "n"]:
        """Sub-words of each target sentence, with EOS."""
        return self._tgt.lengths

    def pair(self, index: int) -> tuple[Integer[np.ndarray, "S"], Integer[np.ndarray, "T"]]:
        """Source and target ids of one pair, ending in EOS; read-only views of the files."""
        return self._src.row(index), self._tgt.row(index)

    def copy(
        self,
        indices: Int[np.ndarray, "n"],
        src_offsets: Int[np.ndarray, "n"],
        tgt_offsets: Int[np.ndarray, "n"],
        src: Int[np.ndarray, "src_positions"],
        tgt: Int[np.ndarray, "tgt_positions"],
    ) -> None:
        """Copies pairs into the arrays `src` and `tgt`, each sentence starting at its offset."""
        self._src.copy(indices, src_offsets, src)
        self._tgt.copy(indices, tgt_offsets, tgt)


def tokenize_corpus(
    corpus: Corpus, vocabulary: Vocabulary, directory: Path, *, progress: bool = True
) -> TokenizedCorpus:
    """Tokenises a corpus, or opens its cache in `directory` if it is there and undamaged.

    Several processes may build the same cache at once: each writes to a folder of its own, and the
    first to finish renames it to the final name. A cache in a bucket is copied to this host, and
    uploaded if it is not there; it is complete when its `cache.json` is.

    Raises:
        DataError: The corpus is empty, or the cache cannot be written.
    """
    if not len(corpus):
        raise DataError(f"{corpus.name} holds no sentence pair")
    key = f"{_FORMAT} {corpus.fingerprint()} {vocabulary.fingerprint()}"
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    remote = directory / name if is_bucket(directory) else None
    final = ((FOLDER / "tokens" if remote else directory) / name).expanduser()
    with explain_write_errors(DataError, f"data.cache_directory={directory}"):
        if final.exists():
            try:
                tokenized = _open(final)
                _publish(final, remote)
                return tokenized
            except _DamagedError as damage:
                logging.warning("the cache %s is damaged (%s); it is built again", final, damage)
        final.parent.mkdir(parents=True, exist_ok=True)
        building = _unfinished(final)
        building.mkdir()
        try:
            if remote is None or not _fetch(remote, building):
                _write(building, corpus, vocabulary, progress)
            # Opened before it is renamed, so that the memory maps stay valid even if another
            # process, which saw a damaged cache under the final name, moves this one away.
            tokenized = _open(building)
            _install(building, final)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        _publish(final, remote)
    return tokenized


def _fetch(remote: Path, building: Path) -> bool:
    """Copies a cache from a bucket; returns whether it was there and undamaged."""
    if not (remote / _INDEX).exists():
        return False
    fetch_folder(remote, building)
    try:
        _open(building)
    except _DamagedError as damage:
        logging.warning("the cache %s is damaged (%s); it is built again", remote, damage)
        (remote / _INDEX).unlink(missing_ok=True)
        return False
    return True


def _publish(final: Path, remote: Path | None) -> None:
    """Uploads a cache to its bucket, if it belongs there and is missing."""
    if remote and not (remote / _INDEX).exists():
        upload(final, remote, last=_INDEX)


class _ArrayWriter:
    """Appends integers to a file and computes its size and checksum."""

    def __init__(self, file: IO[bytes], dtype: str):
        self._file, self._dtype = file, dtype
        self._size = self._crc32 = 0

    def append(self, values: Iterable[int]) -> None:
        block = np.fromiter(values, self._dtype).tobytes()
        self._file.write(block)
        self._size += len(block)
        self._crc32 = zlib.crc32(block, self._crc32)

    def finish(self) -> dict[str, str | int]:
        """Flushes the file to disk; returns the dtype, size and checksum for `_read_array`."""
        _flush(self._file)
        return {"dtype": self._dtype, "size": self._size, "crc32": self._crc32}


def _flush(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _write(folder: Path, corpus: Corpus, vocabulary: Vocabulary, progress: bool) -> None:
    """Writes the cache of a corpus, in chunks, so that memory does not grow with the corpus."""
    tokenizers = vocabulary.src, vocabulary.tgt
    writers: dict[str, _ArrayWriter] = {}
    with contextlib.ExitStack() as files:
        for side, tokenizer in zip(_SIDES, tokenizers, strict=True):
            ids_dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<i4"
            for name, dtype in ((f"{side}.ids", ids_dtype), (f"{side}.lengths", "<i4")):
                file = files.enter_context((folder / name).open("wb"))
                writers[name] = _ArrayWriter(file, dtype)
        bar = files.enter_context(_open_bar(len(corpus), progress))
        for start in range(0, len(corpus), _CHUNK):
            pairs = corpus.read(start, min(start + _CHUNK, len(corpus)))
            sides = zip(*pairs, strict=True)
            for side, tokenizer, sentences in zip(_SIDES, tokenizers, sides, strict=True):
                rows = tokenizer.encode(sentences)
                writers[f"{side}.ids"].append(itertools.chain.from_iterable(rows))
                writers[f"{side}.lengths"].append(map(len, rows))
            bar.update(len(pairs))
        index = {name: writer.finish() for name, writer in writers.items()}
    with (folder / _INDEX).open("w") as text:
        json.dump(index, text, indent=2)
        _flush(text)


def _open_bar(pairs: int, progress: bool) -> "tqdm.tqdm[NoReturn]":
    """A progress bar, shown on a terminal (`disable=None`) after two seconds."""
    return tqdm.tqdm(
        desc="tokenising",
        total=pairs,
        unit=" pairs",
        unit_scale=True,
        delay=2,
        disable=None if progress else True,
    )


def _open(folder: Path) -> TokenizedCorpus:
    """Maps a finished cache; raises `_DamagedError` if a file differs from what was written."""
    try:
        index = json.loads((folder / _INDEX).read_text())
        src, tgt = (_read_side(folder, side, index) for side in _SIDES)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _DamagedError(f"{type(error).__name__}: {error}") from None
    return TokenizedCorpus(src, tgt)


def _read_side(folder: Path, side: str, index: dict[str, Any]) -> Side:
    names = f"{side}.ids", f"{side}.lengths"
    ids, lengths = (_read_array(folder / name, **index[name]) for name in names)
    return Side(ids, lengths, np.cumsum(lengths, dtype=np.int64))


def _read_array(path: Path, dtype: str, size: int, crc32: int) -> Integer[np.ndarray, "values"]:
    array = np.asarray(np.memmap(path, dtype, mode="r"))
    checksum = 0
    for block in np.array_split(array, array.nbytes // _BLOCK + 1):
        checksum = zlib.crc32(block.tobytes(), checksum)
    if (array.nbytes, checksum) != (size, crc32):
        raise _DamagedError(f"{path.name} does not have the size and checksum of cache.json")
    return array


def _install(building: Path, final: Path) -> None:
    """Renames a complete cache to its final name, unless another process already did so."""
    while True:
        try:
            building.rename(final)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        try:
            _open(final)
            return
        except _DamagedError:
            aside = _unfinished(final)
            with contextlib.suppress(FileNotFoundError):  # another process moved it first
                final.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)


def _unfinished(final: Path) -> Path:
    """A unique name for an unfinished folder beside the final one."""
    return final.with_name(f".{final.name}.{uuid.uuid4().hex}")
