import bz2
import dataclasses
import gzip
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from t2t.config.fields import Config, ConfigError, DataConfig
from t2t.config.rules import validate
from t2t.data import corpus_sources, hugging_face, hugging_face_rows
from t2t.data.corpus import Corpus, DataError
from t2t.data.preparation import check_prepared, is_large

pytest.importorskip("datasets")
PAIRS = [("a dog", "ein Hund"), ('NA "quoted', "null"), ("12", "3.50"), ("ü\u2028x", "€ y")]


def write_bytes(path: Path, content: bytes) -> Path:
    """Writes a file, compressed as its name says."""
    import zstandard

    pack: dict[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".zst": zstandard.ZstdCompressor().compress,
    }
    path.write_bytes(pack.get(path.suffix, bytes)(content))
    return path


def to_tsv(pairs: list[tuple[str, str]], header: str = "en\tde\n") -> bytes:
    return (header + "".join(f"{src}\t{tgt}\n" for src, tgt in pairs)).encode()


def to_json(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def make_config(folder: Path, *files: Path | str, **fields: Any) -> DataConfig:
    names = tuple(file if isinstance(file, str) else f"train={file}" for file in files)
    cache = str(folder / "cache")
    return DataConfig("hf", hf_files=names, cache_directory=cache, **fields)


def open_train(folder: Path, *files: Path | str, **fields: Any) -> Corpus:
    return corpus_sources.open_split(make_config(folder, *files, **fields), "train")


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".bz2"])
def test_tsv_is_read_as_it_stands(tmp_path: Path, suffix: str) -> None:
    path = write_bytes(tmp_path / f"a.tsv{suffix}", to_tsv(PAIRS))
    assert [*open_train(tmp_path, path)] == PAIRS


def test_csv_has_quotes_and_names(tmp_path: Path) -> None:
    text = 'id,target,source\n1,"ein ""Hund"", alt","an old\ndog"\n2,,x\n'
    path = write_bytes(tmp_path / "a.csv", text.encode())
    corpus = open_train(tmp_path, path, src_column="source", tgt_column="target")
    assert [*corpus] == [("an old dog", 'ein "Hund", alt'), ("x", "")]


def test_blank_lines_and_empty_cells_are_empty_sentences(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "a.tsv", b"en\tde\na\tb\n\n\tc\n")
    assert [*open_train(tmp_path, path)] == [("a", "b"), ("", ""), ("", "c")]


def test_file_without_names_has_columns_by_number(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "a.tsv", to_tsv([("x\t7", "y"), ("z\t8", "w")], header=""))
    corpus = open_train(tmp_path, path, src_column="2", tgt_column="0")
    assert [*corpus] == [("y", "x"), ("w", "z")]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".json"])
def test_json_lines_have_keys_within_a_column(tmp_path: Path, suffix: str) -> None:
    rows = [{"id": n, "translation": {"en": e, "de": d}} for n, (e, d) in enumerate(PAIRS)]
    path = write_bytes(tmp_path / f"a{suffix}", to_json(rows))
    assert [*open_train(tmp_path, path)] == PAIRS
    swapped = open_train(tmp_path, path, src_column="translation.de", tgt_column="translation.en")
    assert swapped[0] == PAIRS[0][::-1]


def test_parquet_is_read(tmp_path: Path) -> None:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    sides = dict(zip(("en", "de"), map(list, zip(*PAIRS, strict=True)), strict=True))
    parquet.write_table(arrow.table(sides), tmp_path / "a.parquet")
    assert [*open_train(tmp_path, tmp_path / "a.parquet")] == PAIRS


def test_splits_are_those_of_the_files(tmp_path: Path) -> None:
    paths = [write_bytes(tmp_path / f"{n}.tsv", to_tsv([(f"e{n}", f"d{n}")])) for n in range(3)]
    data = make_config(tmp_path, paths[0], paths[1], f"dev={paths[2]}")
    assert corpus_sources.list_splits(data) == ("train", "dev")
    assert [*corpus_sources.open_split(data, "train")] == [("e0", "d0"), ("e1", "d1")]
    assert [*corpus_sources.open_split(data, "dev")] == [("e2", "d2")]
    with pytest.raises(DataError, match=r"'validation' is unknown; .*'hf' has train, dev here"):
        corpus_sources.open_split(data, "validation")


def test_fingerprint_depends_on_the_text_alone(tmp_path: Path) -> None:
    tsv = open_train(tmp_path, write_bytes(tmp_path / "a.tsv.gz", to_tsv(PAIRS)))
    rows = [{"en": src, "de": tgt} for src, tgt in PAIRS]
    parts = [
        write_bytes(tmp_path / "b.jsonl", to_json(rows[:1])),
        write_bytes(tmp_path / "c.jsonl", to_json(rows[1:])),
    ]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert open_train(elsewhere, *parts).fingerprint() == tsv.fingerprint()
    assert open_train(elsewhere, parts[0]).fingerprint() != tsv.fingerprint()


