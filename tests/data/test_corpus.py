import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from t2t.data.corpus import DataError, ListCorpus, TextCorpus, TextFile
from t2t.data.derived_corpora import ConcatenatedCorpus


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("a\nb", ["a", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("\n", [""]),
        ("\ufeffa\nb", ["a", "b"]),
        ("a\u2028b\x0bc\x0cd\x85e\x1df\ng", ["a\u2028b\x0bc\x0cd\x85e\x1df", "g"]),
    ],
)
def test_only_line_feeds_end_a_line(tmp_path: Path, content: str, lines: list[str]) -> None:
    file = TextFile(write(tmp_path / "text.en", content))
    assert len(file) == len(lines)
    assert file.read(0, len(file)) == lines
    assert [file.read(i, i + 1) for i in range(len(lines))] == [[line] for line in lines]
    assert file.read(1, 1) == []


def test_lines_are_found_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t2t.data.corpus._BLOCK", 7)
    monkeypatch.setattr("t2t.data.corpus._LINES", 3)
    lines = [f"Zeile {i} — {'ü' * (i % 5)}" for i in range(50)]
    path = write(tmp_path / "text.de", "\n".join(lines))
    assert TextFile(path).read(0, 50) == lines
    assert [src for src, _ in TextCorpus(path, path)] == lines


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b""), "a is empty; it needs at least one line"),
        (lambda path: None, "a does not exist"),
        (Path.mkdir, "a cannot be read: Is a directory"),
        (
            lambda path: path.write_bytes(gzip.compress("läuft\n".encode("utf-16"))),
            "a is UTF-16, not UTF-8; convert it: iconv -f UTF-16",
        ),
        (os.mkfifo, "a is a pipe .* write the text to a file"),
        (
            lambda path: path.write_bytes(b"a\nb \xed\xa0\xbd c\n"),
            r"a, line 2: .*U\+D83D.* surrogate.* iconv -c",
        ),
        (
            lambda path: path.write_bytes(b"fine\n" * 34_567 + b"sch\xf6n\n" + b"fine\n" * 99),
            "a, line 34568: byte 0xf6 is not UTF-8",
        ),
    ],
)
def test_what_is_no_text_is_named(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    make(tmp_path / "a")
    with pytest.raises(DataError, match=message):
        TextFile(tmp_path / "a")


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b'<refset setid="x" srclang="en" trglang="de">\n<doc docid="a">\n', "SGML of WMT"),
        (b"<!DOCTYPE srcset SYSTEM 'x'>\n", "SGML of WMT"),
        (b'<doc id="1">\nText\n', "SGML of WMT"),
        (b'\xef\xbb\xbf<?xml version="1.0"?>\n<!-- a -->\n<!DOCTYPE tmx>\n<tmx>', "TMX"),
        (b'<?xml version="1.0"?>\n<dataset id="a">\n', "XML or HTML"),
        (b"<!doctype html>\n", "XML or HTML"),
        (b'\n#, fuzzy\nmsgid ""\nmsgstr ""\n', "PO of gettext"),
        (b"PK\x03\x04..[Content_Types].xml", "an Office file"),
        (b"PK\x03\x04..a.txt", "a zip archive"),
        (b"a.txt".ljust(257, b"\0") + b"ustar", "a tar archive"),
        (b"%PDF-1.4\n", "PDF"),
        (b"PAR1\0\0", "Parquet"),
        (b'[\n  {"en": "a",\n   "de": "b"}\n]', "JSON"),
        (b'[{"en": "a"}, {"en": "b"}]\n', "JSON"),
        (b'[["a", "b"],\n["c", "d"]]', "JSON"),
        (b'{\n "data": []}', "JSON"),
    ],
)
def test_file_of_another_format_is_named_whatever_its_name(
    tmp_path: Path, content: bytes, name: str
) -> None:
    for packed in (content, gzip.compress(content)):
        (tmp_path / "a.en").write_bytes(packed)
        with pytest.raises(DataError, match=f"a.en is {name}, no lines of text; [a-z]"):
            TextFile(tmp_path / "a.en")


