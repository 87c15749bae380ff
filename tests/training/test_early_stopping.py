"""Requests to stop; that training obeys them is tested with `t2t.train`."""

from pathlib import Path

import pytest

from t2t.training.early_stopping import StopRequest, read_stop_request, record_stop, request_stop
from t2t.training.run_directory import RunError


def test_empty_file_is_a_request(tmp_path: Path) -> None:
    (tmp_path / "stop.json").touch()
    request_stop(tmp_path, "later")  # the first one counts
    record_stop(tmp_path, 30)
    assert read_stop_request(tmp_path) == StopRequest("no reason given", obeyed_at=30)


def test_file_that_is_no_request_is_named(tmp_path: Path) -> None:
    (tmp_path / "stop.json").write_text("now")
    with pytest.raises(RunError, match=r"stop\.json cannot be read .*; remove it to continue"):
        read_stop_request(tmp_path)
