"""Runs in a bucket whose server fails now and then, is slow, or stops answering."""

import os
import signal
from pathlib import Path

import pytest

from t2t.runtime import command_line
from t2t.storage.paths import make_path
from tests import programs
from tests.bucket_runs import assert_same_run, move_data, train_on_one_device
from tests.bucket_server import BUCKET, serve_bucket
from tests.tiny_training import change, make_config


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["--fail_every=10", "--latency=0.2"])
def test_server_that_fails_or_is_slow_loses_nothing(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In processes of their own, since TensorStore reads the address of the server once."""
    pytest.importorskip("gcp_storage_emulator")
    config = change(make_config(tmp_path), training={"steps": 15})
    train_on_one_device(config, str(tmp_path / "run"))
    with serve_bucket(fault) as environment:
        for name, value in (environment | {"HOME": str(tmp_path)}).items():
            monkeypatch.setenv(name, value)
        bucket = make_path(f"gs://{BUCKET}")
        moved = move_data(config, tmp_path, bucket)
        workdir = str(bucket / "run")
        for target, arguments in (
            (train_on_one_device, (change(moved, training={"steps": 5}), workdir)),
            (train_on_one_device, (moved, workdir)),
            (assert_same_run, (workdir, tmp_path / "run", 15)),
        ):
            process = programs.call(target, *arguments)
            process.join()
            assert process.exitcode == 0


@pytest.mark.slow
def test_bucket_that_stops_answering_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("gcp_storage_emulator")
    with serve_bucket() as environment:
        os.kill(int(environment["SERVER_PID"]), signal.SIGSTOP)
        # fsspec reads its variable when it is imported, so this is a Python of its own.
        impatient = {"HOME": str(tmp_path), "FSSPEC_GCS": '{"requests_timeout": 1}'}
        done = programs.run_python(
            "-m", "t2t.show", f"gs://{BUCKET}/run",
            environment=os.environ | environment | impatient,
        )  # fmt: skip
    assert done.returncode == command_line.LOST
    [line] = done.stderr.splitlines()
    assert "no answer within" in line
