"""t2t.prepare: what it leaves for training."""

import re
from pathlib import Path
from unittest import mock

import pytest

from t2t.api import prepare_run, train_run
from t2t.data.corpus import DataError
from t2t.data.preparation import is_prepared
from t2t.training import loop
from tests.tiny_training import change, make_config


def test_prepared_run_has_vocabulary_and_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(tmp_path)
    assert not is_prepared(config, tmp_path / "run")
    prepare_run.prepare(config, tmp_path / "run", print)
    printed = capsys.readouterr().out
    assert "train: 280 pairs" in printed
    assert re.search(r"step 1 and later:\n  83\.3% of pairs .* each 1 times .*\n  16\.7%", printed)
    assert "vocabulary: 400 sub-words" in printed
    assert (
        f"next: python -m t2t.train with the same --config, flags and --workdir={tmp_path}/run"
        in (printed)
    )
    assert is_prepared(config, tmp_path / "run")
    (tmp_path / "a.de").write_text((tmp_path / "a.de").read_text() * 2)
    assert not is_prepared(config, tmp_path / "run")


@pytest.mark.usefixtures("one_device")
def test_training_uses_what_was_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = change(
        make_config(tmp_path), training={"warmup_steps": 2}, decoding={"max_extra_length": 9}
    )
    prepare_run.prepare(config, tmp_path / "run")
    monkeypatch.setattr("t2t.data.preparation.train_vocabulary", None)
    monkeypatch.setattr("t2t.data.token_cache._write", None)
    monkeypatch.setattr("t2t.data.preparation.LARGE_TEXT", 100)  # bytes: large, but prepared
    monkeypatch.setattr(loop, "train", mock.Mock(side_effect=KeyboardInterrupt))
    with caplog.at_level("WARNING"), pytest.raises(KeyboardInterrupt):
        train_run.train(config, tmp_path / "run")
    assert not caplog.messages


def test_training_refuses_a_large_corpus_that_is_not_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("t2t.data.preparation.LARGE_TEXT", 100)
    monkeypatch.setattr("t2t.data.corpus._map_text", None)  # none of its text is read
    with pytest.raises(DataError, match=r"python -m t2t\.prepare --config=\.\.\. --workdir="):
        train_run.train(make_config(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run").exists()
