"""One shard of a tokenised corpus on disk: memory-mapped ragged arrays, checked and written whole.

A shard is a folder. For each side it holds the concatenated ids of all sentences (`src.ids`) and
their lengths (`src.lengths`); `cache.json` holds the size and checksum of each file, and
`checked.json` their sizes and times of modification when the checksums were last found right. A
folder whose name begins with a dot is unfinished; delete it if no process is writing it.
"""

import contextlib
import errno
import itertools
import json
import logging
import os
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from jaxtyping import Int, Integer

from t2t.data.corpus import Corpus
from t2t.data.tokenizer import Vocabulary
from t2t.storage.atomic_files import upload, write_file
from t2t.storage.paths import find_version
from t2t.storage.staging import fetch_folder, fetch_once, find_local

_CHUNK = 10_000  # pairs tokenised at a time
_STRIDE = 16  # sentences between two starts that `Side` keeps
_BLOCK = 1 << 24  # bytes read at a time to compute a checksum
_SIDES = ("src", "tgt")
_INDEX = "cache.json"
_CHECKED = "checked.json"


class _DamagedError(Exception):
    """A shard whose files are missing or differ from what was written."""


class Side:
    """The sentences of one language: their ids, one after the other, and their lengths."""

    def __init__(self, ids: Integer[np.ndarray, "tokens"], lengths: Int[np.ndarray, "n"]):
        self.ids, self.lengths = ids, lengths
        # Only each `_STRIDE`-th start is kept in memory: 8 bytes for each sentence would be more
        # than all else that a process keeps of a large corpus.
        sums = np.add.reduceat(lengths, np.arange(0, len(lengths), _STRIDE), dtype=np.int64)
        self._starts = np.cumsum(sums) - sums

    def find_starts(self, indices: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
        """Returns where in `ids` the sentences begin."""
        strides, places = np.divmod(indices, _STRIDE)  # each sentence's stride, and place in it
        others = np.arange(_STRIDE - 1)
        numbers = np.minimum(strides[:, None] * _STRIDE + others, len(self.lengths) - 1)
        # The lengths of the sentences that come before it in its stride.
        lengths = np.where(others < places[:, None], self.lengths[numbers], 0)
        starts: np.ndarray = self._starts[strides] + lengths.sum(axis=1)
        return starts

    def row(self, index: int) -> Integer[np.ndarray, "length"]:
        """The ids of one sentence, as a view of the file."""
        [start] = self.find_starts(np.array([index]))
        return self.ids[start : start + self.lengths[index]]

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

        into[ragged_indices(offsets)] = self.ids[ragged_indices(self.find_starts(indices))]


class Shard(NamedTuple):
    """Source and target of consecutive pairs of a corpus."""

    src: Side
    tgt: Side


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

    Several processes may build the same shard at once: each writes to a folder of its own, and the
    first to finish renames it to the final name. A shard in a bucket is copied to this host by one
    of its processes, and uploaded if it is not there; it is complete when its `cache.json` is.

    Args:
        path: the shard's folder.
        corpus: the corpus.
        pairs: the pairs of the corpus that the shard holds.
        vocabulary: their tokenizers.
        advance: called with the number of pairs that are tokenised, or that were found.

    Raises:
        OSError: the shard cannot be written.
    """
    final = find_local(path, "tokens")
    with fetch_once(path, final):
        remote = path if final != path else None
        return _open_or_build(final, remote, corpus, pairs, vocabulary, advance)


def _open_or_build(
    final: Path,
    remote: Path | None,
    corpus: Corpus,
    pairs: range,
    vocabulary: Vocabulary,
    advance: Callable[[int], object],
) -> Shard:
    if final.exists():
        try:
            shard = _open(final)
            _publish(final, remote)
            advance(len(pairs))
            return shard
        except _DamagedError as damage:
            logging.warning("the cache %s is damaged (%s); it is built again", final, damage)
    final.parent.mkdir(parents=True, exist_ok=True)
    building = _unfinished(final)
    building.mkdir()
    try:
        if remote is not None and _fetch(remote, building):
            advance(len(pairs))
        else:
            _write(building, corpus, pairs, vocabulary, advance)
        # Opened before it is renamed, so that the memory maps stay valid even if another
        # process, which saw a damaged shard under the final name, moves this one away.
        shard = _open(building)
        _install(building, final)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    _publish(final, remote)
    return shard


def _fetch(remote: Path, building: Path) -> bool:
    """Copies a shard from a bucket; returns whether it was there and undamaged."""
    if not is_built(remote):
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
    """Uploads a shard to its bucket, if it belongs there and is missing."""
    if remote and not is_built(remote):
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


def _write(
    folder: Path,
    corpus: Corpus,
    pairs: range,
    vocabulary: Vocabulary,
    advance: Callable[[int], object],
) -> None:
    """Writes a shard in chunks, so that memory does not grow with its size."""
    tokenizers = vocabulary.src, vocabulary.tgt
    writers: dict[str, _ArrayWriter] = {}
    with contextlib.ExitStack() as files:
        for side, tokenizer in zip(_SIDES, tokenizers, strict=True):
            ids_dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<i4"
            for name, dtype in ((f"{side}.ids", ids_dtype), (f"{side}.lengths", "<i4")):
                file = files.enter_context((folder / name).open("wb"))
                writers[name] = _ArrayWriter(file, dtype)
        for start in range(pairs.start, pairs.stop, _CHUNK):
            chunk = corpus.read(start, min(start + _CHUNK, pairs.stop))
            sides = zip(*chunk, strict=True)
            for side, tokenizer, sentences in zip(_SIDES, tokenizers, sides, strict=True):
                rows = tokenizer.encode(sentences)
                writers[f"{side}.ids"].append(itertools.chain.from_iterable(rows))
                writers[f"{side}.lengths"].append(map(len, rows))
            advance(len(chunk))
        index = {name: writer.finish() for name, writer in writers.items()}
    with (folder / _INDEX).open("w", encoding="utf-8") as text:
        json.dump(index, text, indent=2)
        _flush(text)


def _open(folder: Path) -> Shard:
    """Maps a finished shard; raises `_DamagedError` if a file differs from what was written.

    The checksums are computed only if a file has changed since they were last found right.
    """
    try:
        index = json.loads((folder / _INDEX).read_text("utf-8"))
        versions = {name: find_version(folder / name) for name in index}
        is_checked = _read_versions(folder) == versions
        arrays = {
            name: _read_array(folder / name, **entry, is_checked=is_checked)
            for name, entry in index.items()
        }
        shard = Shard(*(Side(arrays[f"{side}.ids"], arrays[f"{side}.lengths"]) for side in _SIDES))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _DamagedError(f"{type(error).__name__}: {error}") from None
    if not is_checked:
        with contextlib.suppress(OSError):  # another user's folder: checked at each start
            write_file(folder / _CHECKED, json.dumps(versions))
    return shard


def _read_versions(folder: Path) -> object:
    """Returns the versions of the files whose checksums were right, or None."""
    try:
        return json.loads((folder / _CHECKED).read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _read_array(
    path: Path, dtype: str, size: int, crc32: int, *, is_checked: bool
) -> Integer[np.ndarray, "values"]:
    array = np.asarray(np.memmap(path, dtype, mode="r"))
    is_right = array.nbytes == size
    if is_right and not is_checked:
        checksum = 0
        for block in np.array_split(array, array.nbytes // _BLOCK + 1):
            checksum = zlib.crc32(block.tobytes(), checksum)
        is_right = checksum == crc32
    if not is_right:
        raise _DamagedError(f"{path.name} does not have the size and checksum of cache.json")
    return array


def _install(building: Path, final: Path) -> None:
    """Renames a complete shard to its final name, unless another process already did so."""
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
            remove(final)


def remove(final: Path) -> None:
    """Removes a shard; no process sees it with only some of its files."""
    aside = _unfinished(final)
    with contextlib.suppress(FileNotFoundError):  # another process moved it first
        final.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _unfinished(final: Path) -> Path:
    """A unique name for an unfinished folder beside the final one."""
    return final.with_name(f".{final.name}.{uuid.uuid4().hex}")
