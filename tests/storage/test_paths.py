"""Paths as users write them: what is local, what is in a bucket, and what is refused."""

import importlib.util
from pathlib import Path

import pytest

from t2t.storage.paths import (
    PathError,
    check_new_run_path,
    is_bucket,
    make_local_path,
    make_path,
    make_run_path,
    split_run_paths,
    storage_errors,
)
from tests.programs import run_python


def test_local_path_stays_a_local_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert make_path("~/runs/a") == Path("/home/me/runs/a")
    assert make_path("runs/a:b") == Path("runs/a:b")
    assert not is_bucket(make_path("runs"))


def test_path_in_a_bucket_is_joined_and_named_like_a_local_one() -> None:
    pytest.importorskip("gcsfs")
    path = make_path("gs://bucket/runs") / "a" / "scores.json"
    assert str(path) == "gs://bucket/runs/a/scores.json"
    assert str(path.with_suffix(".txt").parent) == "gs://bucket/runs/a"
    assert is_bucket(path)
    assert path.absolute() == path.resolve() == path
    assert make_path(path) == path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hdfs://node/run", "hdfs:// is not supported; use a local path or gs://"),
        ("s3://bucket/run", r"s3:// is not supported; mount it, .* \(docs/buckets.md says how"),
        ("gs://", "gs:// names no bucket; write gs://BUCKET/"),
        ("gs:///run", "names no bucket"),
        ("~nobody-of-this-name/run", "there is no such user; write the folder in full"),
    ],
)
def test_path_that_cannot_work_is_refused(text: str, message: str) -> None:
    """Without this, `gs:` would be a new folder in the current one."""
    with pytest.raises(PathError, match=message):
        make_path(text)


@pytest.mark.parametrize("name", ["a,b", '"a"', " a", "a\nb"])
def test_new_run_has_a_name_that_lists_of_runs_can_hold(name: str) -> None:
    with pytest.raises(PathError, match="take several runs separate them by commas; choose a name"):
        check_new_run_path(Path(name))
    check_new_run_path(Path("runs/22:36:05 a=b.json"))


def test_path_with_a_comma_that_exists_is_one(tmp_path: Path) -> None:
    (tmp_path / "a,b").mkdir()
    assert split_run_paths(f"{tmp_path}/a,b") == [tmp_path / "a,b"]
    assert split_run_paths(f"{tmp_path}/a,{tmp_path}/b") == [tmp_path / "a", tmp_path / "b"]


@pytest.mark.parametrize("name", ["run [1]", "run\\"])
def test_run_directory_is_neither_a_pattern_nor_empty(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Orbax writes checkpoints into "run [1]" and does not find them again."""
    with pytest.raises(PathError, match="--workdir is empty; name a folder"):
        make_run_path("")
    with pytest.raises(PathError, match=r"--workdir=/.*; choose a path without them"):
        make_run_path(name)
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    with pytest.raises(PathError, match="choose a path without them"):
        make_run_path("run")


def test_missing_client_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PathError, match=r"gcsfs is not installed.*'\.\[gcs\]'"):
        make_path("gs://bucket/run")


def test_local_paths_import_no_client() -> None:
    """Programs that use local paths start as fast as without buckets."""
    code = (
        "import sys; from t2t.storage.paths import make_path; make_path('runs');"
        "print({'etils', 'fsspec', 'gcsfs', 'aiohttp'} & sys.modules.keys())"
    )
    done = run_python("-c", code)
    assert done.stdout.strip() == "set()"


def test_path_that_has_to_be_local_is_refused_in_a_bucket() -> None:
    pytest.importorskip("gcsfs")
    assert make_local_path("out", "copy it") == Path("out")
    with pytest.raises(PathError, match="gs://bucket/out: copy it"):
        make_local_path("gs://bucket/out", "copy it")


def test_errors_of_the_client_are_caught_with_those_of_file_systems() -> None:
    retry, aiohttp = pytest.importorskip("gcsfs.retry"), pytest.importorskip("aiohttp")
    exceptions = pytest.importorskip("google.api_core.exceptions")  # which gcsfs requires
    for error in (
        retry.HttpError({"code": 503}),
        retry.NonRetryableError(),
        exceptions.RetryError("deadline exceeded", None),
        aiohttp.ServerDisconnectedError(),
        OSError(28),
    ):
        assert isinstance(error, storage_errors())
    assert not isinstance(ValueError(), storage_errors())
