"""Files in an S3 bucket: s3fs talks to moto's server on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from t2t.config.fields import TokenizerConfig
from t2t.data.corpus import ListCorpus, TextFile
from t2t.data.token_cache import tokenize_corpus
from t2t.data.tokenizer import Vocabulary, train_vocabulary
from t2t.storage.atomic_files import check_writable, make_folder, remove_folder, write_file
from t2t.storage.bucket_lock import lock_in_bucket
from t2t.storage.paths import PathError, find_client, make_path, make_run_path
from tests.tiny_run import PAIRS

BUCKET = "corpora-of-tests"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    for package in ("s3fs", "moto", "flask", "flask_cors"):
        pytest.importorskip(package)
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("localhost", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def folder(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in a new bucket, and a home of its own for local copies."""
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    path = make_path(f"s3://{BUCKET}/{tmp_path.name}")
    if not path.parent.exists():
        find_client(path).mkdir(f"s3://{BUCKET}")
    return path


def test_text_and_outputs_are_read_and_written(folder: Path) -> None:
    write_file(folder / "train.en", "one\ntwo\n")
    assert TextFile(folder / "train.en").read(0, 2) == ["one", "two"]
    assert (folder / "train.en").read_text() == "one\ntwo\n"
    remove_folder(folder)
    assert not (folder / "train.en").exists()


def test_token_cache_and_vocabulary_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = ListCorpus("toy", PAIRS)
    vocabulary = train_vocabulary([corpus], TokenizerConfig(vocab_size=400), folder / "vocab")
    written = tokenize_corpus(corpus, vocabulary, folder / "cache")
    monkeypatch.setenv("HOME", f"{Path.home()}/other")
    monkeypatch.setattr("t2t.data.token_shards._write", None)
    fetched = tokenize_corpus(corpus, Vocabulary.load(folder / "vocab"), folder / "cache")
    assert [*map(list, fetched.pair(1))] == [*map(list, written.pair(1))]


def test_lock_is_an_object_that_is_created_once(folder: Path) -> None:
    with lock_in_bucket(folder), pytest.raises(FileExistsError):
        find_client(folder).pipe_file(f"{folder}/lock/00000001", b"", mode="create")


@pytest.mark.usefixtures("folder")
def test_misspelt_bucket_is_not_created() -> None:
    missing = make_path(f"s3://{BUCKET}-misspelt/out")
    make_folder(missing)
    with pytest.raises(FileNotFoundError):
        check_writable(missing)
    assert not make_path(f"s3://{BUCKET}-misspelt").exists()


def test_run_directory_in_s3_is_refused() -> None:
    pytest.importorskip("s3fs")
    with pytest.raises(PathError, match=r"--workdir=s3://bucket/run: Orbax, .* knows gs://"):
        make_run_path("s3://bucket/run")
