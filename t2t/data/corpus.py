"""Corpora: random-access sequences of (source, target) sentences, as raw text.

Corpora of text files and of lists are here; `corpus_sources` opens those that a config names.
Nothing here tokenises, filters or shuffles.
"""

import abc
import errno
import gzip
import hashlib
import mmap
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from t2t.storage.paths import describe_error, make_path
from t2t.storage.staging import stage_file

Pair = tuple[str, str]

_BLOCK = 1 << 24  # bytes scanned at once for line ends
_LINES = 1 << 14  # lines decoded at once


class DataError(ValueError):
    """Unusable data; the message names the file and line, or the field to change."""


class Corpus(abc.ABC):
    """Sentence pairs by index; `name` identifies the corpus in messages."""

    name: str

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of pairs, at least one."""

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> list[Pair]:
        """The pairs [start, stop), faster than one by one; 0 <= start <= stop <= len."""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A hash of the content, the same in every run and on every machine."""

    def __getitem__(self, index: int) -> Pair:
        """The pair at `index`; raises IndexError if it is out of range."""
        index = range(len(self))[index]
        return self.read(index, index + 1)[0]

    def __iter__(self) -> Iterator[Pair]:
        """All pairs in order."""
        for start in range(0, len(self), _LINES):
            yield from self.read(start, min(start + _LINES, len(self)))


class TextFile:
    """The lines of a UTF-8 file, plain or .gz, by index; the file is not read into memory.

    Lines end with LF or CR LF only. `str.splitlines` would also split at U+2028 and similar
    characters, which occur inside sentences. The encoding of the whole file is checked when it is
    opened.
    """

    def __init__(self, path: str | Path):
        self.path = make_path(path)
        self._text = _map_text(self.path)
        self._starts = _find_line_starts(self._text)
        self._check_encoding()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def read(self, start: int, stop: int) -> list[str]:
        """Lines [start, stop), without their line ends."""
        if start == stop:
            return []
        lines = self._bytes(start, stop).decode().split("\n")
        return [line.removesuffix("\r") for line in lines]

    def fingerprint(self) -> str:
        """SHA-256 of the uncompressed text."""
        return hashlib.sha256(self._text).hexdigest()

    def _bytes(self, start: int, stop: int) -> bytes:
        return self._text[self._starts[start] : self._starts[stop] - 1]

    def _check_encoding(self) -> None:
        for start in range(0, len(self), _LINES):
            try:
                self._bytes(start, min(start + _LINES, len(self))).decode()
            except UnicodeDecodeError as error:
                position = self._starts[start] + error.start
                line = int(np.searchsorted(self._starts, position, side="right"))
                raise DataError(
                    f"{self.path}, line {line}: byte 0x{self._text[position]:02x} is not UTF-8; "
                    "convert the file, for example with iconv -t UTF-8"
                ) from None


def _map_text(path: Path) -> mmap.mmap:
    """Memory-maps the text of a file; a .gz is first unpacked into an unnamed temporary file.

    A file in a bucket is first copied to this host.
    """
    try:
        with stage_file(path).open("rb") as file:
            if path.suffix != ".gz":
                return _map_file(file.fileno(), path)
            with gzip.open(file) as packed, tempfile.TemporaryFile() as unpacked:
                shutil.copyfileobj(packed, unpacked, _BLOCK)
                unpacked.flush()
                return _map_file(unpacked.fileno(), path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a complete gzip file: {error}") from None
    except OSError as error:
        remedy = "; a .gz is unpacked into TMPDIR" if error.errno == errno.ENOSPC else ""
        raise DataError(f"{path} cannot be read: {describe_error(error)}{remedy}") from None


def _map_file(descriptor: int, path: Path) -> mmap.mmap:
    if not os.fstat(descriptor).st_size:
        raise DataError(f"{path} is empty; it needs at least one line")
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


def _find_line_starts(text: mmap.mmap) -> Int[np.ndarray, "starts"]:
    """Byte offsets of the lines: line i is text[starts[i] : starts[i + 1] - 1].

    The last entry is the offset at which a line after the last one would start.
    """
    codes = np.frombuffer(text, np.uint8)
    ends = [
        np.flatnonzero(codes[start : start + _BLOCK] == ord("\n")) + start
        for start in range(0, len(codes), _BLOCK)
    ]
    if codes[-1] != ord("\n"):
        ends.append(np.array([len(codes)]))
    first = 3 if text[:3] == b"\xef\xbb\xbf" else 0  # skip a byte order mark
    return np.concatenate([[first], np.concatenate(ends) + 1])


class TextCorpus(Corpus):
    """Two text files; line n of one is the translation of line n of the other."""

    def __init__(self, src: str | Path, tgt: str | Path):
        self._src, self._tgt = TextFile(src), TextFile(tgt)
        self.name = f"{self._src.path} | {self._tgt.path}"
        if len(self._src) != len(self._tgt):
            raise DataError(
                f"{self._src.path} has {len(self._src)} lines, but {self._tgt.path} has "
                f"{len(self._tgt)}; line n of one must be the translation of line n of the other"
            )

    def __len__(self) -> int:
        return len(self._src)

    def read(self, start: int, stop: int) -> list[Pair]:
        """Lines [start, stop) of both files."""
        return list(zip(self._src.read(start, stop), self._tgt.read(start, stop), strict=True))

    def fingerprint(self) -> str:
        """SHA-256 of both texts' fingerprints."""
        return hash_strings("text", self._src.fingerprint(), self._tgt.fingerprint())


class ListCorpus(Corpus):
    """Pairs in memory."""

    def __init__(self, name: str, pairs: Sequence[Pair]):
        self.name = name
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def read(self, start: int, stop: int) -> list[Pair]:
        """The pairs [start, stop) of the list."""
        return list(self._pairs[start:stop])

    def fingerprint(self) -> str:
        """A hash of every sentence."""
        return hash_strings("list", *(text for pair in self._pairs for text in pair))


class ConcatenatedCorpus(Corpus):
    """The pairs of several corpora, one corpus after the other."""

    def __init__(self, parts: Sequence[Corpus]):
        self.name = ", ".join(part.name for part in parts)
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, start: int, stop: int) -> list[Pair]:
        """The pairs [start, stop), read from the parts that hold them."""
        pairs: list[Pair] = []
        for part, end in zip(self._parts, self._ends.tolist(), strict=True):
            begin = end - len(part)
            if start < end and begin < stop:
                pairs += part.read(max(start - begin, 0), min(stop - begin, len(part)))
        return pairs

    def fingerprint(self) -> str:
        """A hash of the parts' fingerprints."""
        return hash_strings("concatenated", *(part.fingerprint() for part in self._parts))


def hash_strings(*strings: str) -> str:
    """SHA-256 of a sequence of strings."""
    digest = hashlib.sha256()
    for string in strings:
        encoded = string.encode()
        digest.update(len(encoded).to_bytes(8, "little"))  # tells ("ab", "c") from ("a", "bc")
        digest.update(encoded)
    return digest.hexdigest()
