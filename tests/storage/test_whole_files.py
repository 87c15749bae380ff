"""Files in a folder and in a bucket: written whole or not at all, growing, copied to this host."""

import errno
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from t2t.config.fields import TokenizerConfig
from t2t.data.corpus import TextFile
from t2t.data.token_cache import tokenize_corpus
from t2t.data.tokenizer import train_vocabulary
from t2t.storage import growing_files, locks
from t2t.storage.atomic_files import (
    atomic_path,
    check_writable,
    draft_folder,
    explain_write_errors,
    list_complete,
    make_folder,
    name_linked,
    remove_folder,
    require_space,
    upload,
    write_file,
    write_link,
)
from t2t.storage.growing_files import GrowingFiles
from t2t.storage.paths import LOCAL_FOLDER, find_client, is_bucket, make_path
from t2t.storage.staging import stage_file
from tests.data.small_corpus import CORPUS, read_pair


@pytest.fixture(params=["tmp_path", "bucket"])
def place(request: pytest.FixtureRequest) -> Path:
    """A local folder, and one in a bucket."""
    folder: Path = request.getfixturevalue(request.param)
    return folder


def list_names(folder: Path) -> list[str]:
    names = find_client().find(str(folder))
    return [name.partition(f"{folder.name}/")[2] for name in names]


def test_file_is_written_whole_and_replaced(place: Path) -> None:
    """A failure leaves the old one and nothing else."""
    path = place / "scores.json"
    write_file(path, "first, and longer")
    write_file(path, "Mädchen\r\n")
    assert path.read_bytes() == "Mädchen\r\n".encode()
    with atomic_path(path) as draft:
        draft.write_text("third")

    def fail() -> None:
        with atomic_path(path) as draft:
            draft.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "third"
    assert [*place.iterdir()] == [path]


def test_folder_appears_when_it_is_whole_and_is_removed(place: Path) -> None:
    path = place / "model"
    with atomic_path(path) as draft:
        (draft / "vocab").mkdir(parents=True)
        (draft / "vocab" / "joint.model").write_bytes(b"model")
        (draft / "model.bin").write_bytes(b"weights")
        assert not path.exists()
    assert (path / "vocab" / "joint.model").read_bytes() == b"model"
    assert {found.name for found in path.iterdir()} == {"model.bin", "vocab"}
    if not is_bucket(place):  # one that is there is not replaced
        with pytest.raises(OSError, match="not empty"), atomic_path(path) as draft:
            draft.mkdir()
    remove_folder(path)
    remove_folder(path)
    assert not path.exists()


def test_links_and_complete_folders_are_read_as_they_are_written(place: Path) -> None:
    assert name_linked(place / "best") == place / "best"
    with draft_folder(place / "first") as draft:
        make_folder(draft)
        assert list_complete(place, last="done") == []
        write_file(draft / "done", "")
    for target in ("none", "first"):
        write_link(place / "best", target)
    assert (name_linked(place / "best") / "done").exists()
    assert "first" in list_complete(place, last="done")


def test_last_file_of_an_upload_is_the_chosen_one(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "index", "z"):
        (tmp_path / name).write_text(name)
    uploaded: list[str] = []
    monkeypatch.setattr(find_client(), "put_file", lambda _, path: uploaded.append(path))
    upload(tmp_path, bucket, last="index")
    assert uploaded == [f"{bucket}/a", f"{bucket}/z", f"{bucket}/index"]


def test_bucket_that_does_not_exist_is_one_line(bucket: Path) -> None:
    check_writable(bucket)
    assert list_names(bucket) == []
    missing = make_path("gs://no-such-bucket/run")
    with (
        pytest.raises(
            ValueError, match=r"^gs://no-such-bucket/run cannot be written: no such buck"
        ),
        explain_write_errors(ValueError, missing),
    ):
        check_writable(missing)


