"""Corpora: random-access sequences of (source, target) sentences, as raw text.

Corpora of text files and of lists are here; `corpus_sources` opens those that a config names.
Nothing here tokenises, filters or shuffles.
"""

import abc
import contextlib
import errno
import functools
import hashlib
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from jaxtyping import Int

from t2t.data.file_formats import describe_format
from t2t.storage.file_facts import recall, remember
from t2t.storage.open_text import (
    HEAD,
    TextError,
    check_encoding,
    check_regular,
    describe_bad_bytes,
    find_compression,
    open_text,
)
from t2t.storage.paths import describe_error, find_version, make_path, storage_errors
from t2t.storage.staging import stage_file

Pair = tuple[str, str]

_VISIBLE = re.compile(rb"\S")
_BLOCK = 1 << 24  # bytes scanned at once for line ends
_LINES = 1 << 14  # lines decoded at once
_SAMPLED = 100  # neighbouring pairs of a sample, which are read together


class DataError(ValueError):
    """Unusable data; the message names the file and line, or the field to change."""


class Corpus(abc.ABC):
    """Sentence pairs by index; `name` identifies the corpus in messages."""

    name: str
    dropped: Mapping[str, int] = {}  # pairs that are left out, by the filter that drops them
    tag: str = ""  # with which the ids of each source begin (`directions`); not part of the text
    prefix: str = ""  # behind the tag: `data.prefix`
    task: str = ""  # of the run (`DataConfig.task`)
    sides: tuple[int, ...] = (0, 1)  # of a pair; text alone has only the target, 1
    weight: float = 1.0  # how often an epoch of training uses each pair

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of pairs, at least one."""

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> list[Pair]:
        """The pairs [start, stop), faster than one by one; 0 <= start <= stop <= len."""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A hash of the content, the same in every run and on every machine."""

    def read_kinds(self) -> Sequence[str] | None:
        """The kind of each pair, by which scores are told apart; None: they are of no kinds."""
        return None

    def __getitem__(self, index: int) -> Pair:
        """The pair at `index`; raises IndexError if it is out of range."""
        index = range(len(self))[index]
        return self.read(index, index + 1)[0]

    def __iter__(self) -> Iterator[Pair]:
        """All pairs in order."""
        for start in range(0, len(self), _LINES):
            yield from self.read(start, min(start + _LINES, len(self)))


def sample_pairs(corpora: Sequence[Corpus], stride: int) -> Iterator[tuple[Corpus, Pair]]:
    """Yields blocks of 100 pairs, one of every `stride` blocks, each pair with its corpus."""
    for corpus in corpora:
        for start in range(0, len(corpus), stride * _SAMPLED):
            for pair in corpus.read(start, min(start + _SAMPLED, len(corpus))):
                yield corpus, pair


class TextFile:
    """The lines of a UTF-8 file, plain or packed, by index; the file is not read into memory.

    Lines end with LF or CR LF only. `str.splitlines` would also split at U+2028 and similar
    characters, which occur inside sentences. The encoding of the whole file is checked when it is
    opened for the first time.
    """

    def __init__(self, path: str | Path, facts: Path | None = None):
        """Opens a file, and reads it whole unless the folder `facts` knows it (`file_facts`).

        The number of lines and the fingerprint are kept there until the file changes. A later start
        reads the file only if its lines are asked for.
        """
        self.path = make_path(path)
        with _explain_read_errors(self.path):
            check_regular(self.path)
            self._version = find_version(self.path)
        known = recall(facts, self.path) if facts else None
        if known is None:
            self._check_encoding()
            text, _, bounds = self._lines
            known = {
                "lines": len(bounds) - 1,
                "sha256": hashlib.sha256(text).hexdigest(),
                "blank": not _VISIBLE.search(text, int(bounds[0])),
            }
            if facts:
                remember(facts, self.path, known, self._version)
        self._num_lines = int(known["lines"])
        self.sha256 = str(known["sha256"])  # of the uncompressed text
        self._is_blank = bool(known.get("blank"))

    def __len__(self) -> int:
        return self._num_lines

    def read(self, start: int, stop: int) -> list[str]:
        """Lines [start, stop), without their line ends."""
        if start == stop:
            return []
        text, is_copied, bounds = self._lines
        if not is_copied:  # a copy cannot change
            self._check_version()
        lines = text[bounds[start] : bounds[stop]].decode().split("\n")
        return [line.removesuffix("\r") for line in lines[: stop - start]]

    def check_filled(self) -> None:
        """Raises `DataError` if no line has text."""
        if self._is_blank:
            raise DataError(f"{self.path} has empty lines alone; it needs a line with text")

    def _check_version(self) -> None:
        with _explain_read_errors(self.path):
            is_same = find_version(self.path) == self._version
        if not is_same:
            raise DataError(
                f"{self.path} changed while it was read; start again when it is complete"
            )

    @functools.cached_property
    def _lines(self) -> tuple[mmap.mmap, bool, Int[np.ndarray, "bounds"]]:
        """The text, whether it is a copy, and where each line begins and the last one ends."""
        text, is_copied = _map_text(self.path)
        self._check_version()  # the facts may be of an earlier version than the copy
        codes = np.frombuffer(text, np.uint8)
        bounds = [np.array([3 if text[:3] == b"\xef\xbb\xbf" else 0])]  # after a byte order mark
        for start in range(0, len(codes), _BLOCK):
            ends = np.flatnonzero(codes[start : start + _BLOCK] == ord("\n"))
            bounds.append(ends + start + 1)
        if codes[-1] != ord("\n"):
            bounds.append(np.array([len(codes)]))
        return text, is_copied, np.concatenate(bounds)

    def _check_encoding(self) -> None:
        text, _, bounds = self._lines
        if found := describe_format(self.path, text[:HEAD]):
            raise DataError(f"{self.path} {found}")
        with _explain_read_errors(self.path):
            check_encoding(text[:HEAD], str(self.path))
        for start in range(0, len(bounds) - 1, _LINES):
            block = text[bounds[start] : bounds[min(start + _LINES, len(bounds) - 1)]]
            try:
                block.decode()
            except UnicodeDecodeError as error:
                line = start + block[: error.start].count(b"\n") + 1
                raise DataError(
                    f"{self.path}, line {line}: {describe_bad_bytes(block, error.start)}"
                ) from None


