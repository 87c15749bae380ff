"""Formats of files, and what is wrong with them."""

import json
from pathlib import Path

import pytest

from t2t.data import corpus_sources, hugging_face
from t2t.data.corpus import DataError
from t2t.data.parts import list_parts
from tests.data.pair_files import PAIRS, make_config, open_train, to_json, to_tsv, write_bytes

pytest.importorskip("datasets")


ROWS = [{"id": n, "translation": {"en": e, "de": d}} for n, (e, d) in enumerate(PAIRS)]
DATES = [("2020-01-01", "2020-01-01T10:00:00"), ("1", "true")]
GOOD_FILES: dict[str, tuple[str, bytes, dict[str, str], list[tuple[str, str]]]] = {
    "TSV as it stands": ("a.tsv", to_tsv(PAIRS), {}, PAIRS),
    "packed TSV": ("a.tsv.zst", to_tsv(PAIRS), {}, PAIRS),
    "blank lines and empty cells": (
        "a.tsv", b"en\tde\na\tb\n\n\tc\n", {}, [("a", "b"), ("", ""), ("", "c")]
    ),
    "columns by number": (
        "a.tsv", b"x\t7\ty\nz\t8\tw\n", {"src_column": "2", "tgt_column": "0"},
        [("y", "x"), ("w", "z")],
    ),
    "quotes and names of CSV": (
        "a.csv", b'id,target,source\n1,"ein ""Hund"", alt","an old\ndog"\n2,,x\n',
        {"src_column": "source", "tgt_column": "target"},
        [("an old dog", 'ein "Hund", alt'), ("x", "")],
    ),
    "keys within a column": ("a.jsonl.gz", to_json(ROWS), {}, PAIRS),
    "keys that are named": (
        "a.json", to_json(ROWS),
        {"src_column": "translation.de", "tgt_column": "translation.en"},
        [pair[::-1] for pair in PAIRS],
    ),
    "dates": ("a.jsonl", to_json([{"en": e, "de": d} for e, d in DATES]), {}, DATES),
    "a list of objects": (
        "a.json", json.dumps([{"en": e, "de": d} for e, d in DATES], indent=1).encode(), {}, DATES
    ),
    "a name like a pattern": ("a[1].tsv", to_tsv(PAIRS), {}, PAIRS),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "fields", "pairs"), GOOD_FILES.values(), ids=GOOD_FILES
)
def test_every_cell_is_text_as_it_stands(
    tmp_path: Path, name: str, content: bytes, fields: dict[str, str], pairs: list[tuple[str, str]]
) -> None:
    write_bytes(tmp_path / "a1.tsv", to_tsv([("other", "andere")]))
    path = write_bytes(tmp_path / name, content)
    assert [*open_train(tmp_path, path, **fields)] == pairs


def test_parquet_is_read(tmp_path: Path) -> None:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    sides = dict(zip(("en", "de"), map(list, zip(*PAIRS, strict=True)), strict=True))
    parquet.write_table(arrow.table(sides), tmp_path / "a.parquet")
    assert [*open_train(tmp_path, tmp_path / "a.parquet")] == PAIRS


def change_row(number: int, line: bytes) -> bytes:
    """A TSV file of 12,000 rows, one of which is replaced."""
    lines = to_tsv([(f"e{n}", f"d{n}") for n in range(1, 12_001)]).splitlines(keepends=True)
    lines[number] = line
    return b"".join(lines)