def test_growing_file_is_uploaded_as_a_whole_and_continued(
    bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload that fails at an interval is made up for."""

    def fail(*_: object) -> None:
        raise OSError("no network")

    path = bucket / "metrics.jsonl"
    monkeypatch.setattr(growing_files, "INTERVAL", 0.0)
    for number in range(3):
        files = GrowingFiles(bucket, "metrics.jsonl")
        with (files.local / "metrics.jsonl").open("a") as file:
            file.write(f"{number}\n")
        (files.local / "events").mkdir()
        (files.local / "events" / str(number)).write_text("event")
        with monkeypatch.context() as patch:
            patch.setattr(growing_files, "upload", fail)
            assert not files.upload_when_due()
            with pytest.raises(OSError, match="no network"):
                files.upload()
        if number:
            assert files.upload_when_due()
            assert path.read_text().splitlines() == [str(n) for n in range(number + 1)]
        files.close()
        assert not files.local.exists()
    assert list_names(bucket) == ["events/0", "events/1", "events/2", "metrics.jsonl"]


def test_text_is_read_from_a_copy_that_follows_the_object(bucket: Path) -> None:
    """A damaged copy is fetched again."""
    path = bucket / "train.en"
    write_file(path, "one\ntwo\n")
    copy = stage_file(path)
    assert copy.is_relative_to(LOCAL_FOLDER.expanduser())
    for damage in ("one", "one\n222\n"):  # of another size, of the same size
        copy.write_text(damage)
        assert stage_file(path) == copy
        assert TextFile(path).read(0, 2) == ["one", "two"]
    write_file(path, "three\n")
    assert TextFile(str(path)).read(0, 1) == ["three"]


def test_readers_of_a_host_download_a_file_once(
    bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads stand for processes: each opens the file of the lock for itself."""
    write_file(bucket / "train.en", "one\n")
    client, downloads = find_client(), list[Path]()
    get_file = client.get_file

    def get_slowly(*arguments: str) -> None:
        downloads.append(Path(arguments[0]))
        time.sleep(0.2)
        get_file(*arguments)

    monkeypatch.setattr(client, "get_file", get_slowly)
    monkeypatch.setattr(locks, "_POLL", 0.01)
    with ThreadPoolExecutor(8) as pool:
        copies = [*pool.map(stage_file, [bucket / "train.en"] * 8)]
    assert {copy.read_text() for copy in copies} == {"one\n"}
    assert len(downloads) == 1


def test_token_cache_is_uploaded_once_and_fetched_by_others(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = TokenizerConfig(vocab_size=310)
    vocabulary = train_vocabulary([CORPUS], config, tmp_path / "vocab")
    written = tokenize_corpus(CORPUS, vocabulary, bucket / "cache")
    [name] = [path.name for path in (bucket / "cache").iterdir()]
    monkeypatch.setenv("HOME", str(tmp_path))  # another host
    with monkeypatch.context() as patch:
        patch.setattr("t2t.data.token_cache._write", None)
        fetched = tokenize_corpus(CORPUS, vocabulary, bucket / "cache")
    assert read_pair(fetched, 1) == read_pair(written, 1)

    monkeypatch.setenv("HOME", str(tmp_path / "third"))
    write_file(bucket / "cache" / name / "src.ids", b"damaged")
    again = tokenize_corpus(CORPUS, vocabulary, bucket / "cache")
    assert f"cache {bucket}/cache/{name} is damaged" in caplog.text
    assert read_pair(again, 1) == read_pair(written, 1)
    assert (bucket / "cache" / name / "src.ids").read_bytes() != b"damaged"


def test_writers_of_one_path_do_not_meet(tmp_path: Path) -> None:
    """If all drafts had one name, a partial file could be installed, or a rename could fail."""
    path = tmp_path / "test.src.txt"
    with atomic_path(path) as slow:
        slow.write_text("half")
        write_file(path, "whole")
        assert path.read_text() == "whole"
        slow.write_text("slow and whole")
    assert path.read_text() == "slow and whole"
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        ("run", OSError(errno.ENOSPC, "Full"), "run cannot be written: Full; free some space"),
        ("run", PermissionError(errno.EACCES, "Denied"), "Denied; change the permissions"),
        ("run", NotADirectoryError(errno.ENOTDIR, "Not a dir"), "Not a dir; choose another path"),
        ("run", OSError("Error\n"), "run cannot be written: Error; free some space there"),
        ("run", OSError(errno.EIO, "Broken"), "Broken; check this file system"),
        # The disk is this machine's.
        ("gs://b/run", OSError(errno.ENOSPC, "Full"), "free some space in /.*TMPDIR"),
    ],
)
def test_write_errors_say_why_and_what_to_do(target: str, error: OSError, message: str) -> None:
    """An `OSError` of Orbax has a text, but neither `errno` nor `strerror`."""
    writing = explain_write_errors(RuntimeError, target, "then start again")
    with pytest.raises(RuntimeError, match=f"{message}.*; then start again$"), writing:
        raise error


def test_missing_space_is_an_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both numbers are rounded such that one shows what is missing."""
    require_space(tmp_path, 1)
    usage = shutil.disk_usage(tmp_path)._replace(free=452_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match=r"0\.5 MB are needed, 0\.4 MB are free"):
        require_space(tmp_path, 460_000)


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
