"""Atomic writes: no partial files, nothing left behind, concurrent writers do not interfere."""

import errno
import os
import threading
from pathlib import Path

import pytest

from t2t.storage.atomic_files import atomic_path, explain_write_errors, require_space, write_file


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


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left"), "run cannot be written: No space left; free some"),
        (PermissionError(errno.EACCES, "Permission denied"), "denied; change the permissions"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), "Not a directory; choose another"),
        (OSError("Error writing\n"), "run cannot be written: Error writing; free some space"),
        (OSError(errno.EIO, "Input/output error"), "output error; check this file system"),
    ],
)
def test_write_errors_say_why_and_what_to_do(error: OSError, message: str) -> None:
    """An `OSError` of Orbax has a text, but neither `errno` nor `strerror`."""
    with pytest.raises(RuntimeError, match=message), explain_write_errors(RuntimeError, "run"):
        raise error
    writing = explain_write_errors(RuntimeError, "run", "then start again")
    with pytest.raises(RuntimeError, match=r"; then start again$"), writing:
        raise error


def test_full_disk_of_this_machine_is_not_the_bucket_s_fault() -> None:
    with (
        pytest.raises(RuntimeError, match=r"^gs://b/run cannot .*; free some space in /.*TMPDIR"),
        explain_write_errors(RuntimeError, "gs://b/run"),
    ):
        raise OSError(errno.ENOSPC, "No space left")


def test_missing_space_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    require_space(tmp_path, 1)
    with (
        pytest.raises(RuntimeError, match=r"MB are needed, .* MB are free; free some space"),
        explain_write_errors(RuntimeError, tmp_path),
    ):
        require_space(tmp_path, 2**70)


def test_what_a_link_names_is_replaced_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_file(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_file(tmp_path / "pipe", "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