BAD_FILES = {
    "broken UTF-8": (
        "a.tsv", change_row(10_000, b"caf\xe9\tx\n"),
        r"a\.tsv, line 10001: byte 0xe9 is not UTF-8; convert .* iconv -f ENCODING",
    ),
    "broken UTF-8 in a packed file": (
        "a.TSV.gz", to_tsv(PAIRS) + b"caf\xe9\tx\n",
        rf"a\.TSV\.gz, line {len(PAIRS) + 2}: byte 0xe9 is not UTF-8",
    ),
    "too many fields": (
        "a.tsv", change_row(10_000, b"a\tb\tc\n"),
        r"a\.tsv, line 10001 has 3 fields instead of 2; correct the line or remove it",
    ),
    "too many fields in all rows": (
        "a.tsv", b"en\tde\nhello\thallo\t0.9\nbye\ttschau\t0.8\n",
        r"a\.tsv, line 2 has 3 fields instead of 2; correct the line or remove it",
    ),
    "carriage return in a row": (
        "a.tsv", b"en\tde\na b\tx y\rz\nc\td\n",
        r"a\.tsv, line 2 has a carriage return within it; replace it by a space",
    ),
    "too few fields after a long one": (
        "a.tsv", b"en\tde\n" + b"a" * 200_000 + b"\tb\none\n", "line 3 has 1 fields instead of 2"
    ),
    "quote that is not closed": (
        "a.csv", b'en,de\na,b\nc,"d\ne,f\n',
        r"a\.csv, line 3: a quote that opens in this row is never closed, .* in line 4; close it",
    ),
    "quote within a quoted cell": (
        "a.csv", b'en,de\na,"b" c\n',
        r"a\.csv, line 2: .* in the row that begins in line 2, double each quote",
    ),
    "semicolons": (
        "a.csv", b"en;de\na;b\n", r"has no column 'en'; it has en;de; .* by semicolons, but"
    ),
    "commas in TSV": (
        "a.tsv", b"en,de\na,b\n", r"has no column 'en'; it has en,de; .* by commas, but"
    ),
    "sentences instead of names": (
        "a.tsv", to_tsv([("a", "b")], "A dog.\tEin Hund.\n"),
        r"it has A dog\., Ein Hund\.; if that is no line of names, number .*src_column=0; set",
    ),
    "a name twice": ("a.csv", b"en,de,en\na,b,c\n", r"several columns 'en'; rename them"),
    "UTF-16": (
        "a.csv", "en,de\na,b\n".encode("utf-16"), r"a\.csv is UTF-16, .* iconv -f UTF-16 -t UTF-8"
    ),
    "key twice": (
        "a.jsonl", b'{"en": "a", "de": "b"}\n\n{"en": "a", "en": "b"}\n',
        r"a\.jsonl, line 3 is not JSON: the key 'en' occurs twice",
    ),
    "lone surrogate": (
        "a.jsonl", to_json([{"en": "a", "de": "b"}, {"en": "\ud83d", "de": "b"}]),
        r"a\.jsonl, line 2, column 'en': U\+D83D is half of a character",
    ),
    "no object": ("a.jsonl", b"12\n", r"a\.jsonl, line 1 is no object but int"),
    "too few fields of CSV": (
        "a.csv", b'id,en,de\n1,"a\nb","c, ""d"""\n2,a\n',
        r"a\.csv, line 4 has 2 fields instead of 3",
    ),
    "missing column": (
        "a.tsv", to_tsv([("a", "b")], "en\tfr\n"),
        r"a\.tsv has no column 'de'; it has en, fr; if .* data\.src_column=0; set data\.tgt_column",
    ),
    "missing key": (
        "a.jsonl", to_json([{"en": "a", "de": "b"}] * 1500 + [{"en": "a"}]),
        r"a\.jsonl, line 1501, column 'de': there is no value; correct the row or remove it",
    ),
    "missing key of a column": (
        "a.jsonl", to_json([{"translation": {"en": "a", "de": "b"}}, {"translation": {"en": "a"}}]),
        r"a\.jsonl, line 2, column 'translation\.de': there is no value",
    ),
    "null": (
        "a.jsonl", to_json([{"en": "a", "de": "b"}, {"en": None, "de": "b"}]),
        r"a\.jsonl, line 2, column 'en': there is no value",
    ),
    "number": (
        "a.jsonl", to_json([{"en": 1, "de": "b"}]),
        r"a\.jsonl, line 1, column 'en': 1 is no text but int; set data\.src_column",
    ),
    "no key": (
        "a.jsonl", to_json([{"translation": "text", "de": "b"}]),
        r"a\.jsonl, line 1, column 'translation\.en': 'text' has no keys",
    ),
    "no JSON": (
        "a.jsonl", to_json([{"en": "a", "de": "b"}] * 3) + b'{"en":\n',
        r"a\.jsonl, line 4 is not JSON: Expecting value",
    ),
    "empty file": ("a.tsv", b"", r"a\.tsv is empty; remove it from data\.hf_files"),
    "names alone": ("a.tsv", b"en\tde\n", r"a\.tsv has no rows; remove it from data\.hf_files"),
    "unknown format": ("a.xml", b"<x/>", r"a\.xml: data\.hf_files takes \.parquet and .* rename"),
    "no Parquet": ("a.parquet", b"PAR1", r"a\.parquet cannot be read: "),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_file_is_one_line_and_leaves_no_copy(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = write_bytes(tmp_path / name, content)
    data = make_config(tmp_path, path)
    for _ in range(2):  # what the first attempt left behind does not hide the fault
        with pytest.raises(DataError, match=message) as caught:
            corpus_sources.open_split(data, "train")
        assert "\n" not in str(caught.value)
    [part] = list_parts(data)
    assert not hugging_face.find_copy(part, "train").exists()


def test_files_with_other_columns_are_named(tmp_path: Path) -> None:
    first = write_bytes(tmp_path / "a.tsv", to_tsv(PAIRS))
    second = write_bytes(tmp_path / "b.tsv", to_tsv(PAIRS, "english\tde\n"))
    with pytest.raises(DataError, match=r"b\.tsv has no column 'en'; it has english, de; .*set"):
        open_train(tmp_path, first, second)
    with pytest.raises(DataError, match=r"none\.tsv does not exist; data\.hf_files names it"):
        open_train(tmp_path, tmp_path / "none.tsv")


def test_rows_of_many_lines_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [f"e{number},d{number}\n" for number in range(60)]
    lines[20] = lines[20].replace(",", ',"')
    lines[40] = 'e40,d40"\n'
    path = write_bytes(tmp_path / "a.csv", ("en,de\n" + "".join(lines)).encode())
    assert len(open_train(tmp_path, path)) == 40
    assert "the first begins in line 22" in caplog.text
