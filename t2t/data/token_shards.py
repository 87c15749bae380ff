"""One shard of a tokenised corpus on disk: memory-mapped ragged arrays, written whole.

A shard is a folder. For each side it holds the concatenated ids of all sentences (`src.ids`) and
where each ends (`src.ends`); `cache.json` holds the type and size of each file. A folder whose
name begins with a dot is unfinished; delete it if no process is writing it.
"""

import contextlib
import itertools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from jaxtyping import Int, Integer

from t2t.data.batch import EOS_ID
from t2t.data.cache_folders import create_folder, remove_whole
from t2t.data.corpus import Corpus, DataError
from t2t.data.tokenizer import Vocabulary
from t2t.storage.atomic_files import upload
from t2t.storage.staging import fetch_folder, fetch_once, find_local

_CHUNK = 10_000  # pairs tokenised at a time
_SIDES = ("src", "tgt")
_INDEX = "cache.json"


class Side(NamedTuple):
    """The sentences of one language: their ids, one after the other, and where each ends."""

    ids: Integer[np.ndarray, "tokens"]
    ends: Int[np.ndarray, "n"]
    origin: str = ""  # the folder, for messages

    @property
    def lengths(self) -> Int[np.ndarray, "n"]:
        """Sub-words of each sentence, with EOS; a new array in memory."""
        return np.diff(self.ends, prepend=0).astype(np.int32)

    def row(self, index: int) -> Integer[np.ndarray, "length"]:
        """The ids of one sentence, as a view of the file."""
        return self.ids[self.ends[index - 1] if index else 0 : self.ends[index]]

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


def find_ragged(
    starts: Int[np.ndarray, "n"], lengths: Int[np.ndarray, "n"]
) -> Int[np.ndarray, "tokens"]:
    """Concatenates start, start + 1, ..., start + length - 1 of each sentence."""
    ends = np.cumsum(lengths)
    tokens = np.arange(ends[-1] if len(ends) else 0)
    indices: np.ndarray = tokens + np.repeat(starts - (ends - lengths), lengths)
    return indices


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
            remove_whole(local)
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
                rows = tokenizers[side].encode(sentences)
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
        src, tgt = (
            Side(arrays[f"{side}.ids"], arrays[f"{side}.ends"], str(origin)) for side in _SIDES
        )
        for side in (src, tgt):
            if side.ends[-1] != len(side.ids) or side.lengths.min() < 1:
                raise ValueError("the ends of sentences do not fit the ids")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        logging.warning("the cache %s is damaged (%s); it is built again", origin, reason)
        return None
    return Shard(src, tgt)
