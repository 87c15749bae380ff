import dataclasses
import gzip
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from t2t.config.fields import ConfigError, DataConfig
from t2t.data import corpus_sources
from t2t.data.corpus import DataError
from tests.data import tiny_tfds


def write_pair(folder: Path, stem: str, count: int) -> tuple[str, str]:
    paths = folder / f"{stem}.en", folder / f"{stem}.de"
    for path in paths:
        path.write_text("".join(f"{path.name} {i}\n" for i in range(count)))
    return str(paths[0]), str(paths[1])


def test_text_corpora_come_with_their_weights(tmp_path: Path) -> None:
    (src1, tgt1), (src2, tgt2) = write_pair(tmp_path, "a", 3), write_pair(tmp_path, "b", 2)
    data = DataConfig(source="text", train_src=(src1, src2), train_tgt=(tgt1, tgt2))
    assert [(len(c), w) for c, w in corpus_sources.open_training(data)] == [(3, 1.0), (2, 1.0)]
    data.train_weights = (2.0, 0.5)
    assert [(len(c), w) for c, w in corpus_sources.open_training(data)] == [(3, 2.0), (2, 0.5)]
    assert [src for src, _ in corpus_sources.open_split(data, "train")] == [
        *(f"a.en {i}" for i in range(3)),
        *(f"b.en {i}" for i in range(2)),
    ]


def test_text_has_the_splits_that_have_files(tmp_path: Path) -> None:
    src, tgt = write_pair(tmp_path, "a", 3)
    data = DataConfig(source="text", train_src=(src,), train_tgt=(tgt,), test_src=src, test_tgt=tgt)
    assert corpus_sources.list_splits(data) == ("train", "test")
    assert corpus_sources.open_split(data, "test")[2] == ("a.en 2", "a.de 2")
    with pytest.raises(DataError, match=r"'validation' is unknown; .*'text' has train, test here"):
        corpus_sources.open_split(data, "validation")


def test_unknown_source_is_refused() -> None:
    for use in (corpus_sources.list_splits, corpus_sources.open_training):
        with pytest.raises(ConfigError, match=r"data\.source='wmt' is unknown; use one of phra"):
            use(DataConfig(source="wmt"))


def test_phrasebook_goes_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t2t.phrasebook.generate", lambda split: [(split, "deutsch")])
    english = DataConfig(source="phrasebook", src_language="en", tgt_language="de")
    german = DataConfig(source="phrasebook", src_language="de", tgt_language="en")
    assert list(corpus_sources.open_split(english, "long")) == [("long", "deutsch")]
    assert list(corpus_sources.open_split(german, "test")) == [("deutsch", "test")]
    with pytest.raises(DataError, match="has train, validation, test, long here"):
        corpus_sources.open_split(english, "dev")


@pytest.mark.parametrize(("src", "tgt"), [("en", "fr"), ("de", "de")])
def test_phrasebook_refuses_other_languages(src: str, tgt: str) -> None:
    data = DataConfig(source="phrasebook", src_language=src, tgt_language=tgt)
    with pytest.raises(DataError, match="'phrasebook' translates between two of en, de"):
        corpus_sources.open_split(data, "test")


def write_multi30k(folder: Path) -> dict[str, str]:
    """Files of the real names; returns the checksums of their texts."""
    folder.mkdir()
    checksums = {}
    for name in corpus_sources.MULTI30K_CHECKSUMS:
        text = f"{name} 1\n{name} 2\n".encode()
        (folder / f"{name}.gz").write_bytes(gzip.compress(text))
        checksums[name] = hashlib.sha256(text).hexdigest()
    return checksums


@pytest.mark.parametrize(
    ("split", "stem"),
    [
        ("train", "train"),
        ("validation", "val"),
        ("val", "val"),
        ("test", "test_2016_flickr"),
        ("test_2016_flickr", "test_2016_flickr"),
    ],
)
@pytest.mark.parametrize(("src", "tgt"), [("en", "de"), ("fr", "en")])
def test_multi30k_is_read_from_a_folder(
    tmp_path: Path, split: str, stem: str, src: str, tgt: str
) -> None:
    write_multi30k(tmp_path / "data")
    data = DataConfig("multi30k", src, tgt, directory=str(tmp_path / "data"))
    assert corpus_sources.open_split(data, split)[1] == (f"{stem}.{src} 2", f"{stem}.{tgt} 2")


def test_multi30k_is_read_unzipped_too(tmp_path: Path) -> None:
    write_multi30k(tmp_path / "data")
    (tmp_path / "data" / "val.en.gz").unlink()
    (tmp_path / "data" / "val.en").write_text("1\n2\n")
    data = DataConfig("multi30k", directory=str(tmp_path / "data"))
    assert corpus_sources.open_split(data, "val")[0] == ("1", "val.de 1")
    (tmp_path / "data" / "val.en").unlink()
    with pytest.raises(DataError, match=r"holds neither val\.en nor val\.en\.gz"):
        corpus_sources.open_split(data, "val")


def test_multi30k_refuses_other_languages_and_splits(tmp_path: Path) -> None:
    data = DataConfig("multi30k", "en", "cs", directory=str(tmp_path))
    with pytest.raises(DataError, match=r"data\.tgt_language='cs'.* two of en, de, fr"):
        corpus_sources.open_split(data, "train")
    with pytest.raises(DataError, match=r"'dev' is unknown; .* has train, validation, test here"):
        corpus_sources.open_split(DataConfig("multi30k"), "dev")


