import gzip
import hashlib
from pathlib import Path

import pytest

from t2t.api import prepare_run
from t2t.config.fields import Config, DataConfig
from t2t.data import corpus_sources, multi30k
from t2t.data.corpus import DataError


def write_multi30k(folder: Path) -> dict[str, str]:
    """Files of the real names; returns the checksums of their texts."""
    folder.mkdir()
    checksums = {}
    for name in multi30k.CHECKSUMS:
        text = f"{name} 1\n{name} 2\n".encode()
        (folder / f"{name}.gz").write_bytes(gzip.compress(text))
        checksums[name] = hashlib.sha256(text).hexdigest()
    return checksums


def test_multi30k_is_read_from_a_folder_packed_or_not(tmp_path: Path) -> None:
    write_multi30k(tmp_path / "data")
    data = DataConfig("multi30k", "fr", "en", directory=str(tmp_path / "data"))
    for split, stem in ("train", "train"), ("validation", "val"), ("test", "test_2016_flickr"):
        assert corpus_sources.open_split(data, split)[1] == (f"{stem}.fr 2", f"{stem}.en 2")
    (tmp_path / "data" / "val.en.gz").unlink()
    (tmp_path / "data" / "val.en").write_text("1\n2\n")
    data = DataConfig("multi30k", directory=str(tmp_path / "data"))
    assert corpus_sources.open_split(data, "validation")[0] == ("1", "val.de 1")
    (tmp_path / "data" / "val.en").unlink()
    with pytest.raises(DataError, match=r"holds neither val\.en nor val\.en\.gz"):
        corpus_sources.open_split(data, "validation")
    data = DataConfig("multi30k", "en", "cs", directory=str(tmp_path))
    with pytest.raises(DataError, match=r"data\.tgt_language='cs'.* two of en, de, fr"):
        corpus_sources.open_split(data, "train")


@pytest.fixture
def download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataConfig:
    """A config that downloads from a folder of this machine, with that folder's checksums."""
    monkeypatch.setattr(multi30k, "CHECKSUMS", write_multi30k(tmp_path / "server"))
    monkeypatch.setattr(multi30k, "URL", (tmp_path / "server").as_uri())
    return DataConfig("multi30k", cache_directory=str(tmp_path / "cache"))


def test_multi30k_is_downloaded_once(
    tmp_path: Path, download: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_run.prepare(Config(data=download), None)
    monkeypatch.setattr(multi30k, "URL", "file:///nowhere")
    corpus = corpus_sources.open_split(download, "test")
    assert corpus[0] == ("test_2016_flickr.en 1", "test_2016_flickr.de 1")
    names = {path.name for path in (tmp_path / "cache" / "multi30k").iterdir()}
    assert names == {f"{name}.gz" for name in multi30k.CHECKSUMS if not name.endswith(".fr")}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"tampered"), "is not the expected file: SHA-256 of the text is"),
        (b"<html>", "unknown, because it is not a complete gzip file"),
        (None, r"cannot be downloaded: .*; put val\.en\.gz into .*cache/multi30k by hand"),
    ],
    ids=["other text", "no gzip", "offline"],
)
def test_bad_download_leaves_nothing_behind(
    tmp_path: Path, download: DataConfig, content: bytes | None, message: str
) -> None:
    served = tmp_path / "server" / "val.en.gz"
    served.unlink()
    if content is not None:
        served.write_bytes(content)
    with pytest.raises(DataError, match=message):
        corpus_sources.open_split(download, "validation")
    assert not (tmp_path / "cache").exists()


def test_download_without_space_names_the_field(tmp_path: Path, download: DataConfig) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"cannot be written: .*data\.cache_directory"):
        corpus_sources.open_split(download, "validation")
