"""Opens files of text as UTF-8: unpacks them, and names the encoding of those that are not.

The first bytes of a file say what it is, whatever its name: gzip, bzip2, xz and zstd are unpacked.
UTF-16 and UTF-32 are an error with the command that converts them.
"""

import bz2
import gzip
import io
import lzma
import re
import stat
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from t2t.storage.paths import is_bucket
from t2t.storage.staging import stage_file

PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
HEAD = 4096  # bytes that tell what a file is
_BLOCK = 1 << 17  # bytes read at once
_MAGIC = {  # bzip2 has a block after its level, or ends: "BZh" alone may begin a sentence
    re.compile(rb"\x1f\x8b"): "gzip",
    re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"): "bzip2",
    re.compile(rb"\xfd7zXZ\x00"): "xz",
    re.compile(rb"\x28\xb5\x2f\xfd"): "zstd",
}
_MARKS = {  # byte order marks; that of UTF-32 begins like that of UTF-16
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


class TextError(ValueError):
    """A file that is damaged or no UTF-8 text; the message has a remedy."""


def open_text(path: Path) -> IO[bytes]:
    """Opens a file of text, unpacked; one in a bucket is copied to this host first.

    Raises:
        OSError: the file does not exist or cannot be read.
        TextError: the file is not UTF-8 or damaged; reading raises it, too.
    """
    file = stage_file(path).open("rb")
    try:
        return unpack(file, str(path))
    except BaseException:
        file.close()
        raise


def unpack(stream: IO[bytes], name: str) -> IO[bytes]:
    """Returns the text of a stream, which may be a pipe; `name` is for messages.

    Raises:
        TextError: as in `open_text`.
    """
    if not isinstance(stream, io.BufferedReader):
        stream = io.BufferedReader(cast(io.RawIOBase, stream), _BLOCK)
    if kind := find_compression(stream.peek(HEAD)):
        stream = io.BufferedReader(_Unpacked(stream, kind, name), _BLOCK)
    check_encoding(stream.peek(HEAD)[:HEAD], name)
    return stream


def find_compression(head: bytes) -> str:
    """Returns gzip, bzip2, xz or zstd for the first bytes of a packed file, else ""."""
    return next((kind for magic, kind in _MAGIC.items() if magic.match(head)), "")


def pack(content: bytes, suffix: str) -> bytes:
    """Packs content as the suffix of a file's name says; packed parts may follow each other."""
    match suffix.lower():
        case ".gz":
            return gzip.compress(content, mtime=0)
        case ".bz2":
            return bz2.compress(content)
        case ".xz":
            return lzma.compress(content)
        case ".zst":
            return cast(bytes, _import_zstd(suffix).ZstdCompressor().compress(content))
        case _:
            return content


def check_encoding(head: bytes, name: str) -> None:
    """Raises `TextError` if the first bytes of a text are UTF-16 or UTF-32."""
    if encoding := find_encoding(head):
        raise TextError(
            f"{name} is {encoding}, not UTF-8; convert it: iconv -f {encoding} -t UTF-8 OLD > NEW"
        )


def find_encoding(head: bytes) -> str:
    """Returns iconv's name of UTF-16 or UTF-32, by byte order mark or the places of NUL; or ""."""
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding
    whole = head[: len(head) // 4 * 4]
    if not whole:
        return ""
    shares = [whole[place::4].count(0) / (len(whole) // 4) for place in range(4)]
    # Two of four bytes of UTF-32 are NUL, and those of ASCII in UTF-16 are every second one.
    for encoding, empty, full in (
        ("UTF-32LE", (2, 3), (0,)),
        ("UTF-32BE", (0, 1), (3,)),
        ("UTF-16LE", (1, 3), (0, 2)),
        ("UTF-16BE", (0, 2), (1, 3)),
    ):
        if all(shares[i] > 0.4 for i in empty) and all(shares[i] < 0.1 for i in full):
            return encoding
    return ""


def describe_bad_bytes(line: bytes, start: int) -> str:
    """Describes the bytes of a line at `start`, which are not UTF-8, and what to do."""
    found = line[start : start + 3]
    if len(found) > 1 and found[0] == 0xED and 0xA0 <= found[1] <= 0xBF:
        code = f"U+{(found[0] & 0xF) << 12 | (found[1] & 0x3F) << 6 | (found[-1] & 0x3F):04X}"
        return (
            f"byte 0x{found[0]:02x} begins {code}, half of a character (a lone surrogate), which "
            "is not UTF-8; iconv -c -f UTF-8 -t UTF-8 OLD > NEW removes such bytes"
        )
    return (
        f"byte 0x{line[start]:02x} is not UTF-8; convert the file from its encoding: "
        "iconv -f ENCODING -t UTF-8 OLD > NEW, where ENCODING is often WINDOWS-1252"
    )


def check_regular(path: Path) -> None:
    """Raises `TextError` for a pipe or a device, which cannot be read twice.

    Raises:
        OSError: the file does not exist.
    """
    if is_bucket(path):
        return
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise TextError(
            f"{path} is a pipe or a device, which can be read only once; write the text to a file "
            "and name that (packed files, .gz for example, can be named as they are)"
        )


def _import_zstd(name: str) -> Any:
    """Returns the package zstandard, which t2t[hf] installs."""
    try:
        import zstandard  # here because only these files need it
    except ImportError:
        raise TextError(
            f"{name} is packed by zstd, which needs a package: pip install zstandard; or unpack "
            "it with zstd -d"
        ) from None
    return zstandard


def _read_zstd(stream: IO[bytes], decompressor: Any) -> Iterator[bytes]:
    """Yields the content of zstd frames; unlike the readers of zstandard it notices a cut one."""
    frame, packed = None, b""
    while packed := packed or stream.read(_BLOCK):
        frame = frame or decompressor.decompressobj()
        yield frame.decompress(packed)
        packed, frame = frame.unused_data, None if frame.eof else frame
    if frame:
        raise EOFError("it is cut off")


class _Unpacked(io.RawIOBase):
    """The content of a packed stream, whose damage is a `TextError`; closing it closes both."""

    def __init__(self, stream: IO[bytes], kind: str, name: str):
        self._stream, self._kind, self._name = stream, kind, name
        self._rest = b""  # of the last block
        if kind == "zstd":
            self._blocks = _read_zstd(stream, _import_zstd(name).ZstdDecompressor())
        else:
            openers: dict[str, Any] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
            self._blocks = iter(partial(openers[kind](stream).read, _BLOCK), b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            while not self._rest and (block := next(self._blocks, None)) is not None:
                self._rest = block
        except Exception as error:
            system = isinstance(error, OSError) and error.errno is not None
            known = isinstance(error, EOFError | zlib.error | lzma.LZMAError | OSError)
            if system or not (known or type(error).__name__ == "ZstdError"):
                raise
            raise TextError(
                f"{self._name} is not a complete {self._kind} file: {error}; fetch it again"
            ) from None
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        self._stream.close()
        super().close()