@pytest.mark.parametrize(
    "line",
    [
        "[[Category: dogs]]", '{"intent": "play"}', '[{"a": 1}]', "<b>Hello</b>", "<2de> Hello",
        "<document>", '<seg id="1">a</seg>', "PK", "BZh9 is a word", "# heading",
        '[laughs] "Yes"', "{",
    ],
)  # fmt: skip
def test_lines_that_look_like_another_format_are_text(tmp_path: Path, line: str) -> None:
    assert TextFile(write(tmp_path / "a.en", f"{line}\n{line}\n")).read(0, 2) == [line, line]


def test_concatenation_reads_across_its_parts() -> None:
    pairs = [(f"s{i}", f"t{i}") for i in range(10)]
    corpus = ConcatenatedCorpus(
        [ListCorpus("a", pairs[:3]), ListCorpus("b", pairs[3:4]), ListCorpus("c", pairs[4:])]
    )
    assert list(corpus) == pairs
    assert (corpus[1], corpus[-1]) == (pairs[1], pairs[9])
    with pytest.raises(IndexError):
        corpus[10]
    for start in range(11):
        for stop in range(start, 11):
            assert corpus.read(start, stop) == pairs[start:stop]


def test_fingerprint_depends_on_the_text_alone(tmp_path: Path) -> None:
    src, tgt = write(tmp_path / "a.en", "a\nb\n"), write(tmp_path / "a.de", "x\ny\n")
    packed = write(tmp_path / "b.en.gz", "a\nb\n")
    assert TextCorpus(src, tgt).fingerprint() == TextCorpus(packed, tgt).fingerprint()
    assert TextCorpus(src, tgt).fingerprint() != TextCorpus(tgt, src).fingerprint()
    assert (
        ListCorpus("one", [("ab", "c")]).fingerprint()
        == ListCorpus("other", [("ab", "c")]).fingerprint()
        != ListCorpus("one", [("a", "bc")]).fingerprint()
    )
    # Caches of earlier runs are found by this value: it must not change from machine to machine.
    assert TextCorpus(src, tgt).fingerprint().startswith("51555c595d6c96fc")


def test_text_is_read_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, known = write(tmp_path / "text.en", "a\nb\n"), tmp_path / "facts"
    first = TextFile(path, known)
    with monkeypatch.context() as patch:
        patch.setattr("t2t.data.corpus._map_text", None)
        second = TextFile(path, known)
        assert len(second) == len(first) == 2
        assert second.sha256 == first.sha256
    assert second.read(1, 2) == ["b"]  # only now
    (entry,) = known.glob("*.json")
    for content in ("", "[]", '{"version": 1}'):  # damaged
        entry.write_text(content)
        assert len(TextFile(path, known)) == 2
    write(path, "a\nc\n")  # of the same size
    os.utime(path, ns=(1, 1))
    assert TextFile(path, known).sha256 != first.sha256


@pytest.mark.parametrize("name", ["text.en", "text.en.gz"])
def test_facts_of_a_file_that_grew_while_it_was_read_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path, known = write(tmp_path / name, "a\nb\n"), tmp_path / "facts"
    check = TextFile._check_encoding

    def grow(file: TextFile) -> None:
        check(file)
        write(path, "a\nb\nc\nd\n")

    monkeypatch.setattr(TextFile, "_check_encoding", grow)
    assert len(TextFile(path, known)) == 2
    monkeypatch.undo()
    assert len(TextFile(path, known)) == 4


def test_packed_text_whose_facts_are_of_an_earlier_version_is_not_read(tmp_path: Path) -> None:
    path, known = write(tmp_path / "a.gz", "one two\nthree\n"), tmp_path / "facts"
    TextFile(path, known)
    file = TextFile(path, known)  # from its facts; unpacked when it is read
    write(path, "another\ntext\n")
    os.utime(path, (1, 1))
    with pytest.raises(DataError, match="changed while it was read"):
        file.read(0, 1)


@pytest.mark.parametrize("content", ["one\n", "One\nTwo\n"])
def test_file_that_changes_while_it_is_read_is_an_error(content: str, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("one\ntwo\n")
    os.utime(path, (1, 1))
    file = TextFile(path)
    assert file.read(0, 1) == ["one"]
    path.write_text(content)
    with pytest.raises(DataError, match="text changed while it was read; start again when"):
        file.read(1, 2)