def _map_text(path: Path) -> tuple[mmap.mmap, bool]:
    """Memory-maps the text of a file; returns it, and whether it is a copy.

    A packed file is first unpacked into an unnamed temporary file, and one in a bucket is copied to
    this host.
    """
    with _explain_read_errors(path), contextlib.ExitStack() as stack:
        file: IO[bytes] = stack.enter_context((staged := stage_file(path)).open("rb"))
        if is_packed := bool(find_compression(file.read(HEAD))):
            packed = stack.enter_context(open_text(path))
            file = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(packed, file, _BLOCK)
            file.flush()
        if not os.fstat(file.fileno()).st_size:
            raise DataError(f"{path} is empty; it needs at least one line")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), is_packed or staged != path


@contextlib.contextmanager
def _explain_read_errors(path: Path) -> Iterator[None]:
    """Raises what goes wrong in reading a file as a `DataError`."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except TextError as error:
        raise DataError(str(error)) from None
    except storage_errors() as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        remedy = "; packed files are unpacked into TMPDIR" if full else ""
        raise DataError(f"{path} cannot be read: {describe_error(error)}{remedy}") from None


class TextCorpus(Corpus):
    """Two text files; line n of one is the translation of line n of the other."""

    def __init__(
        self, src: str | Path, tgt: str | Path, facts: Path | None = None, *, name: str = "",
        fingerprint: str = "",
    ):  # fmt: skip
        """Opens both files; `facts` as in `TextFile`; without a name they name the corpus."""
        self._src, self._tgt = TextFile(src, facts), TextFile(tgt, facts)
        self.name = name or f"{self._src.path} | {self._tgt.path}"
        self._fingerprint = fingerprint
        if len(self._src) != len(self._tgt):
            raise DataError(
                f"{self._src.path} has {len(self._src)} lines, but {self._tgt.path} has "
                f"{len(self._tgt)}; line n of one must be the translation of line n of the other"
            )

    def check_filled(self) -> None:
        """Raises `DataError` if a file has no line with text."""
        for file in (self._src, self._tgt):
            file.check_filled()

    def __len__(self) -> int:
        return len(self._src)

    def read(self, start: int, stop: int) -> list[Pair]:
        """Lines [start, stop) of both files."""
        return list(zip(self._src.read(start, stop), self._tgt.read(start, stop), strict=True))

    def fingerprint(self) -> str:
        """SHA-256 of both texts' fingerprints, or the one that was given."""
        return self._fingerprint or hash_strings("text", self._src.sha256, self._tgt.sha256)


class ListCorpus(Corpus):
    """Pairs in memory, perhaps with the kind of each."""

    def __init__(self, name: str, pairs: Sequence[Pair], kinds: Sequence[str] | None = None):
        self.name = name
        self._pairs, self._kinds = pairs, kinds

    def __len__(self) -> int:
        return len(self._pairs)

    def read(self, start: int, stop: int) -> list[Pair]:
        """The pairs [start, stop) of the list."""
        return list(self._pairs[start:stop])

    def read_kinds(self) -> Sequence[str] | None:
        """The kinds that were given."""
        return self._kinds

    def fingerprint(self) -> str:
        """A hash of every sentence."""
        return hash_strings("list", *(text for pair in self._pairs for text in pair))


def hash_strings(*strings: str) -> str:
    """SHA-256 of a sequence of strings."""
    digest = hashlib.sha256()
    for string in strings:
        encoded = string.encode()
        digest.update(len(encoded).to_bytes(8, "little"))  # tells ("ab", "c") from ("a", "bc")
        digest.update(encoded)
    return digest.hexdigest()
