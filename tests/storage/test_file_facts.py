"""Facts about files are kept until the file changes, and never stand in the way."""

import gzip
import os
from pathlib import Path

import pytest

from t2t.data import corpus
from t2t.data.corpus import TextFile
from t2t.storage.file_facts import recall, remember
from t2t.storage.paths import find_version


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.en"
    path.write_text("a\nb\n")
    return path


def test_facts_of_a_changed_file_are_forgotten(file: Path, tmp_path: Path) -> None:
    remember(tmp_path / "folder", file, {"lines": 2}, find_version(file))
    file.write_text("a\nc\n")
    os.utime(file, ns=(1, 1))
    assert recall(tmp_path / "folder", file) is None
    file.unlink()
    assert recall(tmp_path / "folder", file) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1}'])
def test_damaged_facts_are_none(file: Path, tmp_path: Path, content: str) -> None:
    remember(tmp_path, file, {"lines": 2}, find_version(file))
    (entry,) = tmp_path.glob("*.json")
    entry.write_text(content)
    assert recall(tmp_path, file) is None


def test_text_is_read_once(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = TextFile(file, tmp_path / "folder")
    with monkeypatch.context() as patch:
        patch.setattr(corpus, "_map_text", None)
        second = TextFile(file, tmp_path / "folder")
        assert len(second) == len(first) == 2
        assert second.fingerprint() == first.fingerprint()
    assert second.read(1, 2) == ["b"]  # only now


@pytest.mark.parametrize("name", ["text.en", "text.en.gz"])
def test_facts_of_a_file_that_grew_while_it_was_read_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / name
    write = gzip.compress if name.endswith(".gz") else bytes
    path.write_bytes(write(b"a\nb\n"))
    check = TextFile._check_encoding

    def grow(file: TextFile) -> None:
        check(file)
        path.write_bytes(write(b"a\nb\nc\nd\n"))

    monkeypatch.setattr(TextFile, "_check_encoding", grow)
    assert len(TextFile(path, tmp_path / "folder")) == 2
    monkeypatch.undo()
    assert len(TextFile(path, tmp_path / "folder")) == 4
