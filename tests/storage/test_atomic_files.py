"""Atomic writes: no partial files, nothing left behind, concurrent writers do not interfere."""

import threading
from pathlib import Path

import pytest

from t2t.storage.atomic_files import atomic_path, write_file


def test_file_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    write_file(path, "first")
    write_file(path, "Mädchen\r\n")
    assert path.read_bytes() == "Mädchen\r\n".encode()
    assert [*tmp_path.iterdir()] == [path]


def test_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    write_file(path, "old")

    def fail() -> None:
        with atomic_path(path) as draft:
            draft.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


def test_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with atomic_path(path) as draft:
        (draft / "vocab").mkdir(parents=True)
        (draft / "vocab" / "joint.model").write_bytes(b"model")
        assert not path.exists()
    assert (path / "vocab" / "joint.model").read_bytes() == b"model"
    with pytest.raises(OSError, match="not empty"), atomic_path(path) as draft:
        (draft / "vocab").mkdir(parents=True)
    assert [*tmp_path.iterdir()] == [path]


def test_writers_of_one_path_do_not_meet(tmp_path: Path) -> None:
    """If all drafts had one name, a partial file could be installed, or a rename could fail."""
    path = tmp_path / "test.src.txt"
    with atomic_path(path) as slow:
        slow.write_text("half")
        write_file(path, "whole")
        assert path.read_text() == "whole"
        slow.write_text("slow and whole")
    assert path.read_text() == "slow and whole"

    texts = [str(number) * 10_000 for number in range(8)]
    threads = [threading.Thread(target=write_file, args=(path, text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() in texts
    assert [*tmp_path.iterdir()] == [path]