def test_rows_are_copied_once_and_again_when_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_bytes(tmp_path / "a.tsv", to_tsv([("a", "b")]))
    assert [*open_train(tmp_path, path)] == [("a", "b")]
    with monkeypatch.context() as patch:
        patch.setattr("datasets.load_dataset", None)
        assert [*open_train(tmp_path, path)] == [("a", "b")]
    write_bytes(path, to_tsv([("a", "b"), ("c", "d")]))
    assert [*open_train(tmp_path, path)] == [("a", "b"), ("c", "d")]


def change_row(number: int, line: bytes) -> bytes:
    """A TSV file of 12,000 rows, one of which is replaced."""
    lines = to_tsv([(f"e{n}", f"d{n}") for n in range(1, 12_001)]).splitlines(keepends=True)
    lines[number] = line
    return b"".join(lines)


BAD_FILES = {
    "broken UTF-8": (
        "a.tsv", change_row(10_000, b"caf\xe9\tx\n"),
        r"a\.tsv, line 10001: byte 0xe9 is not UTF-8; convert the file, for example with iconv",
    ),
    "too many fields": (
        "a.tsv", change_row(10_000, b"a\tb\tc\n"),
        r"a\.tsv cannot be read.*: .*Expected 2 fields in line 10001, saw 3",
    ),
    "too few fields": (
        "a.tsv", change_row(10_000, b"a\n"),
        r"a\.tsv, line 10001 has 1 fields instead of 2; correct the line or remove it",
    ),
    "too few fields of CSV": (
        "a.csv", b'id,en,de\n1,"a\nb","c, ""d"""\n2,a\n',
        r"a\.csv, line 4 has 2 fields instead of 3",
    ),
    "missing column": (
        "a.tsv", to_tsv([("a", "b")], "en\tfr\n"),
        r"a\.tsv has no column 'de'; it has en, fr; set data\.tgt_column",
    ),
    "missing key": (
        "a.jsonl", to_json([{"en": "a", "de": "b"}] * 1500 + [{"en": "a"}]),
        r"a\.jsonl, row 1501, column 'de': there is no value; correct the row or remove it",
    ),
    "missing key of a column": (
        "a.jsonl", to_json([{"translation": {"en": "a", "de": "b"}}, {"translation": {"en": "a"}}]),
        r"a\.jsonl, row 2, column 'translation\.de': there is no value",
    ),
    "null": (
        "a.jsonl", to_json([{"en": "a", "de": "b"}, {"en": None, "de": "b"}]),
        r"a\.jsonl, row 2, column 'en': there is no value",
    ),
    "number": (
        "a.jsonl", to_json([{"en": 1, "de": "b"}]),
        r"a\.jsonl, row 1, column 'en': 1 is no text but int; set data\.src_column",
    ),
    "no key": (
        "a.jsonl", to_json([{"translation": "text", "de": "b"}]),
        r"a\.jsonl, row 1, column 'translation\.en': 'text' has no keys",
    ),
    "no JSON": (
        "a.jsonl", to_json([{"en": "a", "de": "b"}] * 3) + b'{"en":\n',
        r"a\.jsonl, line 4 is not JSON: Expecting value",
    ),
    "empty file": ("a.tsv", b"", r"a\.tsv is empty; remove it from data\.hf_files"),
    "names alone": ("a.tsv", b"en\tde\n", r"a\.tsv has no rows; remove it from data\.hf_files"),
    "unknown format": ("a.xml", b"<x/>", r"a\.xml: data\.hf_files takes \.tsv, \.csv, .*rename"),
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
    assert not any(path.exists() for path in hugging_face.find_copy(data, "train"))


def test_files_with_other_columns_are_named(tmp_path: Path) -> None:
    first = write_bytes(tmp_path / "a.tsv", to_tsv(PAIRS))
    second = write_bytes(tmp_path / "b.tsv", to_tsv(PAIRS, "english\tde\n"))
    with pytest.raises(DataError, match=r"b\.tsv has no column 'en'; it has english, de; set"):
        open_train(tmp_path, first, second)


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(os.urandom(99).hex().encode() + to_tsv(PAIRS * 999))[:-20])
    with pytest.raises(DataError, match=r"a\.tsv\.gz cannot be read.*: "):
        open_train(tmp_path, path)
    with pytest.raises(DataError, match=r"none\.tsv does not exist; data\.hf_files names it"):
        open_train(tmp_path, tmp_path / "none.tsv")


def test_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_bytes(tmp_path / "a.tsv", to_tsv(PAIRS))
    second = write_bytes(tmp_path / "b.tsv", to_tsv(PAIRS))
    read = hugging_face_rows.read_sides

    def read_and_change(rows: Any, data: DataConfig) -> Any:
        yield from read(rows, data)
        write_bytes(first, to_tsv([*PAIRS, ("more", "mehr")]))

    monkeypatch.setattr("t2t.data.hugging_face.read_sides", read_and_change)
    with pytest.raises(DataError, match=r"a\.tsv, .*b\.tsv changed while .* read; start again"):
        open_train(tmp_path, first, second)
    assert not [*(tmp_path / "cache").rglob("*.txt")]


