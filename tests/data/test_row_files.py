"""Formats of files, and what is wrong with them."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from t2t.data import corpus_sources, hugging_face
from t2t.data.corpus import DataError
from t2t.data.parts import resolve
from tests.data.pair_files import PAIRS, make_config, open_train, to_json, to_tsv, write_bytes

# `importorskip` would import it, which takes a second, in each process that collects the tests.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None, reason="the extra hf is not installed"
)


ROWS = [{"id": n, "translation": {"en": e, "de": d}} for n, (e, d) in enumerate(PAIRS)]
DATES = [("2020-01-01", "2020-01-01T10:00:00"), ("1", "true")]
GOOD_FILES: dict[str, tuple[str, bytes, dict[str, str], list[tuple[str, str]]]] = {
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
    "a list of objects": (
        "a.json", json.dumps([{"en": e, "de": d} for e, d in DATES], indent=1).encode(), {}, DATES
    ),
    "one object of several lines": (
        "a.json", json.dumps({"en": "a", "de": "b", "tags": ["x"]}, indent=1).encode(), {},
        [("a", "b")],
    ),
    "items of lists": (
        "a.jsonl", to_json([{"id": "1", "translation": [{"en": e}, d]} for e, d in PAIRS]),
        {"src_column": "translation.0.en", "tgt_column": "translation.1"}, PAIRS,
    ),
    "a name like a pattern": ("a [1], b=c.tsv", to_tsv(PAIRS), {}, PAIRS),
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


GOOD = {"en": "a", "de": "b"}
BAD_FILES = [  # name, content, what the message says after the name
    ("a.tsv", change_row(10_000, b"caf\xe9\tx\n"),
     r", line 10001: byte 0xe9 is not UTF-8; convert .* iconv -f ENCODING"),
    ("a.tsv", change_row(10_000, b"a\tb\tc\n"),
     ", line 10001 has 3 fields instead of 2; correct the line or remove it"),
    ("a.tsv", b"en\tde\na b\tx y\rz\nc\td\n",
     ", line 2 has a carriage return within it; replace it by a space"),
    ("a.csv", b'en,de\na,b\nc,"d\ne,f\n',
     ", line 3: a quote that opens in this row is never closed, .* in line 4; close it"),
    ("a.csv", b'en,de\na,"b" c\n', ", line 2: .* row that begins in line 2, double each quote"),
    ("a.csv", b"en;de\na;b\n", "has no column 'en'; it has en;de; .* by semicolons, but"),
    ("a.tsv", to_tsv([("a", "b")], "A dog.\tEin Hund.\n"),
     r".*has A dog\., Ein Hund\.; if that is no line of names, number .*src_column=0; set"),
    ("a.csv", b"en,de,en\na,b,c\n", "has several columns 'en'; rename them"),
    ("a.csv", "en,de\na,b\n".encode("utf-16"), "is UTF-16, .* iconv -f UTF-16 -t UTF-8"),
    ("a.csv", b'id,en,de\n1,"a\nb","c, ""d"""\n2,a\n', ", line 4 has 2 fields instead of 3"),
    ("a.jsonl", b'{"en": "a", "de": "b"}\n\n{"en": "a", "en": "b"}\n',
     ", line 3 is not JSON: the key 'en' occurs twice"),
    ("a.jsonl", to_json([GOOD, {"en": "\ud83d", "de": "b"}]),
     r", line 2, column 'en': U\+D83D is half of a character"),
    ("a.jsonl", b"12\n", r", line 1 is a number, not an object; write each row as .* \{.en.: "),
    ("a.json", b'[{"en": "a", "de": "b"}, null]', ", row 2 is null, not an object"),
    ("a.json", b'[\n{"en": "a"},\n{"en": }]', " is not JSON: Expecting value: line 3 column 8"),
    ("a.json", to_json([{"data": [GOOD], "version": 1}]),
     "is one object, not a list of rows; it has data, version: write the rows alone, as"),
    ("a.jsonl", to_json([GOOD, {"en": ["a"] * 99, "de": "b"}]),
     r", line 2, column 'en': \['a', .*\.\.\. is a list; set data\.src_column .* as en\.0"),
    ("a.jsonl", to_json([GOOD, {"translation": {"language": ["en", "de"]}}]),
     r", line 2, column 'translation\.en': there is no value \(but of language\); correct "
     r"the row or remove it, or set data\.src_column"),
    ("a.tsv", b"\nen\tde\na\tb\n", ", line 1 is blank; it has to name the columns"),
    ("a.jsonl", to_json([GOOD] * 1500 + [{"en": "a"}]),
     r", line 1501, column 'de': there is no value; correct the row or remove it, or set "
     r"data\.tgt_column: it has en"),
    ("a.jsonl", to_json([{"en": 1, "de": "b"}]),
     r", line 1, column 'en': 1 is no text but int; set data\.src_column"),
    ("a.tsv", b'"en"\t"de"\n"a"\t"b"\n',
     r"has no column 'en'; it has \"en\", \"de\"; their quotes are part .* write it as \.csv"),
    ("a.tsv", b'en\tde\n"a ""b""\n', r", line 2 has 1 fields .*; if a cell in quotes holds the"),
    ("a.tsv", b"PAR1", r"is Parquet, .* name it in data\.hf_files, with \.parquet at its end"),
    ("a.txt", b'[\n{"en": "a"}]', r"is JSON, .* with \.json at its end"),
    ("a.tmx", b'<?xml version="1.0"?>\n<tmx version="1.4">', r"is TMX, .* each side as text: tm"),
    ("a.po.gz", b'# German\nmsgid ""\n', r"is PO of gettext, .*; write it as CSV: po2csv"),
    ("a.xlsx", b"PK\x03\x04 docProps/app.xml", r"is an Office file, .* --convert-to csv"),
    ("a.ods", b"", r"is empty"),
    ("a.doc", b"?", r"is an Office file"),  # by its name
    ("a.tsv", b"", r"is empty; remove it from data\.hf_files"),
    ("a.xml", b"<x/>", r": data\.hf_files takes \.parquet, .* rename"),
    ("a.parquet", b"PAR1", "cannot be read: "),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "message"), BAD_FILES, ids=[message for *_, message in BAD_FILES]
)
def test_bad_file_is_one_line_and_leaves_no_copy(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = write_bytes(tmp_path / name, content)
    data = make_config(tmp_path, path)
    for _ in range(2):  # what the first attempt left behind does not hide the fault
        with pytest.raises(DataError, match=f"{re.escape(name)} ?{message}") as caught:
            corpus_sources.open_split(data, "train")
        assert "\n" not in str(caught.value)
    [(_, [part])] = resolve(data)
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


def test_cells_that_a_writer_of_csv_put_in_quotes_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["en\tde", '"a", she said\t"b"', '"say ""a"""\tb', 'c\t"sag ""c"""', "d\te"]
    path = write_bytes(tmp_path / "a.tsv", "\n".join(lines).encode())
    assert open_train(tmp_path, path)[1] == ('"say ""a"""', "b")  # as it stands
    assert "in which quotes are doubled: 2, the first begins in line 3; " in caplog.text
    assert "write it as .csv: csv.writer(new)" in caplog.text