@pytest.fixture
def download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataConfig:
    """A config that downloads from a folder of this machine, with that folder's checksums."""
    monkeypatch.setattr(corpus_sources, "MULTI30K_CHECKSUMS", write_multi30k(tmp_path / "server"))
    monkeypatch.setattr(corpus_sources, "MULTI30K_URL", (tmp_path / "server").as_uri())
    return DataConfig("multi30k", cache_directory=str(tmp_path / "cache"))


def test_multi30k_is_downloaded_once(
    tmp_path: Path, download: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus_sources.prepare(download)
    monkeypatch.setattr(corpus_sources, "MULTI30K_URL", "file:///nowhere")
    assert corpus_sources.open_split(download, "test")[0] == (
        "test_2016_flickr.en 1",
        "test_2016_flickr.de 1",
    )
    names = sorted(path.name for path in (tmp_path / "cache" / "multi30k").iterdir())
    assert names == sorted(
        f"{stem}.{language}.gz"
        for stem in ("train", "val", "test_2016_flickr")
        for language in ("en", "de")
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            gzip.compress(b"tampered"),
            r"val\.en\.gz is not the expected file: SHA-256 of the text is",
        ),
        (b"<html>", "unknown, because it is not a complete gzip file"),
        (
            None,
            r"val\.en\.gz cannot be downloaded: .*; put val\.en\.gz into .*cache/multi30k by hand",
        ),
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


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    directory = str(tmp_path_factory.mktemp("tfds"))
    data = DataConfig(
        "tfds",
        "de",
        "en",
        directory=directory,
        tfds_name="tiny_translation",
        cache_directory=f"{directory}/cache",
    )
    corpus_sources.prepare(data)
    return data


def test_tfds_on_another_host_is_known_but_has_no_text(
    prepared: DataConfig, tmp_path: Path
) -> None:
    here = corpus_sources.open_split(prepared, "train")
    elsewhere = dataclasses.replace(prepared, directory=str(tmp_path))
    assert corpus_sources.list_splits(elsewhere) == corpus_sources.list_splits(prepared)
    there = corpus_sources.open_split(elsewhere, "train")
    assert (len(there), there.name) == (len(here), here.name)
    assert there.fingerprint() == here.fingerprint()
    with pytest.raises(DataError, match=rf"the text of .* is not in {tmp_path}.*t2t\.prepare"):
        there.read(0, 1)
    with pytest.raises(DataError, match=r"not prepared in .*, nor in data\.cache_directory="):
        corpus_sources.open_split(dataclasses.replace(elsewhere, src_language="en"), "train")


def test_tfds_splits_are_read(prepared: DataConfig) -> None:
    assert set(corpus_sources.list_splits(prepared)) == set(tiny_tfds.SIZES)
    for split, size in tiny_tfds.SIZES.items():
        corpus = corpus_sources.open_split(prepared, split)
        expected = sorted(tiny_tfds.pair(split, number) for number in range(size))
        assert sorted(corpus) == expected
        assert corpus.read(1, 3) == [corpus[1], corpus[2]]
    with pytest.raises(DataError, match="split 'dev' is unknown"):
        corpus_sources.open_split(prepared, "dev")


def test_tfds_is_read_elsewhere_without_tensorflow(prepared: DataConfig) -> None:
    program = (
        "import sys; from t2t.config import DataConfig;"
        "from t2t.data.corpus_sources import open_split;"
        f"corpus = open_split(DataConfig('tfds', 'en', 'de', {prepared.directory!r},"
        "'tiny_translation'), 'train');"
        "assert 'tensorflow' not in sys.modules;"
        "print(*sorted(corpus)[0], corpus.fingerprint(), sep='|', end='')"
    )
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    german, english = tiny_tfds.pair("train", 0)
    prepared_backwards = DataConfig("tfds", "en", "de", prepared.directory, prepared.tfds_name)
    fingerprint = corpus_sources.open_split(prepared_backwards, "train").fingerprint()
    assert result.stdout == f"{english}|{german}|{fingerprint}"
    assert fingerprint != corpus_sources.open_split(prepared, "train").fingerprint()


def test_tfds_refuses_languages_that_it_has_not(prepared: DataConfig) -> None:
    data = DataConfig("tfds", "de", "fr", prepared.directory, prepared.tfds_name)
    with pytest.raises(DataError, match=r"data\.tgt_language='fr'.* two of de, en"):
        corpus_sources.open_split(data, "train")


def test_unprepared_tfds_names_the_command(tmp_path: Path) -> None:
    data = DataConfig(
        "tfds",
        directory=str(tmp_path),
        tfds_name="tiny_translation",
        cache_directory=str(tmp_path),
    )
    with pytest.raises(DataError, match=r"not prepared in .*python -m t2t\.prepare --config="):
        corpus_sources.open_split(data, "train")


@pytest.mark.parametrize("name", ["wmt14_translate/xx-yy", "no_such_dataset"])
def test_unknown_tfds_is_refused(tmp_path: Path, name: str) -> None:
    data = DataConfig("tfds", directory=str(tmp_path), tfds_name=name)
    with pytest.raises(DataError, match=rf"data\.tfds_name='{name}': .*catalog"):
        corpus_sources.open_split(data, "train")
