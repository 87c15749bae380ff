"""Facts about files are kept until the file changes, and never stand in the way."""

import gzip
import os
from pathlib import Path

import pytest

from t2t.data import corpus
from t2t.data.corpus import TextFile


def test_text_is_read_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text.en"
    path.write_text("a\nb\n")
    first = TextFile(path, tmp_path / "folder")
    with monkeypatch.context() as patch:
        patch.setattr(corpus, "_map_text", None)
        second = TextFile(path, tmp_path / "folder")
        assert len(second) == len(first) == 2
        assert second.sha256 == first.sha256
    assert second.read(1, 2) == ["b"]  # only now
    (entry,) = (tmp_path / "folder").glob("*.json")
    for content in ("", "[]", '{"version": 1}'):  # damaged
        entry.write_text(content)
        assert len(TextFile(path, tmp_path / "folder")) == 2
    path.write_text("a\nc\n")  # of the same size
    os.utime(path, ns=(1, 1))
    assert TextFile(path, tmp_path / "folder").sha256 != first.sha256


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
