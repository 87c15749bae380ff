"""t2t.prepare: datasets of TFDS, and checks of text files."""

from pathlib import Path

import pytest

from t2t import prepare
from t2t.config.fields import DataConfig
from t2t.data import corpus_sources
from t2t.data.corpus import DataError
from tests.data import tiny_tfds


def test_tfds_dataset_is_prepared_and_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = DataConfig("tfds", directory=str(tmp_path), tfds_name="tiny_translation")
    with pytest.raises(DataError, match=r"python -m t2t\.prepare"):
        corpus_sources.open_split(data, "test")
    for _ in range(2):  # the second call does nothing
        prepare.main(data)
        assert (
            "test: 4 pairs (tiny_translation/1.0.0, test)" in capsys.readouterr().out.splitlines()
        )
    assert sorted(corpus_sources.open_split(data, "test"))[0] == tiny_tfds.pair("test", 0)[::-1]
    names = [path.name for path in tmp_path.rglob("*.array_record*")]
    assert len(names) == len(tiny_tfds.SIZES)


def test_tfds_dataset_out_of_reach_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(tiny_tfds.TinyTranslation, "_split_generators", fail)
    data = DataConfig("tfds", directory=str(tmp_path), tfds_name="tiny_translation")
    with pytest.raises(DataError, match=r"'tiny_translation' cannot be prepared in .*no route"):
        prepare.main(data)


def test_text_files_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for language in ("en", "de"):
        (tmp_path / f"a.{language}").write_text("1\n2\n3\n")
    files = str(tmp_path / "a.en"), str(tmp_path / "a.de")
    data = DataConfig("text", train_src=files[:1], train_tgt=files[1:])
    prepare.main(data)
    assert capsys.readouterr().out == f"train: 3 pairs ({files[0]} | {files[1]})\n"
    (tmp_path / "a.de").write_text("1\n2\n")
    with pytest.raises(DataError, match="has 3 lines"):
        prepare.main(data)
