"""Packed files and encodings are recognised by the first bytes."""

import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from t2t.storage.open_text import (
    TextError,
    check_regular,
    find_compression,
    find_encoding,
    open_text,
    pack,
    unpack,
)

TEXT = "".join(f"{line} ü\n" for line in np.random.default_rng(0).random(3000)).encode()


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_packed_parts_are_read_one_after_the_other_and_one_that_is_cut_off_is_named(
    tmp_path: Path, suffix: str
) -> None:
    """They are known by their first bytes, whatever the name says."""
    packed = pack(TEXT[:999], suffix) + pack(TEXT[999:], suffix)
    path = tmp_path / "text.gz"
    path.write_bytes(packed)
    with open_text(path) as file:
        assert file.read() == TEXT
    path.write_bytes(packed[:-20])
    with (
        pytest.raises(TextError, match=r"text\.gz is not a complete .* fetch it"),
        open_text(path) as file,
    ):
        file.read()


def test_pipe_can_be_read_once() -> None:
    read, write = os.pipe()
    os.write(write, pack(b"a\nb\n", ".gz"))
    os.close(write)
    with pytest.raises(TextError, match="is a pipe"):
        check_regular(Path(f"/dev/fd/{read}"))
    with os.fdopen(read, "rb") as file:
        assert unpack(file, "standard input").read() == b"a\nb\n"


@pytest.mark.parametrize("text", ["Ein Hund läuft.\nHallo\n", "狗在 5 座山上爬山 hello\n"])
def test_encodings_are_told_apart(text: str) -> None:
    for size in (16, 32):
        assert find_encoding(text.encode(f"utf-{size}")) == f"UTF-{size}"
        for order in ("le", "be"):
            found = find_encoding(text.encode(f"utf-{size}-{order}"))
            assert found == f"UTF-{size}{order.upper()}"
    assert find_encoding(text.encode()) == find_encoding(text.encode("utf-8-sig")) == ""


def test_packed_text_may_be_empty() -> None:
    assert [find_compression(pack(b"", suffix)) for suffix in (".bz2", ".xz")] == ["bzip2", "xz"]


def test_missing_package_of_zstd_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(b"a\n", ".zst")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(TextError, match="pip install zstandard; or unpack it with zstd -d"):
        unpack(io.BytesIO(packed), "a.zst")