def test_of_two_processes_that_copy_a_split_the_first_to_finish_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_config(tmp_path, write_bytes(tmp_path / "a.tsv", to_tsv(PAIRS)))
    read, first = hugging_face_rows.read_sides, list[Corpus]()

    def read_beside_another(rows: Any, data: DataConfig) -> Any:
        monkeypatch.undo()
        first.append(corpus_sources.open_split(data, "train"))
        yield from read(rows, data)

    monkeypatch.setattr("t2t.data.hugging_face.read_sides", read_beside_another)
    second = corpus_sources.open_split(data, "train")
    assert [*first[0]] == [*second] == PAIRS
    assert not [*(tmp_path / "cache").rglob(".*")]


def test_copy_of_which_a_part_was_deleted_is_made_again(tmp_path: Path) -> None:
    data = make_config(tmp_path, write_bytes(tmp_path / "a.tsv", to_tsv(PAIRS)))
    corpus_sources.open_split(data, "train")
    hugging_face.find_copy(data, "train")[1].unlink()
    assert [*corpus_sources.open_split(data, "train")] == PAIRS


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2", ".xz"])
def test_line_that_is_not_utf8_is_found_in_compressed_files(tmp_path: Path, suffix: str) -> None:
    path = write_bytes(tmp_path / f"a.TSV{suffix}", to_tsv(PAIRS) + b"caf\xe9\tx\n")
    with pytest.raises(DataError, match=rf"line {len(PAIRS) + 2}: byte 0xe9 is not UTF-8"):
        open_train(tmp_path, path)


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2", ".xz"])
def test_file_of_another_compression_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.tsv{suffix}"
    path.write_bytes(to_tsv(PAIRS))
    with pytest.raises(DataError, match=rf"a\.tsv{suffix} cannot be read: "):
        open_train(tmp_path, path)


@pytest.fixture
def hub(tmp_path: Path) -> DataConfig:
    """A data set in a folder, which `datasets` treats like a repository of the Hub."""
    folder = tmp_path / "owner" / "corpus"
    folder.mkdir(parents=True)
    for split, count in (("train", 3), ("test", 2)):
        rows = [{"translation": {"en": f"{split} {n}", "de": f"d {n}"}} for n in range(count)]
        write_bytes(folder / f"{split}.jsonl", to_json(rows))
    return DataConfig("hf", hf_name=str(folder), cache_directory=str(tmp_path / "cache"))


@pytest.mark.parametrize("streaming", [True, False])
def test_data_set_of_the_hub_is_prepared_once(
    hub: DataConfig, streaming: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    hub.hf_streaming = streaming
    for use in (corpus_sources.list_splits, corpus_sources.open_training):
        with pytest.raises(DataError, match=r"was not copied to .*; run `python -m t2t\.prepare"):
            use(hub)
    corpus_sources.prepare(hub)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # as on another machine
    corpus_sources.prepare(hub)
    assert set(corpus_sources.list_splits(hub)) == {"train", "test"}
    assert [*corpus_sources.open_split(hub, "test")] == [("test 0", "d 0"), ("test 1", "d 1")]
    assert not is_large(hub)


def test_hub_out_of_reach_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    data = DataConfig(
        "hf", hf_name="owner/no-such-corpus:de-en@main", cache_directory=str(tmp_path)
    )
    with pytest.raises(DataError, match=r"owner/no-such-corpus.* cannot be read: .*network") as e:
        corpus_sources.prepare(data)
    assert "\n" not in str(e.value)


def test_missing_package_names_its_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_bytes(tmp_path / "a.tsv", to_tsv(PAIRS))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"needs the package datasets; .*requirements-hf\.txt"):
        open_train(tmp_path, path)


def test_large_files_are_prepared_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_bytes(tmp_path / "a.tsv", to_tsv(PAIRS))
    monkeypatch.setattr("t2t.data.preparation.LARGE_TEXT", path.stat().st_size - 1)
    config = Config(data=make_config(tmp_path, path))
    with pytest.raises(DataError, match="is large and not prepared for"):
        check_prepared(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, r"data\.hf_name='' and data\.hf_files=\(\): data\.source='hf' needs one of them"),
        ({"hf_name": "a/b", "hf_files": ("train=a.tsv",)}, "needs one of them"),
        ({"hf_files": ("a.tsv",)}, r"data\.hf_files has 'a\.tsv'; write SPLIT=FILE, such as"),
    ],
)
def test_config_names_a_data_set_or_files(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(Config(data=dataclasses.replace(DataConfig("hf"), **fields)))


def test_killed_copy_leaves_nothing_that_is_taken_for_whole(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "a.tsv", to_tsv(PAIRS))
    data = make_config(tmp_path, path)
    program = (
        "import os; from t2t.config import DataConfig; from t2t.data import hugging_face as hf\n"
        "read = hf.read_sides\n"
        "def read_and_die(rows, data):\n"
        "    yield from read(rows, data)\n"
        "    os.kill(os.getpid(), 9)\n"
        "hf.read_sides = read_and_die\n"
        f"hf.open_hf(DataConfig(**{dataclasses.asdict(data)!r}), 'train')"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True)
    assert done.returncode == -9
    assert [*corpus_sources.open_split(data, "train")] == PAIRS
